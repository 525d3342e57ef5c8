"""Draws a figure's data: a grid of panels with one look, its legend, heading and note."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import pyplot

from spec_bench.report.data.rows import prompts_of, reason_of
from spec_bench.report.data.statistics import error_bars
from spec_bench.report.figures.drawing import Axis, Drawing, by_columns
from spec_bench.report.figures.sheet import PanelData, Series, Sheet
from spec_bench.report.figures.style import GREY, TWO_COLUMNS_INCHES
from spec_bench.report.figures.texts import fill, jobs
from spec_bench.report.figures.writing import write_texts
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.vocabulary.palette import MARKERS

_NARROW = 0.4  # width of an unmeasured column of panels


def draw_sheet(sheet: Sheet) -> Any:
    """A file of a figure, as matplotlib's figure."""
    drawing, count = sheet.drawing, max(map(len, sheet.grid))
    empty = [_unmeasured([line[i] for line in sheet.grid if i < len(line)]) for i in range(count)]
    width = TWO_COLUMNS_INCHES * by_columns(drawing.width, count) * (0.9 if any(empty) else 1)
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


def _unmeasured(panels: Sequence[PanelData]) -> bool:
    """Whether a column of panels is unmeasured, so that it only has the reason."""
    return all(not data.series and not data.panel.empty for data in panels)


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
    if isinstance(panel.guide, float):
        plot.axhline(panel.guide, color=GREY, linewidth=0.8, zorder=0)
    _scale(plot, "x", drawing.axis(panel.x), sheet.values(panel.x), data)
    _scale(plot, "y", drawing.axis(panel.y), sheet.values(panel.y), data)
    if places:
        turned = {"rotation": 40, "ha": "right"} if drawing.axis(panel.x).turned else {}
        plot.set_xticks(range(len(places)), places, **turned)
        plot.grid(axis="x", visible=not turned)
    if panel.guide == "diagonal":
        ticks = sheet.values(panel.x)
        plot.plot([ticks[0], ticks[-1]], [ticks[0], ticks[-1]], "--", color=GREY, linewidth=0.8)
        plot.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    if panel.legend and plot.get_legend_handles_labels()[0]:
        plot.legend(frameon=False, fontsize=drawing.legend_size)
    write_texts(plot, data.series)


def _draw_series(plot: Any, drawing: Drawing, series: Series, places: Sequence[str]) -> None:
    """A series' marks with their intervals, its lines, or its front."""
    layer, x, y = series.layer, series.x, series.y
    if layer.mark == "front":
        # Between two points of the front one gets the worse of both.
        steps = "pre" if drawing.axis(layer.x).better == "up" else "post"
        points = series.rows[x], series.rows[y]
        plot.step(*points, where=steps, color=series.look.colour, linewidth=layer.line)
        return
    line = "" if layer.mark == "point" else "--" if series.look.dashed else "-"
    for number, line_part in enumerate(series.lines() if line else [series]):
        bars = plot.errorbar(
            _moved(line_part, drawing.axis(layer.x), places),
            line_part.rows[y],
            xerr=error_bars(line_part.points(x)) if not places and line_part.has_ends(x) else None,
            yerr=error_bars(line_part.points(y)) if line_part.has_ends(y) else None,
            fmt=f"{series.look.marker if layer.size else ''}{line}",
            color=series.look.colour,
            alpha=layer.alpha,
            linewidth=layer.line,
            markersize=layer.size,
            elinewidth=layer.bar,
            capsize=layer.cap,
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


def _scale(plot: Any, side: str, axis: Axis, values: Sequence[float], data: PanelData) -> None:
    """Scale, ticks and limits of one axis."""
    ticks = getattr(plot, f"set_{side}ticks")
    if axis.log:
        getattr(plot, f"set_{side}scale")("log", base=2)
        ticks(values, [f"{value:g}" for value in values])
        plot.minorticks_off()
    if axis.ticks:
        ticks(axis.ticks)
    if axis.room is not None:
        marks = pd.concat([series.rows[getattr(series, side)] for series in data.series])
        room = axis.room * (marks.max() - marks.min()) or 0.1
        getattr(plot, f"set_{side}lim")(marks.min() - room, marks.max() + room)


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
        columns = int(by_columns(drawing.legend_columns, len(sheet.grid[0])))
        figure.legend(
            handles=entries,
            loc="outside upper center",
            ncols=min(columns, len(entries)),
            frameon=False,
            title=heading or None,
            title_fontsize=drawing.heading_size,
        )
    elif heading:
        figure.suptitle(heading, fontsize=drawing.heading_size)
    note = sheet.text(drawing.note, jobs=jobs(sheet.rows))
    if sheet.printed:
        note = f"{note} {sheet.text(drawing.note_printed, stand_in=_stand_in(sheet))}".rstrip()
    if prompts := prompts_of(sheet.rows):
        note = f"{note} {prompts[0].upper()}{prompts[1:]} a cell.".lstrip()
    figure.supxlabel(note, fontsize=6.5, x=0.01, ha="left", wrap=True)


def _stand_in(sheet: Sheet) -> str:
    """The sentence on the draft that the pair's stands in for; "" where it is the paper's."""
    config = pair_configs().get(sheet.text("{pair}"))
    if config is None or not config.stand_in:
        return ""
    return f"The draft stands in for {config.stand_in.partition(',')[0]}."


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
        elif layer.size:
            style |= {"marker": look.marker, "markersize": 4}
        handles.setdefault(each.label, pyplot.Line2D([], [], label=each.label, **style))
    shapes = {each.shape: each.look.marker for each in series if each.shape}
    order = sorted(shapes, key=lambda shape: MARKERS.index(shapes[shape]))
    grey = {"color": GREY, "linestyle": ""}
    return [
        *handles.values(),
        *(pyplot.Line2D([], [], marker=shapes[name], label=name, **grey) for name in order),
    ]
