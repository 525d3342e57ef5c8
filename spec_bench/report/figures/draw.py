"""Draws a figure's data: panels with one look, texts at marks, legend, heading and note."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from spec_bench.report.data.rows import prompts_of, reason_of
from spec_bench.report.data.statistics import error_bars
from spec_bench.report.figures.panels import Axis, Drawing, PanelData, Series, Sheet
from spec_bench.report.figures.style import GREY, TWO_COLUMNS_INCHES
from spec_bench.report.figures.texts import fill, jobs, known
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.vocabulary.decoders import MARKERS

_NARROW = 0.4  # width of an unmeasured column of panels, which only has the reason
_MANY = 12  # more texts than this beside marks of one panel would hide each other: smaller ones
_SIDES = [(side, lift) for lift in (3, -3, 9, -9) for side in (1, -1)]
_WHITE = {"fontsize": 5.5, "color": "white", "weight": "bold", "zorder": 5}
_TEXTS: dict[str, dict[str, Any]] = {
    "inside": {**_WHITE, "ha": "center", "va": "center_baseline"},
    "below": {"xytext": (3, -9), "textcoords": "offset points", "fontsize": 6},
}


def draw_sheet(sheet: Sheet) -> Any:
    """A file of a figure, as matplotlib's figure."""
    drawing, count = sheet.drawing, max(map(len, sheet.grid))
    columns = [[line[i] for line in sheet.grid if i < len(line)] for i in range(count)]
    empty = [all(not each.series and not each.panel.empty for each in own) for own in columns]
    width = TWO_COLUMNS_INCHES * _by_columns(drawing.width, count) * (0.9 if any(empty) else 1)
    figure, axes = pyplot.subplots(
        len(sheet.grid),
        count,
        figsize=(width, drawing.height * len(sheet.grid) + drawing.rest),
        width_ratios=[_NARROW if each else 1.0 for each in empty],
        sharex="x" in drawing.share,
        sharey="y" in drawing.share,
        squeeze=False,
        layout="constrained",
    )
    for down, line in enumerate(sheet.grid):
        for across, plot in enumerate(axes[down]):
            if across < len(line):
                _draw_panel(plot, sheet, line[across])
                _label_panel(plot, sheet, down, across)
            else:
                plot.set_axis_off()
    _cut(sheet, axes)
    _surround(figure, sheet)
    return figure


def _draw_panel(plot: Any, sheet: Sheet, data: PanelData) -> None:
    """Everything within a panel."""
    drawing, panel = sheet.drawing, data.panel
    if band := data.band:
        plot.axhspan(*band, color=GREY, alpha=0.15, linewidth=0)
    if not data.series:
        _explain(plot, drawing, data)
        return
    places = sheet.places(panel.x)
    for series in data.series:
        _draw_series(plot, drawing, series, places)
    if panel.guide is not None:
        plot.axhline(panel.guide, color=GREY, linewidth=0.8, zorder=0)
    _scale(plot, "x", drawing.axis(panel.x), sheet.values(panel.x))
    _scale(plot, "y", drawing.axis(panel.y), sheet.values(panel.y))
    if places:
        turned = {"rotation": 40, "ha": "right"} if drawing.axis(panel.x).turned else {}
        plot.set_xticks(range(len(places)), places, **turned)
        plot.grid(axis="x", visible=not turned)
    if panel.finish is not None:
        panel.finish(plot, sheet, data)
    if panel.legend and plot.get_legend_handles_labels()[0]:
        plot.legend(frameon=False, fontsize=drawing.legend_size)
    _write_texts(plot, data.series)


def _draw_series(plot: Any, drawing: Drawing, series: Series, places: Sequence[str]) -> None:
    """A series' marks with their intervals, its lines, or its front."""
    layer, x, y = series.layer, series.x, series.y
    if layer.mark == "front":
        # Between two points of the front one gets the worse of both.
        steps = "pre" if drawing.axis(layer.x).better == "up" else "post"
        points = series.rows[x], series.rows[y]
        plot.step(*points, where=steps, color=series.look.colour, linewidth=layer.linewidth)
        return
    line = "" if layer.mark == "point" else "--" if series.look.dashed else "-"
    for number, line_part in enumerate(series.lines() if line else [series]):
        bars = plot.errorbar(
            _moved(line_part, drawing.axis(layer.x), places),
            line_part.rows[y],
            xerr=error_bars(line_part.points(x)) if not places and line_part.has_ends(x) else None,
            yerr=error_bars(line_part.points(y)) if line_part.has_ends(y) else None,
            fmt=f"{series.look.marker if layer.markersize else ''}{line}",
            color=series.look.colour,
            alpha=layer.alpha,
            linewidth=layer.linewidth,
            markersize=layer.markersize,
            elinewidth=layer.elinewidth,
            capsize=layer.capsize,
            label=series.label if series.label and not number else None,
            zorder=4 if layer.write and layer.at == "inside" else None,
        )
        for each in bars[2] if layer.faint is not None else ():
            each.set_alpha(layer.faint)


