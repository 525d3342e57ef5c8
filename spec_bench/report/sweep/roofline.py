"""The roofline: the time of a call against the time that its bytes alone take.

Bytes are counted from the models and the trees that were verified; the bandwidth is what the job
measured on its machine (``columns.csv``). No call can be faster than its bytes over the bandwidth
of where they lie, so that cells stand above the line; how far, is launches, arithmetic, waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import SERVER, Row, number_in, rows_of
from spec_bench.report.sweep.choose import Part
from spec_bench.report.sweep.traces import Figure, bound_line, figure, points, short, with_looks
from spec_bench.vocabulary import names


def roofline(part: Part, records: Records) -> Figure | None:
    """Milliseconds of a target call with its drafting, measured and bound, every cell."""
    timed = [(row, both) for row in rows_of(part.group.rows) if (both := _milliseconds(row))]
    if not timed:
        return None
    traces: dict[str, Figure] = {}
    for row, (bound_ms, call_ms) in timed:
        point = points(row, [float(row["moved_bytes"]) / 1e6], [call_ms])
        trace = traces.setdefault(str(row["decoder"]), _trace(row))
        trace["x"] += point["x"]
        trace["y"] += point["y"]
        trace["text"].append(str(row["spec"]))
        trace["customdata"].append(round(bound_ms / call_ms, 3))
    x = "MB that a target call and its drafting must move"
    chart = figure(with_looks(traces), x, "ms a call") or {}
    chart["layout"]["yaxis"]["type"] = "log"  # bound and measured may lie far apart
    chart["layout"]["yaxis"]["minorloglabels"] = "complete"  # 20, not the last digit alone
    rows = [row for row, _ in timed]
    chart["data"] += [_bound(rate, rows) for rate in _bandwidths(rows)]
    return chart


def no_roofline(part: Part) -> str:
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


def _trace(row: Row) -> Figure:
    hover = "%{text}: %{y:.3g} ms for %{x:.3g} MB, %{customdata:.0%} of the bound attained"
    extra = {"text": [], "customdata": [], "hovertemplate": hover}
    return points(row, [], []) | extra | {"name": names.decoder(str(row["decoder"])).title}


def _bandwidths(rows: Sequence[Row]) -> list[float]:
    """Bytes per second that jobs measured: one, or the least and the most of several."""
    rates = [float(row["bandwidth_bytes_per_s"]) for row in rows]
    return list(dict.fromkeys((min(rates), max(rates))))


def _bound(rate: float, rows: Sequence[Row]) -> Figure:
    """Milliseconds that bytes take at a bandwidth, over those that the cells move."""
    moved = [float(row["moved_bytes"]) for row in rows]
    ends = sorted({min(moved), max(moved)})
    line = bound_line(short(end / 1e6 for end in ends), short(1000 * end / rate for end in ends))
    mode = "lines" if len(ends) > 1 else "markers"
    return line | {"mode": mode, "name": f"bound, {rate / 1e9:.3g} GB/s"}
