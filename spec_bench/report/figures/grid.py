"""Draws a figure as a grid of panels: ``draw_panels(cells, "draft_calls", "mbsu", across="task")``.

The function ``draw`` draws one panel after the other. The heading, legend and note are added here
when all panels are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import compress, product
from textwrap import fill as wrap_text
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from spec_bench.report.claims.ask import Names, to_tuple
from spec_bench.report.data.rows import (
    TIMED,
    format_prompt_count,
    to_rows,
)
from spec_bench.report.data.splits import split_by_settings
from spec_bench.report.figures.cells import (
    GROUP,
    FigureCells,
    add_group_column,
    list_foreign_experiments,
)
from spec_bench.report.figures.panels import Axis as Axis
from spec_bench.report.figures.panels import Panel, filter_rows, pop_named
from spec_bench.report.figures.style import GREY, TWO_COLUMNS_INCHES, ReportFigure, fill_template
from spec_bench.report.papers.pairs import read_pair_configs
from spec_bench.settings.fields import format_suggestion
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.columns import define_all_column_names, select_must_match_columns
from spec_bench.vocabulary.decoders import MARKERS
from spec_bench.vocabulary.names import summarise_doubts

ALONE = "as printed"
"""The setting in file names and headings of figures that show only printed numbers."""
_LOST = "Hollow: the best of what could be read, others there are lost; x: all there are lost."
Grid = list[list[Panel]]


def draw_panels(
    cells: FigureCells,
    x: Names,
    y: Names,
    *,
    of: pd.DataFrame | None = None,
    paths_as_rows: bool = False,
    files: Names | None = None,
    together: Names = (),
    needs: Mapping[str, int] | None = None,
    **options: Any,
) -> Iterator[ReportFigure]:
    """Draws the cells that ``paper.yaml`` names for a figure; yields one figure per file.

    Args:
        cells: the argument of the figure's function.
        x: column of the horizontal axis; several columns make a column of panels each.
        y: column of the vertical axis; several columns make a column of panels each.
        of: rows to draw in place of the measured cells.
        paths_as_rows: whether cells without tree attention are drawn, too.
        files: columns; each combination of their values is a file. By default ``pair``.
        together: run settings that may differ within a file, besides those on axes.
        needs: column -> least number of different values; files with fewer are not drawn.
        options: all other arguments of ``draw_grid``.
    """
    if files is None:
        files = () if cells.item.together else "pair"
    keep = options.get("keep", {})
    if cells.alone:
        options["heading"] = "{pair}" if "pair" in to_tuple(files) else ""
        options["note"] = f"As printed in the tables of {cells.paper.title}; no intervals."
        needs = None
        parts = [(ALONE, cells.rows())] if of is None else []
    else:
        cell_rows = cells.rows(paths_as_rows) if of is None else of
        printed = cells.read_printed_numbers(cell_rows) if "pair" in cell_rows else pd.DataFrame()
        facets = (files, options.get("across", ()), options.get("down", ()), together, x, y)
        axes_names = {
            "pair",
            "task",
            *keep,
            *(name for names in facets for name in to_tuple(names)),
        }
        for name in {*to_tuple(x), *to_tuple(y)} - {*cell_rows, *define_all_column_names()}:
            if "." not in name:  # with a dot it is a column that figures add, such as cell.score
                raise UsageError(f"no column {name!r}{format_suggestion(name, [*cell_rows])}")
        if GROUP in axes_names:
            axes_names |= {column.name for column in select_must_match_columns(cell_rows)}
        options |= {"printed": printed, "cells": cells}
        parts = split_by_settings(cell_rows, axes_names)
    for setting, part in parts:
        for values in _list_value_combinations(
            filter_rows(part, keep), [n for n in to_tuple(files) if n in part]
        ):
            panel_rows = _select_equal_rows(part, values)
            filtered_rows = filter_rows(panel_rows, keep)
            if all(filtered_rows[name].nunique() >= count for name, count in (needs or {}).items()):
                figure = draw_grid(panel_rows, x, y, setting=setting, **options)
                if figure is not None:
                    yield figure


@dataclass(frozen=True)
class GridStyle:
    """Size of a grid of panels, and the texts around it."""

    width: float | Sequence[float] = 1.0  # in page widths; a sequence: by number of panel columns
    height: float = 2.4  # height of a row of panels, in inches
    rest: float = 0.9  # height of everything else, in inches
    share: str = ""  # "x", "y", "xy": common limits, labelled at the figure's edge only
    guide: float | None = None  # y of a grey line in each panel, such as plain decoding's
    side: str = ""  # text left of each row of panels, in place of the vertical axis's label
    setting: str = ""  # run settings that the figure's other files do not have
    heading: str = "{pair}"  # template, filled in from all rows that are plotted
    heading_size: float = 8  # font size of the heading
    # maximum; a sequence: by number of panel columns; 0: no legend
    legend_columns: int | Sequence[int] = 4
    note: str = ""  # text below the panels
    bars: str = "Bars: 95% intervals over prompts."  # text of the note if intervals are drawn


def draw_grid(
    rows: pd.DataFrame,
    x: Names,
    y: Names,
    *,
    draw: Callable[..., object] = Panel.series,
    ax: Any = None,
    cells: FigureCells | None = None,
    **options: Any,
) -> Any:
    """Draws rows as a grid of panels; returns the figure, None if nothing is plotted.

    Args:
        rows: rows with the columns of ``add_figure_columns``.
        x: column of the horizontal axis; several columns make a column of panels each.
        y: column of the vertical axis; several columns make a column of panels each.
        draw: function that draws a panel, called with the panel and all remaining options; by
            default ``Panel.series``.
        ax: matplotlib axes for the only panel; they are returned in place of a figure.
        cells: cells of a paper's figure; its note then names rows that the paper does not have.
        options: fields of ``GridStyle``, arguments of ``_lay_out_panels``, and options of
            ``draw``.
    """
    # faster, because rows are selected often
    rows = rows.astype(dict.fromkeys(rows.select_dtypes("str"), object))
    style = GridStyle(**pop_named(options, GridStyle.__dataclass_fields__))
    layout = pop_named(options, _LAYOUT)
    grid, missing = _lay_out_panels(rows, x, y, **layout)
    if not grid:
        return None
    panels = [panel for line in grid for panel in line]
    axes = wrap_single_axes(ax, [panel.title for panel in panels])
    if ax is None:
        figure, axes = _make_figure(len(grid), max(map(len, grid)), style)
    for down, across in np.ndindex(axes.shape):
        if across < len(grid[down]):
            panel = grid[down][across]
            panel.plot = axes[down, across]
            _draw_panel(panel, partial(draw, panel, **options), style.guide)
            _label_panel(grid, down, across, style.share, style.side)
        else:
            axes[down, across].set_axis_off()
    for panel in panels:  # after all are drawn, so that common axes fit all panels
        panel.set_lower_limits()
    if ax is not None:
        ax.legend(frameon=False)
        return ax
    drawn_rows = pd.concat([s.rows for p in panels for s in p.drawn if not s.printed])
    rows = panels[0].file_rows
    figure.rows = rows[rows.index.isin(drawn_rows.index)]
    figure.setting = style.setting
    figure.grid = grid
    figure.missing = tuple(dict.fromkeys([*missing, *_describe_foreign_rows(cells, figure.rows)]))
    _add_texts_around(figure, grid, style, by_line=len(layout.get("by_row", ())) > 1)
    return figure


def _make_figure(lines: int, columns: int, style: GridStyle) -> tuple[ReportFigure, Any]:
    """Makes an empty figure and its grid of axes."""
    inches = TWO_COLUMNS_INCHES * _pick_by_column_count(style.width, columns)
    size = (inches, style.height * lines + style.rest)
    figure = ReportFigure(size, layout="constrained")
    share = [name in style.share for name in "xy"]
    axes = figure.subplots(lines, columns, sharex=share[0], sharey=share[1], squeeze=False)
    return figure, axes


def _add_texts_around(figure: ReportFigure, grid: Grid, style: GridStyle, by_line: bool) -> None:
    """Adds the heading, the legend and the note to a figure when its panels are drawn."""
    panels = [panel for line in grid for panel in line]
    heading = ", ".join(filter(None, [fill_template(style.heading, figure.rows), style.setting]))
    max_columns = int(_pick_by_column_count(style.legend_columns, len(grid[0])))
    entries = _make_legend_entries(grid, by_line) if max_columns else []
    _add_heading_and_legend(figure, entries, max_columns, heading, style.heading_size)
    captions = [text for panel in panels for text in panel.captions]
    texts = [style.bars * _has_error_bars(figure), style.note, *captions]
    note = _format_note(figure, texts, panels)
    figure.supxlabel(note, fontsize=6.5, x=0.01, ha="left", wrap=True)


def _has_error_bars(figure: ReportFigure) -> bool:
    containers: list[Any] = [container for plot in figure.axes for container in plot.containers]
    return any(container.has_xerr or container.has_yerr for container in containers)


def _lay_out_panels(
    rows: pd.DataFrame,
    x: Names,
    y: Names,
    *,
    keep: Mapping[str, Any] = MappingProxyType({}),
    subject: Mapping[str, Any] = MappingProxyType({}),
    down: Names = (),
    across: Names = (),
    by_row: Sequence[Mapping[str, Any]] = ({},),
    by_column: Sequence[Mapping[str, Any]] = ({},),
    wrap: int | None = None,
    axes: Mapping[str, Axis] = MappingProxyType({}),
    title: str = "",
    printed: pd.DataFrame | None = None,
) -> tuple[Grid, list[str]]:
    """Lays out the panels with their rows; returns the grid, and for the note what was not measured
    or has doubtful times.

    Args:
        rows: all rows of the file.
        x: column of the horizontal axis; several columns make a column of panels each.
        y: column of the vertical axis; several columns make a column of panels each.
        keep: column -> value, list of values or "max": the rows that are drawn.
        subject: column -> values; a row of panels is left out if none of its rows has them.
        down: columns; each combination of their values is a row of panels. ``cell.group`` makes
            one of each group of comparable cells.
        across: columns; each combination of their values is a column of panels.
        by_row: arguments of ``Panel`` that differ by row of panels: x, y, title, keep, empty.
        by_column: arguments of ``Panel`` that differ by column of panels.
        wrap: maximum number of panels side by side.
        axes: column -> its look on an axis.
        title: template of the title above each panel.
        printed: the paper's numbers for the same pairs.
    """
    for name, names in (("x", x), ("y", y)):
        if not isinstance(names, str):
            by_column = [{name: each} for each in names]
    rows = add_group_column(filter_rows(rows, keep), x if isinstance(x, str) else "")
    grid: Grid = []
    for values, row in product(_list_value_combinations(rows, to_tuple(down)), by_row):
        line = []
        for column_values, column in product(
            _list_value_combinations(rows, to_tuple(across)), by_column
        ):
            panel_rows = _select_equal_rows(rows, {**values, **column_values})
            settings = {"x": x, "y": y, "title": title, **row, **column}
            settings["title"] = fill_template(settings["title"], panel_rows)
            settings["keep"] = {**keep, **row.get("keep", {}), **column.get("keep", {})}
            line.append(Panel(panel_rows, rows, axes=axes, printed=printed, **settings))
        if any(len(filter_rows(panel.drawable_rows, subject)) for panel in line):
            grid.append(line)
    grid, missing = _drop_empty_columns(grid, len(by_column))
    if TIMED & {name for line in grid for panel in line for name in (panel.x, panel.y)}:
        missing += [f"times in doubt, {doubt}" for doubt in summarise_doubts(to_rows(rows))]
    if wrap:
        panels = [panel for line in grid for panel in line]
        grid = [panels[start : start + wrap] for start in range(0, len(panels), wrap)]
    return grid, missing


_LAYOUT = signature(_lay_out_panels).parameters


def _drop_empty_columns(grid: Grid, block_width: int) -> tuple[Grid, list[str]]:
    """Drops the columns of panels without numbers; returns the grid and the reasons, as lines of
    the note. Columns of a block of ``block_width`` columns without any numbers are dropped without
    a reason.
    """
    blocks = {
        i // block_width
        for line in grid
        for i, panel in enumerate(line)
        if len(panel.drawable_rows)
    }
    is_kept = []
    reasons = []
    for place, column in enumerate(zip(*grid, strict=True)):
        is_kept.append(
            place // block_width in blocks and any(len(panel.drawable_rows) for panel in column)
        )
        if place // block_width in blocks and not is_kept[-1]:
            reasons.append(column[0].empty_reason)
    return [[*compress(line, is_kept)] for line in grid], reasons


def _describe_foreign_rows(cells: FigureCells | None, rows: pd.DataFrame) -> list[str]:
    """Describes the temperatures and experiments of rows that the paper's figure does not have."""
    if cells is None or "temperature" not in rows:
        return []
    foreign_temperatures = rows[~cells.mask_paper_temperatures(rows)].temperature.unique()
    notes = [
        f"measured at temperature {value:g}, which the paper has not"
        for value in foreign_temperatures
    ]
    recipes = " or ".join(cells.item.recipes)
    return [
        *notes,
        *(
            f"rows of {value}, not of {recipes}"
            for value in list_foreign_experiments(cells.item, rows)
        ),
    ]


