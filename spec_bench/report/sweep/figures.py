"""The cells of a results file that a sweep's page shows, the best ones by task and category, and
the page's figures as plotly.js takes them.

Each function makes one figure of a part, or None if unmeasured; ``FIGURES`` lists them. Traces hold
five significant digits, so that a page of thousands of cells stays small.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.metrics.interval import Interval, choose
from spec_bench.report.data.categories import CellByCategory, by_category, kinds_of
from spec_bench.report.data.counts import Records
from spec_bench.report.data.records import repeats_of
from spec_bench.report.data.rows import (
    SERVER,
    Group,
    Row,
    groups_of,
    number_in,
    numbers_in,
    prompts_of,
    rows_of,
)
from spec_bench.report.page.headline import decoder_of, headline, title_of
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import column, of_kind, scores_in
from spec_bench.vocabulary.decoders import COLOURS
from spec_bench.vocabulary.numbers import ends_of

SHOWN, DETAILED = 6, 120
_BY = ("speedup", "block_efficiency")


@dataclass(frozen=True)
class Answer:
    """The recommended decoder on one kind of prompts."""

    kind: str  # the category; "" for all prompts of the task
    decoder: str  # for people; the words for it where none is recommended
    code: str  # the decoder's name in the results; "" where none is recommended
    value: str  # the number with its interval, or ""
    why: str  # the reason
    prompts: str  # on how many, in words


@dataclass(frozen=True)
class Part:
    """A group with its cells in the details."""

    title: str  # for people
    pair: str  # name of the pair
    group: Group  # all of its cells
    shown: tuple[Row, ...]  # plain decoding and the fastest cells, whose records are read
    answers: tuple[Answer, ...]  # recommendations, all prompts first
    # the numbers by category that the answers follow from
    categories: tuple[CellByCategory, ...] = field(default=(), repr=False)
    # whether the shown cells' records were read; of very many groups the first
    detailed: bool = True


def parts_of(rows: pd.DataFrame, records: Records) -> list[Part]:
    """All groups of pooled rows, of the first ones the fastest cells' records too."""
    parts, left = [], DETAILED
    for group in groups_of(rows):
        shown = _shown(group)
        detailed = len(shown) <= left
        left -= len(shown) if detailed else 0
        part = Group(group.title, group.rows.loc[[index for index, _ in shown]])
        kinds = kinds_of(part, records) if detailed else {}
        cells = by_category(part, kinds, records) if kinds else []
        of_kinds = (_of_category(kind, len(prompts), cells) for kind, prompts in kinds.items())
        answers = [_overall(group), *of_kinds]
        parts.append(
            Part(
                title=title_of(group),
                pair=str(group.rows.iloc[0].pair),
                group=group,
                shown=tuple(row for _, row in shown),
                answers=tuple(answer for answer in answers if answer is not None),
                categories=tuple(cells),
                detailed=detailed,
            )
        )
    return parts


def _shown(group: Group) -> list[tuple[object, Row]]:
    """Index and row of plain decoding and of the fastest cells, in that order."""
    rows = group.rows[group.rows.status != "failed"]
    plain = rows[rows.decoder == "ar"].head(1)
    others = rows[rows.decoder != "ar"]
    by = next((name for name in _BY if name in rows and others[name].notna().any()), None)
    if by is not None:
        others = others.sort_values(by, ascending=False, kind="stable")
    best = pd.concat([plain, others.head(SHOWN)])
    return list(zip(best.index, rows_of(best), strict=True))


def _overall(group: Group) -> Answer | None:
    best = headline(group)
    if best is None:
        return None
    counted = prompts_of(group.rows)
    return Answer("", best.decoder, best.code, best.speed, best.why, counted)