def _moved(series: Series, axis: Axis, places: Sequence[str]) -> Any:
    """The places of a series' marks along x, moved aside by the layer's ``dodge``."""
    rows, x, apart = series.rows, series.x, series.layer.dodge
    values = rows[x].map(lambda value: places.index(str(value))) if places else rows[x]
    if apart is None:
        return values
    return values * apart**series.look.aside if axis.log else values + apart * series.look.aside


def _scale(plot: Any, side: str, axis: Axis, values: Sequence[float]) -> None:
    """Scale and ticks of one axis."""
    ticks = getattr(plot, f"set_{side}ticks")
    if axis.log:
        getattr(plot, f"set_{side}scale")("log", base=2)
        ticks(values, [f"{value:g}" for value in values])
        plot.minorticks_off()
    if axis.ticks:
        ticks(axis.ticks)


def _cut(sheet: Sheet, plots: Any) -> None:
    """Sets lower limits, when all panels are drawn: common axes fit all of them."""
    for down, line in enumerate(sheet.grid):
        for across, data in enumerate(line):
            limits = sheet.drawing.axis(data.panel.x).low, sheet.drawing.axis(data.panel.y).low
            if data.series and limits != (None, None):
                plots[down][across].set(xlim=(limits[0], None), ylim=(limits[1], None))


def _explain(plot: Any, drawing: Drawing, data: PanelData) -> None:
    """Writes into an empty panel why it is empty."""
    panel = data.panel
    text = panel.empty
    if text:
        plot.set_yticks([])
    else:
        has_y = panel.y in data.rows and data.rows[panel.y].notna().any()
        missing = panel.x if has_y else panel.y
        reasons = [reason_of(row, missing) for _, row in data.rows.iterrows()]
        axis = drawing.axis(missing)
        text = f"{axis.label} not\nmeasured: {next(filter(None, reasons), 'no value')}{axis.hint}"
        plot.set_axis_off()
    plot.text(0.5, 0.5, text, transform=plot.transAxes, ha="center", va="center", color=GREY)


def _label_panel(plot: Any, sheet: Sheet, down: int, across: int) -> None:
    """Title and axes' labels; common axes and sides are labelled at the edge only."""
    drawing, data = sheet.drawing, sheet.grid[down][across]
    panel = data.panel
    if title := data.title if down == 0 or not drawing.side else "":
        above = any(layer.at == "above" and layer.write for layer in panel.drawn)
        plot.set_title(title, **({"pad": 10} if above else {}))
    if not data.series and not panel.empty:
        return
    if "x" not in drawing.share or down == len(sheet.grid) - 1:
        plot.set_xlabel(drawing.axis(data.shown(panel.x), panel.x).label)
    if drawing.side:
        plot.set_ylabel(fill(drawing.side, data.rows) if across == 0 else "")
    elif "y" not in drawing.share or across == 0:
        plot.set_ylabel(drawing.axis(data.shown(panel.y), panel.y).label)


def _surround(figure: Any, sheet: Sheet) -> None:
    """The legend of all panels, the heading above it and the note below."""
    drawing = sheet.drawing
    heading = ", ".join(filter(None, [sheet.text(drawing.heading), sheet.setting]))
    if entries := _entries(sheet):
        most = int(_by_columns(drawing.legend_columns, len(sheet.grid[0])))
        for columns in range(min(most, len(entries)), 0, -1):
            legend = figure.legend(
                handles=entries,
                loc="outside upper center",
                ncols=columns,
                frameon=False,
                title=heading or None,
                title_fontsize=drawing.heading_size,
            )
            if columns == 1 or legend.get_tightbbox().width <= figure.bbox.width:
                break
            legend.remove()  # too wide for the page: fewer columns
    elif heading:
        figure.suptitle(heading, fontsize=drawing.heading_size)
    note = sheet.text(drawing.note, jobs=jobs(sheet.rows))
    if sheet.printed:
        config = pair_configs().get(sheet.text("{pair}"))
        stand_in = config.stand_in.partition(",")[0] if config and config.stand_in else ""
        said = f"The draft stands in for {stand_in}." if stand_in else ""
        note = f"{note} {sheet.text(drawing.note_printed, stand_in=said)}".rstrip()
    if prompts := prompts_of(sheet.rows):
        note = f"{note} {prompts[0].upper()}{prompts[1:]} a cell.".lstrip()
    figure.supxlabel(note, fontsize=6.5, x=0.01, ha="left", wrap=True)


