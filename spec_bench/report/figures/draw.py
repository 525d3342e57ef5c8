"""Draws a figure's data: panels with one look, texts at marks, legend, heading and note."""

from collections.abc import Sequence
from math import inf
from textwrap import fill as wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from spec_bench.report.data.rows import error_bars, format_prompt_count
from spec_bench.report.figures.panels import FigureSheet, Panel, PlotSeries
from spec_bench.report.figures.style import (
    GREY,
    TWO_COLUMNS_INCHES,
    ReportFigure,
    fill,
    has_named_values,
)
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.decoders import MARKERS

_MANY = 12  # more texts than this beside marks of one panel would hide each other: smaller ones
_SIDES = [(side, lift) for lift in (3, -3, 9, -9) for side in (1, -1)]
_Mark = tuple[int, float, float, str]
"""A mark's row in the file, its place, and its text."""


def draw_sheet(sheet: FigureSheet, ax: Any = None) -> Any:
    """Returns a file of a figure, as matplotlib's figure; its only panel on ``ax``, if given."""
    drawing = sheet.drawing
    grid = sheet.grid
    count = max(map(len, grid))
    axes = check_single(ax, [panel.title for panel in sheet.panels])
    if ax is None:
        width = TWO_COLUMNS_INCHES * _pick_by_column_count(drawing.width, count)
        size = (width, drawing.height * len(grid) + drawing.rest)
        figure = ReportFigure(size, layout="constrained")
        axes = figure.subplots(
            len(grid),
            count,
            sharex="x" in drawing.share,
            sharey="y" in drawing.share,
            squeeze=False,
        )
    for down, line in enumerate(grid):
        for across, plot in enumerate(axes[down]):
            if across < len(line):
                _draw_panel(plot, sheet, line[across])
                _label_panel(plot, sheet, down, across)
            else:
                plot.set_axis_off()
    for plots, line in zip(axes, grid, strict=True):  # when all are drawn: common axes fit all
        for plot, panel in zip(plots, line, strict=False):
            limits = [drawing.axis(column).low for column in (panel.said.x, panel.said.y)]
            if panel.series and any(low is not None for low in limits):
                plot.set(xlim=(limits[0], None), ylim=(limits[1], None))
    if ax is not None:
        ax.legend(frameon=False)
        return ax
    _surround(figure, sheet)
    return figure


def check_single(ax: Any, titles: Sequence[str]) -> Any:
    """Returns axes as a grid. Raises ValueError: they are to hold several panels."""
    if ax is not None and len(titles) > 1:
        raise UsageError(f"ax takes one panel, and these rows make several: {', '.join(titles)}")
    return np.array([[ax]])


def _draw_panel(plot: Any, sheet: FigureSheet, panel: Panel) -> None:
    said = panel.said
    if band := panel.band:
        plot.axhspan(*band, color=GREY, alpha=0.15, linewidth=0)
    if not panel.series:
        plot.set_axis_off()
        where = {"transform": plot.transAxes, "ha": "center", "va": "center", "color": GREY}
        plot.text(0.5, 0.5, wrap(panel.reason, 24), **where)
        return
    places = sheet.places(said.x)
    for series in panel.series:
        _draw_series(plot, series, places)
    if said.guide is not None:
        plot.axhline(said.guide, color=GREY, linewidth=0.8, zorder=0)
    for side, column in (("x", said.x), ("y", said.y)):
        axis = said.axis(column)
        ticks = getattr(plot, f"set_{side}ticks")
        if axis.log:
            values = sheet.values(column)
            getattr(plot, f"set_{side}scale")("log", base=2)
            ticks(values, [f"{value:g}" for value in values])
            plot.minorticks_off()
        if axis.ticks:
            ticks(axis.ticks)
    if places:
        plot.set_xticks(range(len(places)), places)
    if said.finish is not None:
        said.finish(plot, sheet, panel)
    if said.legend and plot.get_legend_handles_labels()[0]:  # above: inside it may hide bars
        plot.legend(loc="lower left", bbox_to_anchor=(0, 1), title=panel.title, frameon=False)
    beside: list[_Mark] = []
    for series in panel.series:
        layer = series.layer
        marks = _marks(series)
        if layer.write and layer.at == "above":
            text = "front: " + ", ".join(text for *_, text in marks)
            place = {"xy": (0.01, 1.0), "xycoords": "axes fraction"}
            plot.annotate(text, **place, fontsize=5.5, color=series.look.colour)
        else:
            beside += marks
    if beside:
        _write_beside(plot, sorted(beside))