def _of_category(name: str, count: int, cells: Sequence[CellByCategory]) -> Answer | None:
    """The fastest of the shown cells on a category's prompts, of those that are surely faster."""
    speeds = [(cell.row, cell.speedup[name]) for cell in cells if name in cell.speedup]
    if not speeds:
        return None
    prompts = f"{count} prompt{'' if count == 1 else 's'}"
    looked_at = [(decoder_of(row), speed, count) for row, speed in speeds]
    choice = choose(looked_at, "{} prompts of this kind")
    if choice.faster:
        row, speed = max((speeds[n] for n in choice.faster), key=lambda each: each[1].value)
        why = f"surely faster than AR, the fastest of {len(speeds)} cells that are looked at"
        return Answer(name, decoder_of(row), str(row["decoder"]), speed_text(speed), why, prompts)
    code, value = ("ar", "1.00×") if choice.answer == "AR" else ("", "")
    return Answer(name, choice.answer, code, value, choice.why, prompts)


def speed_text(speed: Interval) -> str:
    """A speed-up with its interval."""
    ends = ends_of(speed.low, speed.high, ".2f", "[{} to {}]") or "(no interval)"
    return f"{speed.value:.2f}× {ends}"


Figure = dict[str, Any]
_SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond"} | {
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
_MOST_SCATTER = 400  # prompts of a cell that a scatter shows


def speed_by_nodes(part: Part, records: Records) -> Figure | None:
    """Speed-up against tree nodes per target call, every cell of the group."""
    return _by_decoder(part, "nodes_per_call", "speedup", one=True)


def against_mbsu(part: Part, records: Records) -> Figure | None:
    """Measured speed-up against the bound by memory traffic alone."""
    chart = _by_decoder(part, "mbsu", "speedup", one=True)
    if chart is None:
        return None
    ends = [value for trace in chart["data"] for axis in "xy" for value in trace[axis]]
    line = [min(ends, default=0.0), max(ends, default=1.0)]
    chart["data"].append(bound_line(line, line))
    return chart


def bound_line(x: Sequence[float], y: Sequence[float]) -> Figure:
    """The line that no cell can be above, or below."""
    dotted = {"dash": "dot", "color": "#888"}
    return {"x": x, "y": y, "mode": "lines", "name": "bound", "hoverinfo": "skip", "line": dotted}


def acceptance(part: Part, records: Records) -> Figure | None:
    """Acceptance rate at every depth of the tree, of the shown cells."""
    traces = []
    for place, row in enumerate(part.shown):
        text = row.get("acceptance_rate_by_depth")
        rates = enumerate(json.loads(text) if isinstance(text, str) and text else [], 1)
        known = [(depth, rate) for depth, rate in rates if rate is not None]
        if known:
            traces.append(_line(row, place, *zip(*known, strict=True)))
    return _in_whole_steps(figure(traces, "position in the draft", "acceptance rate", zero=True))


def accepted_lengths(part: Part, records: Records) -> Figure | None:
    """Shares of target calls by the number of accepted tokens."""
    traces = []
    for place, row in enumerate(part.shown):
        if row["decoder"] == "ar" or not (generations := _first_repeat(part, row)):
            continue
        counts = Counter(step.accepted for each in generations for step in each.steps)
        total, most = sum(counts.values()), max(counts, default=0)
        shares = [counts[length] / total for length in range(most + 1)] if total else []
        traces.append(_line(row, place, list(range(most + 1)), shares))
    made = figure(traces, "accepted tokens of a target call", "share of calls", zero=True)
    return _in_whole_steps(made)


def time_stack(part: Part, records: Records) -> Figure | None:
    """Milliseconds of a delivered token by stage, of the shown cells."""
    cells = [row for row in part.shown if None not in _times(row)]
    if not cells:
        return None
    shares: dict[str, list[float]] = {"prefill": [], "draft": [], "target (verify)": [], "host": []}
    for row in cells:
        prefill, whole, draft, target, tokens = (each or 0.0 for each in _times(row))
        spent = (prefill, draft, target, max(0.0, whole - draft - target))
        for share, seconds in zip(shares.values(), spent, strict=True):
            share.append(1000 * seconds / tokens if tokens else 0.0)
    sky, blue, orange = COLOURS["sky"], COLOURS["blue"], COLOURS["orange"]
    colours = ("#bbbbbb", sky.light, blue.light, orange.light)
    traces = [
        {
            **{"type": "bar", "orientation": "h", "name": name, "x": short(values)},
            **{"y": [decoder_of(row) for row in cells], "marker": {"color": colour}},
        }
        for (name, values), colour in zip(shares.items(), colours, strict=True)
    ]
    bars = figure(traces, "ms per delivered token", "")
    assert bars is not None
    bars["layout"] |= {"barmode": "stack"}
    bars["layout"]["yaxis"] = {"autorange": "reversed", "automargin": True}
    return bars


