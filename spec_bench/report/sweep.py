"""A page on any results file to look around in: the best decoders by task and category of prompt,
then figures of one group at a time, as plotly.js takes them. It is one HTML file that works
offline, plotly.js compressed inside it.

The same results give the same bytes: no time, no random names, and the embedded data are sorted as
the results are. Traces hold five significant digits, so that a page of thousands of cells stays
small.
"""

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from spec_bench.metrics.interval import choose
from spec_bench.report.data.categories import ByCategory, by_category, kinds_of
from spec_bench.report.data.counts import Records, repeats_of
from spec_bench.report.data.rows import (
    Group,
    Row,
    decoder_of,
    error_bars,
    groups_of,
    interval_in,
    number_in,
    numbers_in,
    prompts_of,
    read_from,
    rows_of,
    title_of,
    tree_titles,
    value_text,
)
from spec_bench.report.page.build import measured_on, read_cells, render
from spec_bench.report.page.headline import headline
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import Column, apart_in, column, columns_in
from spec_bench.vocabulary.decoders import COLOURS, PALETTE
from spec_bench.vocabulary.numbers import ends_of, format_count, with_ends

SHOWN, DETAILED, _SWEPT = 6, 120, 12  # cells, cells with their records, swept settings; at most
_WIDE = 8  # times the smallest value of a setting, from where on its axis is logarithmic
_CELL = ["decoder", "spec", "tree_attention"]
_NOT_SWEPT = ("stage", "engine", "harness", "machine")
_BY = ("speedup", "block_efficiency")


def build_page(table: Path) -> str:
    """Returns one results file's page. Raises ValueError: no such file, or it has no rows."""
    from plotly.offline import get_plotlyjs

    if not table.is_file():
        raise ValueError(f"no results file {str(table)!r}")
    cells = read_cells([table], only=(*_BY, "token_rate", "mbsu"))
    rows, parts = cells.rows, parts_of(cells.rows, cells.records)
    figures = [drawn(part, cells.records) for part in parts]
    data = [{"figures": made, "missing": missing} for made, missing in figures]
    swept = swept_of(rows)
    charts = [each.chart for each in swept]
    return render(
        "sweep.html.j2",
        name=table.parent.name,
        file=table.name,
        parts=parts,
        first=next((place for place, (made, _) in enumerate(figures) if made), 0),
        cells=len(rows),
        failed=int((rows.status == "failed").sum()),
        prompts=prompts_of(rows),
        measured_on=measured_on(rows.target, paper=False) or read_from(rows),
        origins=cells.origins,
        figures={key: title for key, (title, *_) in FIGURES.items()},
        shown=SHOWN,
        detailed=DETAILED,
        data=_script(data),
        swept=swept,
        charts=_script(charts),
        plotly=packed(get_plotlyjs()),  # MIT, whole: it names its licence itself
    )


def _script(data: Any) -> Markup:
    """JSON that may stand in a script."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def packed(script: str) -> str:
    """Compresses a script as the page unpacks it, to a third; the same bytes every time."""
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


Looks = Mapping[str, names.Decoder]


class Answer(NamedTuple):
    """The recommended decoder on one kind of prompts."""

    kind: str  # the category; "" for all prompts of the task
    decoder: str  # for people; the words for it where none is recommended
    code: str  # the decoder's name in the results; "" where none is recommended
    value: str  # the number with its interval, or ""
    why: str
    prompts: str  # on how many, in words


class Part(NamedTuple):
    """A group with its cells in the details."""

    title: str  # for people
    pair: str  # name of the pair
    rows: pd.DataFrame  # all of its cells
    shown: list[Row]  # plain decoding and the fastest cells, whose records are read
    answers: list[Answer]  # recommendations, all prompts first
    detailed: bool  # whether the shown cells' records were read; of very many groups the first
    looks: Looks  # of all decoders of the page


def parts_of(rows: pd.DataFrame, records: Records) -> list[Part]:
    """Lists all groups of pooled rows, of the first ones the fastest cells' records too."""
    parts, left, looks = [], DETAILED, names.apart({*map(str, rows.decoder)})
    for group in groups_of(rows):
        able = group.rows[group.rows.status != "failed"]
        plain, others = able[able.decoder == "ar"].head(1), able[able.decoder != "ar"]
        by = next((name for name in _BY if name in rows and others[name].notna().any()), None)
        if by is not None:
            others = others.sort_values(by, ascending=False, kind="stable")
        best = Group(group.title, pd.concat([plain, others.head(SHOWN)]))
        detailed = len(best.rows) <= left
        left -= len(best.rows) if detailed else 0
        kinds = kinds_of(best, records) if detailed else {}
        cells = by_category(best, kinds, records) if kinds else []
        answers = [_of_category(kind, len(prompts), cells) for kind, prompts in kinds.items()]
        if found := headline(group):
            answer = Answer("", found.decoder, found.code, found.speed, found.why, "")
            answers.insert(0, answer)
        parts.append(
            Part(
                title_of(group),
                str(group.rows.iloc[0].pair),
                group.rows,
                rows_of(best.rows),
                [answer for answer in answers if answer],
                detailed,
                looks,
            )
        )
    return parts