def _draw_series(plot: Any, series: PlotSeries, places: Sequence[str]) -> None:
    """A series' marks with their intervals, its lines, or its front."""
    layer = series.layer
    look = series.look
    x = layer.x
    y = layer.y
    axis = layer.axis(layer.x)
    if layer.mark == "front":
        # Between two points of the front one gets the worse of both.
        steps = "pre" if axis.better == "up" else "post"
        style = {"where": steps, "color": look.colour, "linewidth": layer.linewidth}
        plot.step(series.rows[x], series.rows[y], **style)
        return

    def across(values: pd.Series) -> pd.Series:
        at = values.map(lambda value: places.index(str(value))) if places else values
        if (apart := layer.dodge) is None:
            return at
        return at * apart**look.aside if axis.log else at + apart * look.aside

    line = "" if layer.mark == "point" else "--" if look.dashed else "-"
    for number, part in enumerate(series.lines() if line else [series]):
        bars = plot.errorbar(
            across(part.rows[x]),
            part.rows[y],
            xerr=None if places else _bars(part, x),
            yerr=_bars(part, y),
            fmt=f"{look.marker if layer.markersize else ''}{line}",
            color=look.colour,
            markerfacecolor="none" if layer.printed else None,
            alpha=layer.alpha,
            linewidth=layer.linewidth,
            markersize=layer.markersize,
            elinewidth=layer.elinewidth,
            capsize=layer.capsize,
            label=series.label if series.label and not number else None,
        )
        for each in bars[2] if layer.faint is not None else ():
            each.set_alpha(layer.faint)
    if series.lost:
        style = {"color": look.colour, "markerfacecolor": "white", "zorder": 4}
        best = series.rows[series.rows[x].isin(series.lost)]
        plot.plot(across(best[x]), best[y], look.marker, markersize=layer.markersize or 4, **style)
        gone = pd.Series([at for at in series.lost if at not in set(best[x])])
        plot.plot(
            across(gone), [0.05] * len(gone), "x", transform=plot.get_xaxis_transform(), **style
        )


def _bars(series: PlotSeries, column: str) -> NDArray[np.float64] | None:
    """Returns the lengths of error bars; None where no row knows its interval."""
    points = series.points(column)
    return error_bars(points) if any(not pd.isna(low) for _, low, _ in points) else None


def _label_panel(plot: Any, sheet: FigureSheet, down: int, across: int) -> None:
    """Title and axes' labels; common axes and sides are labelled at the edge only."""
    drawing = sheet.drawing
    panel = sheet.grid[down][across]
    said = panel.said
    if title := panel.title if not (said.legend or (down and drawing.side)) else "":
        above = any(layer.at == "above" and layer.write for layer in said.drawn)
        plot.set_title(title, **({"pad": 10} if above else {}))
    if not panel.series:
        return
    below = [line[across] for line in sheet.grid[down + 1 :] if across < len(line)]
    if "x" not in drawing.share or not below:
        plot.set_xlabel(panel.label(said.x))
    plot.tick_params(labelbottom="x" not in drawing.share or not any(e.series for e in below))
    if drawing.side:
        plot.set_ylabel(fill(drawing.side, panel.rows) if across == 0 else "")
    elif "y" not in drawing.share or across == 0:
        plot.set_ylabel(panel.label(said.y))


def _surround(figure: Any, sheet: FigureSheet) -> None:
    """The legend of all panels, the heading above it and the note below."""
    drawing = sheet.drawing
    heading = ", ".join(filter(None, [sheet.text(drawing.heading), sheet.setting]))
    if entries := _entries(sheet):
        most = int(_pick_by_column_count(drawing.legend_columns, len(sheet.grid[0])))
        for columns in range(min(most, len(entries)), 0, -1):
            legend = figure.legend(
                handles=entries, loc="outside upper center", ncols=columns, frameon=False,
                title=heading or None, title_fontsize=drawing.heading_size,
            )  # fmt: skip
            if columns == 1 or legend.get_tightbbox().width <= figure.bbox.width:
                break
            legend.remove()  # too wide for the page: fewer columns
    elif heading:
        figure.suptitle(heading, fontsize=drawing.heading_size)
    figure.supxlabel(_note(figure, sheet), fontsize=6.5, x=0.01, ha="left", wrap=True)