def _list_value_combinations(rows: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Lists the combinations of values of some columns in order of occurrence; values of a single
    numeric column are ascending.
    """
    if not columns or rows.empty:
        return [] if rows.empty else [{}]
    values = rows[list(columns)].drop_duplicates()
    if len(columns) == 1 and pd.api.types.is_numeric_dtype(values[columns[0]]):
        values = values.sort_values(columns[0])
    return [{str(k): v for k, v in facet.items()} for facet in values.to_dict("records")]


def _select_equal_rows(rows: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """Selects the rows with these values."""
    mask = pd.Series(True, rows.index)
    for name, value in values.items():
        mask &= rows[name] == value
    return rows[mask]


def wrap_single_axes(ax: Any, titles: Sequence[str]) -> Any:
    """Wraps axes in a grid of one panel. Raises UsageError if there are several panels."""
    if ax is not None and len(titles) > 1:
        raise UsageError(f"ax takes one panel, and these rows make several: {', '.join(titles)}")
    return np.array([[ax]])


def _draw_panel(panel: Panel, draw: Callable[[], object], guide: float | None) -> None:
    """Draws a panel; if it has no numbers, writes the reason into it."""
    plot = panel.plot
    if panel.drawable_rows.empty:
        plot.set_axis_off()
        plot.text(
            0.5, 0.5, wrap_text(panel.empty_reason, 24),
            transform=plot.transAxes, ha="center", va="center", color=GREY,
        )  # fmt: skip
        return
    draw()
    if guide is not None:
        plot.axhline(guide, color=GREY, linewidth=0.8, zorder=0)
    panel.format_scales_and_ticks()
    panel.write_mark_texts()


def _label_panel(
    grid: Grid,
    row_index: int,
    column_index: int,
    share: str,
    side: str,
) -> None:
    """Writes a panel's title and axis labels; shared labels only at the edge of the figure."""
    panel = grid[row_index][column_index]
    plot = panel.plot
    if panel.title and not (plot.get_title() or plot.get_legend() or (row_index and side)):
        plot.set_title(panel.title)
    if not panel.drawn:
        return
    panels_below = [
        line[column_index] for line in grid[row_index + 1 :] if column_index < len(line)
    ]
    if "x" not in share or not panels_below:
        plot.set_xlabel(panel.format_axis_label(panel.x))
    has_panel_below = any(not panel_below.drawable_rows.empty for panel_below in panels_below)
    plot.tick_params(labelbottom="x" not in share or not has_panel_below)
    if side:
        plot.set_ylabel(fill_template(side, panel.rows) if column_index == 0 else "")
    elif "y" not in share or column_index == 0:
        plot.set_ylabel(panel.format_axis_label(panel.y))


def _add_heading_and_legend(
    figure: Any,
    entries: list[Line2D],
    max_columns: int,
    heading: str,
    size: float,
) -> None:
    """Adds the heading, and below it the legend of all panels with as many columns as fit."""
    if not entries:
        figure.suptitle(heading, fontsize=size)
    for columns in range(min(max_columns, len(entries)), 0, -1):
        legend = figure.legend(
            handles=entries, loc="outside upper center", ncols=columns, frameon=False,
            title=heading or None, title_fontsize=size,
        )  # fmt: skip
        if columns == 1 or legend.get_tightbbox().width <= figure.bbox.width:
            break
        legend.remove()  # too wide for the page: fewer columns


def _make_legend_entries(grid: Grid, row_by_row: bool) -> list[Line2D]:
    """Makes the legend's entries for colours and markers, with ``row_by_row`` ordered by row of
    panels.
    """
    lines = [[series_item for panel in line for series_item in panel.drawn] for line in grid]
    parts = lines if row_by_row else [[series_item for line in lines for series_item in line]]
    series = [
        series_item
        for part in parts
        for series_item in sorted(part, key=lambda item: item.look.series_index)
    ]
    handles: dict[str, Line2D] = {}
    for series_item in (item for item in series if item.label):
        marks = {candidate.mark for candidate in series if candidate.label == series_item.label}
        line = "" if marks == {"point"} else "--" if series_item.look.dashed else "-"
        handle = Line2D([], [], label=series_item.label, linestyle=line, **series_item.handle)
        handles.setdefault(series_item.label, handle)
    shapes = {
        series_item.shape: series_item.look.marker
        for series_item in series
        if series_item.label and series_item.shape
    }
    grey: dict[str, Any] = {"color": GREY, "linestyle": ""}
    for name in sorted(shapes, key=lambda shape: MARKERS.index(shapes[shape])):
        handles[f"shape {name}"] = Line2D([], [], marker=shapes[name], label=name, **grey)
    return [*handles.values()]


def _format_note(figure: ReportFigure, texts: Sequence[str], panels: Sequence[Panel]) -> str:
    """Formats the note below a figure; texts about lost numbers, prompts or stand-in drafts only if
    they apply.
    """
    rows = figure.rows
    has_lost = any(series.unreadable_x for panel in panels for series in panel.drawn)
    config = read_pair_configs().get(fill_template("{pair}", rows))
    draft = config.stand_in.partition(",")[0] if config and config.stand_in else ""
    stand_in = f"The draft stands in for {draft}." if draft else ""
    prompts = format_prompt_count(rows)
    notes = [*texts, _LOST * has_lost, f"{prompts} a cell." if prompts else ""]
    texts_filled = (
        fill_template(text, rows, stand_in=stand_in) for text in dict.fromkeys(notes) if text
    )
    missing = (f"{remark[0].upper()}{remark[1:]}." for remark in figure.missing)
    return "\n".join([" ".join(texts_filled), *missing])


def _pick_by_column_count(values: float | Sequence[float], columns: int) -> float:
    """Returns the value for a number of panel columns; the last value also
    holds for more columns.
    """
    choices = [values] if isinstance(values, int | float) else values
    return choices[min(columns, len(choices)) - 1]