def _of_category(name: str, count: int, cells: Sequence[tuple[Row, ByCategory]]) -> Answer | None:
    """The fastest of the shown cells on a category's prompts, of those that are surely faster."""
    speeds = [(row, of["speedup"][name]) for row, of in cells if name in of["speedup"]]
    if not speeds:
        return None
    prompts = format_count(count, "prompt")
    looked_at = [(decoder_of(row), speed, count) for row, speed in speeds]
    choice = choose(looked_at, "prompts of this kind")
    if not choice.faster:
        code, value = ("ar", "1.00×") if choice.answer == "AR" else ("", "")
        return Answer(name, choice.answer, code, value, choice.why, prompts)
    row, speed = max((speeds[n] for n in choice.faster), key=lambda each: each[1].value)
    ends = ends_of(speed.low, speed.high, ".2f", "[{} to {}]") or "(no interval)"
    why = f"surely faster than AR, the fastest of {len(speeds)} cells that are looked at"
    value = f"{speed.value:.2f}× {ends}"
    return Answer(name, decoder_of(row), str(row["decoder"]), value, why, prompts)


Figure = dict[str, Any]
_ROUND = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond"}
_SYMBOLS = {**_ROUND, "v": "triangle-down", "P": "cross", "X": "x"}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
_DOWN: Figure = {
    "autorange": "reversed",
    "automargin": True,
}  # the axis of decoders, the first one on top
_MOST_SCATTER = 400  # prompts of a cell that a scatter shows


def figure(traces: Sequence[Figure], x: str, y: str = "", **axis: Any) -> Figure | None:
    """Lays traces over named axes, ``axis`` more of the vertical one; None where there are none."""
    if not traces:
        return None
    upright = {"title": {"text": y}, **axis} if y else axis
    return {"data": list(traces), "layout": {"xaxis": {"title": {"text": x}}, "yaxis": upright}}


def short(values: Iterable[float | None]) -> list[float]:
    """Five digits of each that is known."""
    return [float(f"{value:.5g}") for value in values if value is not None]


def _marker(look: names.Decoder) -> Figure:
    symbol = f"{_SYMBOLS[look.marker]}{'-open' if look.hollow else ''}"
    return {"color": look.colour.light, "symbol": symbol, "size": 7}


def points(row: Row, looks: Looks, x: Sequence[float], y: Sequence[float]) -> Figure:
    """Returns a trace of a cell: its decoder's colour and marker."""
    base = {"x": short(x), "y": short(y), "mode": "markers", "name": decoder_of(row)}
    return {**base, "marker": _marker(looks[str(row["decoder"])])}


def _bars(numbers: Sequence[Sequence[float | None]]) -> Figure:
    below, above = ([None if isnan(e) else e for e in side] for side in error_bars(numbers))
    lengths = {"array": above, "arrayminus": below}
    return {"type": "data", "symmetric": False, "thickness": 1, "width": 2, **lengths}


def bound_line(x: Sequence[float], y: Sequence[float]) -> Figure:
    """Returns the line that no cell can be above, or below."""
    dotted = {"dash": "dot", "color": "#888"}
    return {"x": x, "y": y, "mode": "lines", "name": "bound", "hoverinfo": "skip", "line": dotted}


Point = tuple[Row, float, float]


def _by_decoder(
    found: Iterable[Point], looks: Looks, more: Callable[[list[Point]], Figure]
) -> list[Figure]:
    """Returns a trace per decoder, a point per cell with its tree; ``more`` of a trace."""
    cells: dict[str, list[Point]] = {}
    for point in found:
        cells.setdefault(str(point[0]["decoder"]), []).append(point)
    return [
        {
            **{"x": short(x for _, x, _ in own), "y": short(y for *_, y in own)},
            **{"mode": "markers", "name": looks[name].title, "marker": _marker(looks[name])},
            **{"text": [str(row["spec"]) for row, *_ in own], **more(own)},
        }
        for name, own in cells.items()
    ]