def _note(figure: Any, sheet: FigureSheet) -> str:
    """What is said below a figure, of all that it might show only what it does."""
    drawing = sheet.drawing
    bars = [each.has_xerr or each.has_yerr for plot in figure.axes for each in plot.containers]
    said = [drawing.bars * any(bars), drawing.note, *(e.layer.caption for e in sheet.series)]
    said += ["Grey band: AR's own interval."] * any(panel.band for panel in sheet.panels)
    if any(each.lost for each in sheet.series):
        said.append(
            "Hollow: the best of what could be read, others there are lost; x: all there are lost."
        )
    config = pair_configs().get(sheet.text("{pair}"))
    draft = config.stand_in.partition(",")[0] if config and config.stand_in else ""
    stand_in = f"The draft stands in for {draft}." if draft else ""
    if prompts := format_prompt_count(sheet.rows):
        said.append(f"{prompts} a cell.")
    texts = (sheet.text(text, stand_in=stand_in) for text in dict.fromkeys(said) if text)
    return "\n".join(
        [" ".join(texts), *(f"{each[0].upper()}{each[1:]}." for each in sheet.missing)]
    )


def _entries(sheet: FigureSheet) -> list[Any]:
    """Returns the legend of colours and markers; none where panels have their own."""
    if any(panel.said.legend for panel in sheet.panels):
        return []
    parts = [sheet.series]
    if len(sheet.drawing.rows) > 1:  # rows of panels with series of their own: one by one
        parts = [[each for panel in line for each in panel.series] for line in sheet.grid]
    series = [each for part in parts for each in sorted(part, key=lambda one: one.look.index)]
    handles: dict[str, Any] = {}
    for each in (one for one in series if one.label):
        layer = each.layer
        look = each.look
        same = [other.layer.mark for other in series if other.label == each.label]
        line = "" if set(same) == {"point"} else "--" if look.dashed else "-"
        style: dict[str, Any] = {"color": GREY if layer.printed else look.colour, "linestyle": line}
        if layer.marker:
            style["marker"] = "o"
        elif layer.markersize:
            style |= {"marker": look.marker, "markersize": 4}
        if layer.printed:
            style["markerfacecolor"] = "none"
        handles.setdefault(each.label, Line2D([], [], label=each.label, **style))
    shapes = {each.shape: each.look.marker for each in series if each.label and each.shape}
    grey: dict[str, Any] = {"color": GREY, "linestyle": ""}
    for name in sorted(shapes, key=lambda shape: MARKERS.index(shapes[shape])):
        handles[f"shape {name}"] = Line2D([], [], marker=shapes[name], label=name, **grey)
    return [*handles.values()]


def _pick_by_column_count(values: float | Sequence[float], columns: int) -> float:
    """Returns the value for so many columns of panels; the last holds for more."""
    several = [values] if isinstance(values, int | float) else values
    return several[min(columns, len(several)) - 1]


def _marks(series: PlotSeries) -> list[_Mark]:
    found = []
    rows = series.rows
    layer = series.layer
    for index, (_, row) in enumerate(rows.iterrows() if layer.write else ()):
        text = fill(layer.write, rows.iloc[[index]])
        if text and has_named_values(layer.write, row):
            found.append((int(rows.index[index]), float(row[layer.x]), float(row[layer.y]), text))
    return found


def _write_beside(plot: Any, marks: Sequence[_Mark]) -> None:
    """Writes each text beside its mark, on the side where most room is left.

    Room is the distance to marks and texts, in sizes of the text; none is beyond the panel's edges.
    """
    size = 5.5 if len(marks) > _MANY else 6.5
    plot.figure.draw_without_rendering()  # lays out the axes, so that places on paper are known
    places = plot.transData.transform([(x, y) for _, x, y, _ in marks]) * 72 / plot.figure.dpi
    taken = [(float(x), float(y)) for x, y in places]
    first, last = (float(edge) * 72 / plot.figure.dpi for edge in (plot.bbox.x0, plot.bbox.x1))
    for (_, *at, text), (x, y) in zip(marks, places, strict=True):
        width = 0.6 * size * len(text)
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
            text, at, textcoords="offset points", xytext=(side * 5, lift),
            ha="left" if side > 0 else "right", va="center", fontsize=size,
        )  # fmt: skip
