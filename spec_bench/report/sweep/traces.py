"""The figures of a sweep's page as plotly.js takes them: plain dictionaries, nothing drawn here.

Each function makes one figure of a part, or None if unmeasured; ``figures`` lists them. Traces hold
five significant digits, so that a page of thousands of cells stays small.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_bench.report.data.counts import Records
from spec_bench.report.data.records import repeats_of
from spec_bench.report.data.rows import Row, number_in, numbers_in, rows_of
from spec_bench.report.page.headline import decoder_of
from spec_bench.report.sweep.choose import Part
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import column, of_kind, scores_in
from spec_bench.vocabulary.decoders import COLOURS

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