def by_prompt(part: Part, records: Records) -> Figure | None:
    """Every prompt's speed-up against plain decoding's seconds, timed in turn."""
    bases = [row for row in part.shown if row["decoder"] == "ar"]
    traces = []
    for row in part.shown if bases and part.detailed else ():
        timed = (
            None if row["decoder"] == "ar" else records.interleaved([row, bases[0]], "token_rate")
        )
        x, y, ids = [], [], []
        for ours, plain in zip(*(side.values() for side in timed), strict=True) if timed else ():
            for prompt, (tokens, seconds) in list(ours.items())[:_MOST_SCATTER]:
                base_tokens, base_s = plain[prompt]
                if seconds and base_s and tokens and base_tokens:
                    x.append(base_tokens / base_s)
                    y.append(tokens / seconds / (base_tokens / base_s))
                    ids.append(prompt)
        if x:
            traces.append(points(row, x, y) | {"text": ids})
    return figure(traces, "plain decoding of the prompt, tokens/s", "speed-up of the prompt")


def quality(part: Part, records: Records) -> Figure | None:
    """Scores, or else perplexity, with their intervals."""
    measured = scores_in(part.group.rows.columns)
    likely = [each.name for each in of_kind("likelihood")]
    traces: list[Figure] = []
    for name in (*measured, *likely):
        cells = [(row, numbers_in(row, name)) for row in part.shown if row.get(name) is not None]
        known = [(row, numbers) for row, numbers in cells if numbers[0] is not None]
        if not known or (traces and name in likely):
            continue
        traces.append(
            {
                **{"x": short(numbers[0] for _, numbers in known), "mode": "markers"},
                **{"y": [decoder_of(row) for row, _ in known], "name": column_title(name)},
                "error_x": _bars([numbers for _, numbers in known]),
            }
        )
    scored = any(trace["name"] != column_title(name) for trace in traces for name in likely)
    chart = figure(traces, "score" if scored else "perplexity", "")
    if chart is not None:
        chart["layout"]["yaxis"] = {"autorange": "reversed", "automargin": True}
    return chart


def column_title(name: str) -> str:
    """A column's title; a module's score goes by its name."""
    try:
        return column(name).title
    except ValueError:
        return name.replace("_", " ")


def _by_decoder(part: Part, x: str, y: str, one: bool) -> Figure | None:
    """A point per cell, a trace per decoder."""
    traces: dict[str, Figure] = {}
    rows = part.group.rows
    if x not in rows or y not in rows:
        return None
    for row in rows_of(rows[rows[x].notna() & rows[y].notna() & (rows.decoder != "ar")]):
        name = str(row["decoder"])
        trace = traces.setdefault(name, points(row, [], []) | {"text": [], "ends": []})
        trace["name"] = names.decoder(name).title
        trace["x"].append(_round(float(row[x])))
        trace["y"].append(_round(float(row[y])))
        trace["text"].append(str(row["spec"]))
        trace["ends"].append(list(numbers_in(row, y)))
    for trace in traces.values():
        trace["error_y"] = _bars(trace.pop("ends"))
    chart = figure(with_looks(traces), column(x).title, column(y).title)
    if chart is not None and one:
        chart["layout"]["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
            | {"line": {"color": "#888", "width": 1}}
        ]
    return chart


def _times(row: Row) -> list[float | None]:
    """Seconds of prefill, decoding, draft and target, and the tokens they delivered."""
    seconds = [number_in(row, each.name) for each in of_kind("time") if each.name in _SPENT]
    return [*seconds, number_in(row, "delivered_tokens")]


_SPENT = frozenset(f"{name}_s" for name in ("prefill", "decode", "draft", "target"))


def _first_repeat(part: Part, row: Row) -> list[Any]:
    """A shown cell's records of the first repeat."""
    if not part.detailed:
        return []
    run = str(row["run_id"]).split(",")[0]
    repeats = repeats_of(Path(str(row["file"])), run)
    return list(repeats[0].values()) if repeats else []


