"""The figures of a sweep's page, and the reasons for those not drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import SERVER, Row, number_in, rows_of
from spec_bench.report.sweep import traces
from spec_bench.report.sweep.choose import Part
from spec_bench.report.sweep.traces import Figure, bound_line, figure, points, short, with_looks
from spec_bench.vocabulary import names


@dataclass(frozen=True)
class Drawing:
    """One figure of a group."""

    title: str  # above it
    draw: Callable[[Part, Records], Figure | None]  # None if unmeasured
    missing: Callable[[Part], str]  # the reason for None, in words


def roofline(part: Part, records: Records) -> Figure | None:
    """Milliseconds of a target call with its drafting, every cell, against the time that its bytes
    alone take.

    Bytes are counted from the models and the trees that were verified; the bandwidth is what the
    job measured on its machine (``columns.csv``). No call can be faster than its bytes over the
    bandwidth of where they lie, so that cells stand above the line; how far, is launches,
    arithmetic, waiting.
    """
    timed = [(row, both) for row in rows_of(part.group.rows) if (both := _milliseconds(row))]
    if not timed:
        return None
    hover = "%{text}: %{y:.3g} ms for %{x:.3g} MB, %{customdata:.0%} of the bound attained"
    drawn_by: dict[str, Figure] = {}
    for row, (bound_ms, call_ms) in timed:
        extra = {"text": [], "customdata": [], "hovertemplate": hover}
        name = {"name": names.decoder(str(row["decoder"])).title}
        trace = drawn_by.setdefault(str(row["decoder"]), points(row, [], []) | extra | name)
        point = points(row, [float(row["moved_bytes"]) / 1e6], [call_ms])
        trace["x"] += point["x"]
        trace["y"] += point["y"]
        trace["text"].append(str(row["spec"]))
        trace["customdata"].append(round(bound_ms / call_ms, 3))
    x = "MB that a target call and its drafting must move"
    chart = figure(with_looks(drawn_by), x, "ms a call") or {}
    chart["layout"]["yaxis"]["type"] = "log"  # bound and measured may lie far apart
    chart["layout"]["yaxis"]["minorloglabels"] = "complete"  # 20, not the last digit alone
    moved = [float(row["moved_bytes"]) for row, _ in timed]
    rates = [float(row["bandwidth_bytes_per_s"]) for row, _ in timed]
    ends = sorted({min(moved), max(moved)})
    for rate in sorted({min(rates), max(rates)}):
        heights = short(1000 * end / rate for end in ends)
        line = bound_line(short(end / 1e6 for end in ends), heights)
        mode = "lines" if len(ends) > 1 else "markers"
        chart["data"].append(line | {"mode": mode, "name": f"bound, {rate / 1e9:.3g} GB/s"})
    return chart


def _no_roofline(part: Part) -> str:
    """The reason for a missing roofline."""
    rows = part.group.rows
    if "device" in rows and (rows.device == SERVER).all():
        return "a server decoded, and what its calls read is not seen from outside"
    if "moved_bytes" not in rows:
        return "measured before rows had a call's bytes and the machine's bandwidth"
    return "no row has a call's bytes, the machine's bandwidth and seconds of decoding"


def _milliseconds(row: Row) -> tuple[float, float] | None:
    """Of a call: the bound, and the measured time; None where one of both is not known."""
    moved, rate = number_in(row, "moved_bytes"), number_in(row, "bandwidth_bytes_per_s")
    seconds, calls = number_in(row, "decode_s"), number_in(row, "target_calls")
    if not (moved and rate and seconds and calls):
        return None
    return 1000 * moved / rate, 1000 * seconds / calls


def _reason(text: str) -> Callable[[Part], str]:
    return lambda part: text if part.detailed else f"{text}, or these were not read"


FIGURES = {
    "nodes": Drawing(
        "Speed-up against tree nodes",
        traces.speed_by_nodes,
        _reason("no cell has both a speed-up and tree nodes"),
    ),
    "acceptance": Drawing(
        "Acceptance by position",
        traces.acceptance,
        _reason("no cell has acceptance by depth"),
    ),
    "lengths": Drawing(
        "Accepted tokens per target call",
        traces.accepted_lengths,
        _reason("no cell has records of its calls here"),
    ),
    "time": Drawing(
        "Where the time of a token goes",
        traces.time_stack,
        _reason("no cell has seconds of prefill, decoding, draft and target; of a server's "
              "the last two are not seen"),
    ),
    "prompts": Drawing(
        "Prompt by prompt",
        traces.by_prompt,
        _reason("no records of a cell and of plain decoding timed in turn with it are here"),
    ),
    "roofline": Drawing(
        "Roofline: a call's time, and its bytes over the bandwidth measured here",
        roofline,
        _no_roofline,
    ),
    "mbsu": Drawing(
        "Speed-up against the memory-bound speed-up (MBSU)",
        traces.against_mbsu,
        _reason("no cell has both a speed-up and MBSU"),
    ),
    "quality": Drawing(
        "Quality", traces.quality, _reason("the task scores nothing, and no perplexity is known")
    ),
}  # fmt: skip


def drawn(part: Part, records: Records) -> tuple[dict[str, Figure], dict[str, str]]:
    """A part's figures, and the reasons for those missing, both by the figure's key."""
    made = {key: each.draw(part, records) for key, each in FIGURES.items()}
    measured = {key: figure for key, figure in made.items() if figure is not None}
    return measured, {key: FIGURES[key].missing(part) for key in FIGURES if key not in measured}