def _entries(sheet: Sheet) -> list[Any]:
    """The legend of colours and markers; none where panels have their own."""
    if any(data.panel.legend for data in sheet.panels):
        return []
    several = len(sheet.drawing.rows) > 1  # rows of panels with series of their own: one by one
    lines = [[each for data in line for each in data.series if each.label] for line in sheet.grid]
    series = [each for line in lines for each in line]
    parts = lines if several else [series]
    handles: dict[str, Any] = {}
    for each in (one for part in parts for one in sorted(part, key=lambda one: one.look.index)):
        layer, look = each.layer, each.look
        same = [other.layer.mark for other in series if other.label == each.label]
        line = "" if set(same) == {"point"} else "--" if look.dashed else "-"
        style = {"color": GREY if layer.printed else look.colour, "linestyle": line}
        if layer.marker:
            style["marker"] = "o"
        elif layer.markersize:
            style |= {"marker": look.marker, "markersize": 4}
        handles.setdefault(each.label, pyplot.Line2D([], [], label=each.label, **style))
    shapes = {each.shape: each.look.marker for each in series if each.shape}
    order = sorted(shapes, key=lambda shape: MARKERS.index(shapes[shape]))
    grey = {"color": GREY, "linestyle": ""}
    return [
        *handles.values(),
        *(pyplot.Line2D([], [], marker=shapes[name], label=name, **grey) for name in order),
    ]


def _by_columns(values: float | Sequence[float], columns: int) -> float:
    """The value for so many columns of panels; the last holds for more."""
    several = [values] if isinstance(values, int | float) else values
    return several[min(columns, len(several)) - 1]


class _Mark(NamedTuple):
    """A mark's row in the file, its place, and its text."""

    row: int
    x: float
    y: float
    text: str


def _write_texts(plot: Any, series: Sequence[Series]) -> None:
    """Writes the texts of a panel's layers at their marks."""
    for each in series:
        layer = each.layer
        if layer.write and layer.at == "above":
            text = "front: " + ", ".join(mark.text for mark in _marks(each))
            place = {"xy": (0.01, 1.0), "xycoords": "axes fraction"}
            plot.annotate(text, **place, fontsize=5.5, color=each.look.colour)
        elif layer.write and layer.at in _TEXTS:
            for mark in _marks(each):
                plot.annotate(mark.text, (mark.x, mark.y), **_TEXTS[layer.at])
    beside = [each for each in series if each.layer.write and each.layer.at == "beside"]
    if marks := sorted(mark for each in beside for mark in _marks(each)):
        _write_beside(plot, marks)


def _marks(series: Series) -> list[_Mark]:
    """A series' marks with their places and texts."""
    labels = []
    for index, (_, row) in enumerate(series.rows.iterrows()):
        if known(series.layer.write, row):
            text = fill(series.layer.write, series.rows.iloc[[index]])
            place = float(row[series.x]), float(row[series.y])
            labels.append(_Mark(int(series.rows.index[index]), *place, text))
    return labels


def _write_beside(plot: Any, marks: Sequence[_Mark]) -> None:
    """Writes each text beside its mark, on the side where most room is left.

    Room is the distance to marks and texts, in sizes of the text; none is beyond the panel's edges.
    """
    size = 5.5 if len(marks) > _MANY else 6.5
    plot.figure.draw_without_rendering()  # lays out the axes, so that places on paper are known
    places = plot.transData.transform([(mark.x, mark.y) for mark in marks]) * 72 / plot.figure.dpi
    taken = [(float(x), float(y)) for x, y in places]
    first, last = (float(edge) * 72 / plot.figure.dpi for edge in (plot.bbox.x0, plot.bbox.x1))
    for mark, (x, y) in zip(marks, places, strict=True):
        width = 0.6 * size * len(mark.text)
        best = (-inf, (0.0, 0.0), 1, 0)
        for side, lift in _SIDES:
            middle = x + side * (5 + width / 2), y + lift
            gaps = [max(abs(middle[0] - a) / width, abs(middle[1] - b) / size) for a, b in taken]
            inside = first <= middle[0] - width / 2 <= middle[0] + width / 2 <= last
            room = min(0.8, *gaps) if inside else -1.0  # more room than this is no better
            if room > best[0]:
                best = (room, middle, side, lift)
        _, middle, side, lift = best
        taken.append(middle)
        plot.annotate(
            mark.text,
            (mark.x, mark.y),
            textcoords="offset points",
            xytext=(side * 5, lift),
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=size,
        )