def points(row: Row, x: Sequence[float], y: Sequence[float]) -> Figure:
    """A trace of a cell's decoder: its colour and marker."""
    known = names.decoder(str(row["decoder"]))
    base = {"x": short(x), "y": short(y), "mode": "markers", "name": decoder_of(row)}
    return {**base, "marker": _marker(known)}


def with_looks(traces: Mapping[str, Figure]) -> list[Figure]:
    """Traces of a decoder each, by its name: no two have one colour and marker."""
    looks = names.apart(traces.keys())
    return [{**trace, "marker": _marker(looks[name])} for name, trace in traces.items()]


def _marker(known: names.Decoder) -> Figure:
    symbol = f"{_SYMBOLS[known.marker]}{'-open' if known.hollow else ''}"
    return {"color": known.colour.light, "symbol": symbol, "size": 7}


def _line(row: Row, place: int, x: Sequence[float], y: Sequence[float]) -> Figure:
    line = {"dash": _DASHES[place % len(_DASHES)], "width": 2}
    return {**points(row, x, y), "mode": "lines+markers", "line": line}


def figure(traces: Sequence[Figure], x: str, y: str, zero: bool = False) -> Figure | None:
    """Traces over named axes; None where there are none."""
    if not traces:
        return None
    axis: Figure = {"rangemode": "tozero"} if zero else {}
    layout = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, **axis}}
    return {"data": list(traces), "layout": layout}


def _in_whole_steps(chart: Figure | None) -> Figure | None:
    """A figure over counts: no ticks between them, and not too many."""
    most = max((x for trace in chart["data"] for x in trace["x"]), default=0) if chart else 0
    if chart is not None:
        chart["layout"]["xaxis"] |= {"tick0": 0, "dtick": max(1, round(most / 10))}
    return chart


def _bars(numbers: Sequence[Sequence[float | None]]) -> Figure:
    """Error bars from (value, low, high)."""
    above = [0.0 if v is None or h is None else h - v for v, _, h in numbers]
    below = [0.0 if v is None or w is None else v - w for v, w, _ in numbers]
    lengths = {"array": short(above), "arrayminus": short(below)}
    return {"type": "data", "symmetric": False, "thickness": 1, "width": 2, **lengths}


def short(values: Iterable[float | None]) -> list[float]:
    """Five digits of each that is known."""
    return [_round(value) for value in values if value is not None]


def _round(value: float) -> float:
    return float(f"{value:.5g}")


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
        speed_by_nodes,
        _reason("no cell has both a speed-up and tree nodes"),
    ),
    "acceptance": Drawing(
        "Acceptance by position",
        acceptance,
        _reason("no cell has acceptance by depth"),
    ),
    "lengths": Drawing(
        "Accepted tokens per target call",
        accepted_lengths,
        _reason("no cell has records of its calls here"),
    ),
    "time": Drawing(
        "Where the time of a token goes",
        time_stack,
        _reason("no cell has seconds of prefill, decoding, draft and target; of a server's "
              "the last two are not seen"),
    ),
    "prompts": Drawing(
        "Prompt by prompt",
        by_prompt,
        _reason("no records of a cell and of plain decoding timed in turn with it are here"),
    ),
    "roofline": Drawing(
        "Roofline: a call's time, and its bytes over the bandwidth measured here",
        roofline,
        _no_roofline,
    ),
    "mbsu": Drawing(
        "Speed-up against the memory-bound speed-up (MBSU)",
        against_mbsu,
        _reason("no cell has both a speed-up and MBSU"),
    ),
    "quality": Drawing(
        "Quality", quality, _reason("the task scores nothing, and no perplexity is known")
    ),
}  # fmt: skip


def drawn(part: Part, records: Records) -> tuple[dict[str, Figure], dict[str, str]]:
    """A part's figures, and the reasons for those missing, both by the figure's key."""
    made = {key: each.draw(part, records) for key, each in FIGURES.items()}
    measured = {key: figure for key, figure in made.items() if figure is not None}
    return measured, {key: FIGURES[key].missing(part) for key in FIGURES if key not in measured}
