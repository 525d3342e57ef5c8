"""Tables of what is measured or made up, and what a figure plots, as numbers."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from spec_bench.report.data.rows import read_rows
from spec_bench.report.figures import NothingMeasuredError, draw_item_figures, name_figure_files
from spec_bench.report.figures.cells import add_figure_columns
from spec_bench.report.figures.grid import draw_grid
from spec_bench.report.figures.panels import DrawnSeries, Panel
from spec_bench.report.figures.style import figure_settings_applied
from spec_bench.report.page.build import list_page_figures_by_pair
from spec_bench.report.papers.paper import (
    find_recipes_by_folder,
    get_figure,
    get_table,
    load_paper,
)
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.report.tables.printed import PLACE, RequestedCell, TableSheet
from spec_bench.report.tables.render import format_table_markdown
from spec_bench.system.files import list_results_files

EMBEDDED = Path(__file__).resolve().parents[2] / "results" / "embedded"


def table(name, folder, pair=None):
    return build_table(get_table(name), MeasuredRows(read_rows(list_results_files(folder))), pair)


def line_of(grid, *labels):
    """The first line of the table that begins with these labels."""
    start = "| " + " | ".join(labels) + " |"
    return next(line for line in format_table_markdown(grid).splitlines() if line.startswith(start))


def place(printed="", **more):
    """A place with what the paper prints there and what was measured; it asks for a cell."""
    asked = (RequestedCell("", "", "", ""),)
    return {"printed": printed, "requests": asked, "papers": True, **more}


def sheet(lines, columns, title, heads, name="a/1", **more):
    """A table of lines, each its labels, its block and its places."""
    columns = tuple(replace(column, name=column.name or str(n)) for n, column in enumerate(columns))
    places = [
        {**PLACE, "line": line, "labels": labels, "block": block, "column": column.name, **place}
        for line, (labels, block, own) in enumerate(lines)
        for column, place in zip(columns, own, strict=True)
    ]
    return TableSheet(name, title, heads, columns, places, **more)


def measured_places(grid):
    """The measured places of a table."""
    return [place for place in grid.places if place["ours"]]


class Series(NamedTuple):
    """What a panel draws in one colour."""

    panel: Panel
    drawn: DrawnSeries

    def __getattr__(self, name):
        return getattr(self.drawn, name)

    def points(self, column):
        """(value, low, high) of a column, rounded."""
        nothing = pd.Series(float("nan"), self.rows.index)
        ends = (self.rows.get(f"{column}{end}", nothing) for end in ("_low", "_high"))
        return list(zip(self.rows[column], *ends, strict=True))


def figure_of(name, rows):
    """A paper's figure of rows that make one file."""
    (figure,) = draw_item_figures(get_figure(name), rows)
    return figure


def figure_from(rows, x, y, said=None, /, **look):
    return draw_grid(add_figure_columns(rows), x, y, **(said or {}), **look)


def panels(figure):
    return [panel for line in figure.grid for panel in line]


def all_series(*panels):
    return [Series(panel, each) for panel in panels for each in panel.drawn]


def series_of(panel, decoder):
    return [series for series in all_series(panel) if (series.rows.decoder == decoder).all()]


def points(series):
    """(x, y) in the order drawn, rounded."""
    pairs = zip(series.rows[series.panel.x], series.rows[series.panel.y], strict=True)
    return [(x if isinstance(x, str) else round(float(x), 6), round(float(y), 6)) for x, y in pairs]


@functools.cache
def committed_figures(experiment, **more):
    """What ``report all`` draws of a committed experiment with more columns, by the file's name."""
    rows = read_rows([EMBEDDED / experiment / "results.csv"]).assign(**more)
    found, paper = {}, load_paper(find_recipes_by_folder()[experiment].partition("=")[0])
    items = [item for item in paper.items if experiment in item.experiments]
    for each in list_page_figures_by_pair(paper, items, MeasuredRows(rows)):
        try:
            with figure_settings_applied():
                drawn = draw_item_figures(each.item, rows[rows.pair.isin(each.pairs)])
        except NothingMeasuredError:
            continue
        found.update(zip(name_figure_files(each.item, drawn), drawn, strict=True))
    return found