def _speedup_against(x: str, part: Part) -> Figure | None:
    """Speed-ups over another column, every cell of the group; a line where both are as fast."""
    rows, y = part.rows, _BY[0]
    if x not in rows or y not in rows:
        return None
    known = rows_of(rows[rows[x].notna() & rows[y].notna() & (rows.decoder != "ar")])
    traces = _by_decoder(
        ((row, float(row[x]), float(row[y])) for row in known),
        part.looks,
        lambda own: {"error_y": _bars([numbers_in(row, y) for row, *_ in own])},
    )
    return _beside_one(figure(traces, column(x).title, column(y).title))


def _beside_one(chart: Figure | None) -> Figure | None:
    """Adds the line at which both are as fast."""
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    for each in [chart] if chart else []:
        each["layout"]["shapes"] = [{**line, "line": {"color": "#888", "width": 1}}]
    return chart


class Swept(NamedTuple):
    """A setting of several values, where all else is the same."""

    title: str  # what is told by which setting
    where: str  # the task, and other settings that vary elsewhere
    values: list[str]  # of the setting
    lines: list[tuple[str, list[str]]]  # each of the fastest cells, with a text for each value
    chart: Figure | None  # of numbers, lines over the setting; of texts None


def swept_of(rows: pd.DataFrame) -> list[Swept]:
    """Lists the settings that a sweep varies, with what they do to the fastest cells."""
    by = next((name for name in _BY if name in rows and rows[name].notna().any()), None)
    if by is None:
        return []
    found, apart = list[Swept](), apart_in(rows.columns)
    looks = names.apart({*map(str, rows.decoder)})
    rows = rows.fillna({each.name: "" for each in apart if each.holds != "number"})
    rows = rows[(rows.decoder != "ar") & rows[by].notna()]
    if "stage" in rows:  # what was screened is no evidence
        rows = rows[rows.stage != "screen"]
    asked = (c for c in apart if c.kind == "setting" and c.name not in _NOT_SWEPT)
    for setting in (each for each in asked if rows[each.name].nunique() > 1):
        # What follows from the setting, such as its prompts, varies with it.
        at = rows.groupby(["pair", "task", setting.name])
        others = [each for each in apart if each.name not in ("pair", "task", setting.name)]
        fixed = [each for each in others if (at[each.name].nunique() > 1).any()]
        keys = ["pair", "task", *(each.name for each in fixed)]
        for _, part in rows.groupby(keys, sort=False, dropna=False):
            cells = part.assign(spec=tree_titles(part)).groupby(_CELL, sort=False)
            several = [own for _, own in cells if own[setting.name].nunique() > 1]
            first = part.iloc[0]
            settings = [each for each in fixed if each.kind == "setting"]
            told = [str(first.pair), *(value_text(each, first[each.name]) for each in settings)]
            if several:
                where = ", ".join([names.task(str(first.task)), *told])
                found.append(_swept(setting, where, by, several, looks))
    return found[:_SWEPT]


def _swept(setting: Column, where: str, by: str, cells: list[pd.DataFrame], looks: Looks) -> Swept:
    """Returns what a setting does to the fastest of some cells, each with its values' rows."""
    cells = sorted(cells, key=lambda own: -float(own[by].max()))[:SHOWN]
    numeric, lines, traces = setting.holds == "number", [], []
    known = sorted({value for own in cells for value in own[setting.name].dropna()})
    alone = len({own.decoder.iloc[0] for own in cells}) == 1  # its trees have a colour each
    for place, own in enumerate(cells):
        rows = {row[setting.name]: row for row in rows_of(own.sort_values(setting.name))}
        found = {value: interval_in(row, by) for value, row in rows.items()}
        texts = [
            with_ends(e.value, e.low, e.high, ".2f") if e else "" for e in map(found.get, known)
        ]
        lines.append((decoder_of(own.iloc[0]), texts))
        x, numbers = [*found], [numbers_in(row, by) for row in rows.values()]
        if numeric:
            line = _line(rows[x[0]], looks, place, x, [float(value or 0) for value, *_ in numbers])
            if alone:
                for part in ("line", "marker"):
                    line[part]["color"] = PALETTE[place % len(PALETTE)].light
            traces.append({**line, "error_y": _bars(numbers)})
    values = [f"{value:g}" if numeric else str(value) or "not stated" for value in known]
    title = f"{column(by).title} by {setting.title}"
    chart = _beside_one(figure(traces, setting.title, column(by).title))
    if chart is not None:
        wide = known[0] > 0 and known[-1] / known[0] >= _WIDE
        ticks = {"tickvals": known, "type": "log" if wide else "linear"}
        chart["layout"]["xaxis"] |= ticks | {"minor": {"ticks": ""}}
    return Swept(title, where, values, lines, chart)


def against_mbsu(part: Part, _: Records) -> Figure | None:
    """Measured speed-up against the bound by memory traffic alone."""
    chart = _speedup_against("mbsu", part)
    if chart is not None:
        ends = [value for trace in chart["data"] for axis in "xy" for value in trace[axis]]
        chart["data"].append(bound_line([min(ends), max(ends)], [min(ends), max(ends)]))
    return chart


def _line(row: Row, looks: Looks, place: int, x: Sequence[float], y: Sequence[float]) -> Figure:
    line = {"dash": _DASHES[place % len(_DASHES)], "width": 2}
    return {**points(row, looks, x, y), "mode": "lines+markers", "line": line}


def _over_counts(traces: Sequence[Figure], x: str, y: str) -> Figure | None:
    """Shares over counts: no ticks between them, and not too many."""
    chart = figure(traces, x, y, rangemode="tozero")
    if chart is not None:
        most = max((x for trace in traces for x in trace["x"]), default=0)
        chart["layout"]["xaxis"] |= {"tick0": 0, "dtick": max(1, round(most / 10))}
    return chart


def acceptance(part: Part, _: Records) -> Figure | None:
    """Acceptance rate at every depth of the tree, of the shown cells."""
    traces = []
    for place, row in enumerate(part.shown):
        text = row.get("acceptance_rate_by_depth")
        rates = enumerate(json.loads(text) if isinstance(text, str) and text else [], 1)
        known = [(depth, rate) for depth, rate in rates if rate is not None]
        if known:
            traces.append(_line(row, part.looks, place, *zip(*known, strict=True)))
    return _over_counts(traces, "position in the draft", "acceptance rate")


def accepted_lengths(part: Part, _: Records) -> Figure | None:
    """Shares of target calls by the number of accepted tokens, in the first repeat."""
    traces = []
    for place, row in enumerate(part.shown if part.detailed else ()):
        run = str(row["run_id"]).split(",")[0]
        if row["decoder"] == "ar" or not (repeats := repeats_of(Path(str(row["file"])), run)):
            continue
        counts = Counter(step.accepted for each in repeats[0].values() for step in each.steps)
        lengths = range(max(counts, default=-1) + 1)
        shares = [counts[length] / counts.total() for length in lengths]
        traces.append(_line(row, part.looks, place, lengths, shares))
    return _over_counts(traces, "accepted tokens of a target call", "share of calls")


def time_stack(part: Part, _: Records) -> Figure | None:
    """Milliseconds of a delivered token by stage, of the shown cells."""
    stages = {"prefill": "#bbbbbb", "draft": COLOURS["sky"].light}
    stages |= {"target (verify)": COLOURS["blue"].light, "host": COLOURS["orange"].light}
    rows, shares = [], []
    for row in part.shown:
        spans = [f"{stage}_s" for stage in ("prefill", "decode", "draft", "target")]
        found = [number_in(row, name) for name in (*spans, "delivered_tokens")]
        known = [number for number in found if number is not None]
        if len(known) == len(found):
            prefill, whole, draft, target, tokens = known
            spent = (prefill, draft, target, max(0.0, whole - draft - target))
            rows.append(decoder_of(row))
            shares.append([1000 * seconds / tokens if tokens else 0.0 for seconds in spent])
    traces = [
        {
            **{"type": "bar", "orientation": "h", "name": name, "x": short(values)},
            **{"y": rows, "marker": {"color": colour}},
        }
        for (name, colour), values in zip(stages.items(), zip(*shares, strict=True), strict=False)
    ]
    chart = figure(traces, "ms per delivered token", **_DOWN)
    return chart and {**chart, "layout": {**chart["layout"], "barmode": "stack"}}


def by_prompt(part: Part, records: Records) -> Figure | None:
    """Returns every prompt's speed-up against plain decoding's seconds, timed in turn."""
    bases = [row for row in part.shown if row["decoder"] == "ar"]
    traces = []
    for row in part.shown if bases and part.detailed else ():
        timed = row["decoder"] != "ar" and records.interleaved([row, bases[0]], "token_rate")
        x, y, ids = [], [], []
        for ours, plain in zip(*(side.values() for side in timed), strict=True) if timed else ():
            for prompt, (tokens, seconds) in list(ours.items())[:_MOST_SCATTER]:
                base_tokens, base_s = plain[prompt]
                if seconds and base_s and tokens and base_tokens:
                    x.append(base_tokens / base_s)
                    y.append(tokens / seconds / (base_tokens / base_s))
                    ids.append(prompt)
        if x:
            traces.append(points(row, part.looks, x, y) | {"text": ids})
    return figure(traces, "plain decoding of the prompt, tokens/s", "speed-up of the prompt")


def quality(part: Part, _: Records) -> Figure | None:
    """Scores, or else perplexity, with their intervals."""
    for kind, title in (("score", "score"), ("likelihood", "perplexity")):
        traces = []
        for each in [c for c in columns_in(part.rows.columns) if c.kind == kind]:
            found = [(decoder_of(row), numbers_in(row, each.name)) for row in part.shown]
            if known := [(name, numbers) for name, numbers in found if numbers[0] is not None]:
                values, of = short(value for _, (value, *_) in known), [name for name, _ in known]
                bars = _bars([numbers for _, numbers in known])
                trace = {"x": values, "mode": "markers", "y": of, "name": each.title}
                traces.append({**trace, "error_x": bars})
        if traces:
            return figure(traces, title, **_DOWN)
    return None


def roofline(part: Part, _: Records) -> Figure | None:
    """Milliseconds of a target call with its drafting, every cell, against the time that its bytes
    alone take.

    Bytes are counted from the models and the trees that were verified; the bandwidth is what the
    job measured on its machine (``columns.csv``). No call can be faster than its bytes over the
    bandwidth of where they lie, so that cells stand above the line; how far, is launches,
    arithmetic, waiting.
    """
    found: list[Point] = []
    for row in rows_of(part.rows):
        moved, rate = number_in(row, "moved_bytes"), number_in(row, "bandwidth_bytes_per_s")
        seconds, calls = number_in(row, "decode_s"), number_in(row, "target_calls")
        if moved and rate and seconds and calls:
            found.append((row, moved / 1e6, 1000 * seconds / calls))
    if not found:
        return None
    hover = "%{text}: %{y:.3g} ms for %{x:.3g} MB, %{customdata:.0%} of the bound attained"

    def attained(own: list[Point]) -> Figure:
        shares = [1e9 * mb / float(row["bandwidth_bytes_per_s"]) / ms for row, mb, ms in own]
        return {"customdata": [round(share, 3) for share in shares], "hovertemplate": hover}

    traces = _by_decoder(found, part.looks, attained)
    ends = sorted({pick(mb for _, mb, _ in found) for pick in (min, max)})
    rates = [float(row["bandwidth_bytes_per_s"]) for row, *_ in found]
    for rate in sorted({min(rates), max(rates)}):
        line = bound_line(short(ends), short(1e9 * mb / rate for mb in ends))
        mode = "lines" if len(ends) > 1 else "markers"
        traces.append(line | {"mode": mode, "name": f"bound, {rate / 1e9:.3g} GB/s"})
    # Bound and measured may lie far apart; and 20, not the last digit alone.
    axis: Figure = {"type": "log", "minorloglabels": "complete"}
    return figure(traces, "MB that a target call and its drafting must move", "ms a call", **axis)


FIGURES: dict[str, tuple[str, Callable[[Part, Records], Figure | None], str]] = {
    "nodes": (
        "Speed-up against tree nodes",
        lambda part, _: _speedup_against("nodes_per_call", part),
        "no speed-up with tree nodes",
    ),
    "acceptance": ("Acceptance by position", acceptance, "no acceptance by depth"),
    "lengths": ("Accepted tokens per target call", accepted_lengths, "no records of calls"),
    "time": ("Where the time of a token goes", time_stack, "no seconds of draft and target"),
    "prompts": ("Prompt by prompt", by_prompt, "no records of cells timed in turn with AR"),
    "roofline": (
        "A call's time against its bytes (roofline)",
        roofline,
        "no row has a call's bytes",
    ),
    "mbsu": ("Speed-up against MBSU, its memory bound", against_mbsu, "no speed-up with MBSU"),
    "quality": ("Quality", quality, "no score and no perplexity"),
}
"""By key a title, what draws the figure (None if unmeasured), and why it is not there."""


def drawn(part: Part, records: Records) -> tuple[dict[str, Figure], dict[str, str]]:
    """Draws a part's figures; and the reasons for those missing, both by the figure's key."""
    made = {key: draw(part, records) for key, (_, draw, _) in FIGURES.items()}
    unread = "" if part.detailed else ", or these were not read"
    missing = {key: f"{FIGURES[key][2]}{unread}" for key, figure in made.items() if figure is None}
    return {key: figure for key, figure in made.items() if figure is not None}, missing
