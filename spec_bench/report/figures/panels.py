"""A figure as data: ``panels(cells, "draft_calls", "block_efficiency", across="task")``.

A figure is a grid of panels, a panel has layers, a layer is one way of drawing some rows. What is
said of the figure holds for its panels and what is said of a panel for its layers, unless these say
otherwise; a layer's ``keep`` adds to that of its panel. Columns are those of ``results.csv`` and
those of ``cells``, such as ``tree.depth`` and ``cell.score``. Texts may name columns in braces
(``style``). Nothing is drawn here: the sheets, one for each file, can be read as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import compress, product
from typing import Any, Literal

import pandas as pd

from spec_bench.report.claims.ask import Names, several
from spec_bench.report.claims.contrast import correlation
from spec_bench.report.data.rows import TIMED, get_reason, split, to_rows
from spec_bench.report.figures.cells import (
    GROUP,
    LOST,
    SCORE,
    SCORE_NAME,
    FigureCells,
    add_group_column,
    elsewhere,
)
from spec_bench.report.figures.style import SeriesStyle, assign_styles, fill, shapes
from spec_bench.settings.fields import suggest, unknown_setting
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.columns import ENDS, find_column, header, run_columns
from spec_bench.vocabulary.names import summarise_doubts

_MARKS = ("line", "point", "front")
_ASKED = ["pair", "task"]  # printed and measured alike
_SAMPLING = ["temperature", "top_k", "top_p"]  # likewise, where it is printed
ALONE = "as printed"
"""The setting in the names and headings of figures of the printed numbers."""
_OF_A_LINE = ("draft",)  # and the settings of runs: cells that differ are of two lines


@dataclass(frozen=True)
class Axis:
    """The look of a column on an axis."""

    label: str | None = None  # by default the column's title, with its unit if it is a rate
    log: bool = False  # base 2, with a tick at each value
    ticks: tuple[float, ...] = ()  # none: matplotlib's choice
    low: float | None = None  # lower limit
    better: Literal["up", "down"] | None = None  # for a Pareto front; by default the column's
    hint: str = ""  # how to measure the column; said where it has no numbers


@dataclass(frozen=True)
class Drawing:
    """A figure, or with its changes one panel of it, or one layer of a panel."""

    # A layer: every value of ``hue`` is a series.
    x: str = ""
    y: str = ""
    keep: Mapping[str, Any] = field(default_factory=dict)  # column -> value, values; "max"
    printed: bool = False  # the paper's numbers, beside rows of the same pair, task and sampling
    best: str | None = None  # of a series' rows at one x that with the most of this; "y": of y
    over: str | None = None  # y divided by this decoder's, taken as known without error
    hue: Names = "decoder"  # columns whose values get a colour each
    marker: str | None = None  # column whose values get a marker each; by default hue's
    mark: Literal["line", "point", "front"] = "point"  # front: the Pareto front as steps
    order: str | None = None  # column along which a line goes; by default x
    dodge: float | None = None  # how far apart series stand; a factor on a logarithmic axis
    label: str | None = None  # of a colour in the legend; "": it is not listed
    shape: str = ""  # of a marker in the legend, where ``marker`` is given
    names: Mapping[str, str] = field(default_factory=dict)  # hue's value -> how it is written
    colours: Mapping[str, str] | float = field(default_factory=dict)  # a number: dark to light
    markers: Mapping[str, str] | str = field(default_factory=dict)  # one: of all
    dashed: bool | Sequence[str] = False  # or the values of hue whose lines are
    markersize: float = 4.0  # 0: a line without marks
    linewidth: float = 1.2
    elinewidth: float = 0.6
    capsize: float = 0.0
    alpha: float | None = None  # of marks and lines
    faint: float | None = None  # opacity of the error bars
    write: str = ""  # at each mark; left out where its column has no value
    at: Literal["beside", "above"] = "beside"  # above: all over the panel
    caption: str = ""  # added to the note where the layer is drawn
    # A panel.
    title: str = ""  # where the figure has a ``side``, above the top panels only
    legend: bool = False
    guide: float | None = None  # a grey line at this height
    band: bool = False  # the interval of the decoder that ``over`` names, in grey
    empty: str = ""  # where nothing is drawn; by default why it was not measured
    finish: Callable[[Any, FigureSheet, Panel], None] | None = None  # draws more, before the texts
    # What differs by layer; a row of panels without anything of the first one is left out.
    layers: Sequence[Mapping[str, Any]] = ({},)
    # The figure.
    files: Names = "pair"  # every combination of these columns' values is a file
    down: Names = ()  # its values are rows of panels; ``cell.group``: comparable cells
    across: Names = ()  # their combinations are columns of panels
    rows: Sequence[Mapping[str, Any]] = ({},)  # what differs by row of panels
    columns: Sequence[Mapping[str, Any]] = ({},)  # and by column
    wrap: int | None = None  # so many panels side by side at most
    share: str = ""  # "x", "y", "xy": common limits, labelled at the figure's edge only
    side: str = ""  # text left of each row of panels, in place of the vertical axis's label
    axes: Mapping[str, Axis] = field(default_factory=dict)
    needs: Mapping[str, int] = field(default_factory=dict)  # column -> how many values a file has
    width: float | Sequence[float] = 1.0  # in widths of a page; several: by columns of panels
    height: float = 2.4  # of a row of panels, in inches
    rest: float = 0.9  # height of all else, in inches
    heading: str = "{pair}"
    heading_size: float = 8
    legend_columns: int | Sequence[int] = 4  # at most; several: by columns of panels
    note: str = ""
    bars: str = "Bars: 95% intervals over prompts."  # added where some are drawn

    def __post_init__(self) -> None:
        if self.mark not in _MARKS:
            raise UsageError(f"mark must be one of {', '.join(_MARKS)}, got {self.mark!r}")

    def with_changes(self, changes: Mapping[str, Any]) -> Drawing:
        """Returns a panel of the figure, or a layer of the panel."""
        keep = {**self.keep, **changes.get("keep", {})}
        return replace(self, **_check_fields({**changes, "keep": keep}))

    @cached_property
    def drawn(self) -> list[Drawing]:
        """A panel's layers, bottom to top."""
        return [self.with_changes(layer) for layer in self.layers]

    @property
    def all_layers(self) -> list[Drawing]:
        """The layers of all panels."""
        places = product(self.rows, self.columns)
        return [
            layer
            for row, column in places
            for layer in self.with_changes(row).with_changes(column).drawn
        ]

    @property
    def hues(self) -> tuple[str, ...]:
        """The columns of ``hue``."""
        return several(self.hue)

    def axis(self, column: str, asked: str = "") -> Axis:
        """Returns the axis of a column, with its label and direction filled in."""
        given = self.axes.get(column) or self.axes.get(asked) or Axis()
        known = find_column(column)
        title, better = (known.title, known.better) if known else (column.rpartition(".")[2], None)
        if known and "/" in known.unit and known.unit not in title:
            title = f"{title} ({known.unit})"
        label = title if given.label is None else given.label
        return replace(given, label=label, better=given.better or better or "up")


@dataclass(frozen=True)
class PlotSeries:
    """The cells that one layer plots in one colour, in the order of the line."""

    layer: Drawing
    rows: pd.DataFrame
    look: SeriesStyle
    label: str  # in a legend; "": in none
    shape: str = ""  # its marker's label, in a legend
    lost: tuple[float, ...] = ()  # where along x a number of the paper's could not be read

    def points(self, column: str) -> list[tuple[float, float, float]]:
        """(value, low, high) of x or y; the ends are NaN where they are not known."""
        nothing = pd.Series(float("nan"), self.rows.index)
        low, high = (self.rows.get(f"{column}{end}", nothing) for end in ENDS)
        return list(zip(self.rows[column], low, high, strict=True))

    def lines(self) -> list[PlotSeries]:
        """Returns the series by its lines: cells of one differ in nothing but x and ``order``."""
        apart = [*(each.name for each in run_columns(self.rows)), *_OF_A_LINE]
        along = (self.layer.x, self.layer.order)
        others = [name for name in apart if name in self.rows and name not in along]
        names = [name for name in others if self.rows[name].nunique(dropna=False) > 1]
        if not names:
            return [self]
        parts = self.rows.groupby(names, sort=False, dropna=False)
        return [replace(self, rows=part) for _, part in parts]


@dataclass(frozen=True)
class Panel:
    """The data of one panel."""

    said: Drawing
    rows: pd.DataFrame  # all cells of its place, plotted or not
    series: tuple[PlotSeries, ...] = ()  # in the order drawn

    @property
    def title(self) -> str:
        """The text above it."""
        return fill(self.said.title, self.rows, self.said.names)

    @property
    def has_subject(self) -> bool:
        """Whether it plots its first layer, the figure's subject."""
        return any(series.layer is self.said.drawn[0] for series in self.series)

    def label(self, column: str) -> str | None:
        """Returns an axis's label: ``cell.score`` is one of the scores."""
        names = self.rows[SCORE_NAME].dropna().unique() if SCORE_NAME in self.rows else []
        real = str(names[0]) if column == SCORE and len(names) == 1 else column
        return self.said.axis(real, column).label

    @property
    def reason(self) -> str:
        """Why it plots nothing."""
        said = self.said
        rows = self.rows
        has_y = said.y in rows and rows[said.y].notna().any()
        missing = said.x if has_y else said.y
        reasons = [get_reason(row, missing) for row in to_rows(rows)]
        axis = said.axis(missing)
        why = next(filter(None, reasons), "no value")
        return said.empty or f"{axis.label} not measured: {why}{axis.hint}"

    @property
    def band(self) -> tuple[float, float] | None:
        """The interval of the decoder that all is relative to; None where there is none."""
        base = _first_row(self.rows, self.said.over)
        y = self.said.y
        if not self.said.band or base is None or y not in base or not base[y]:
            return None
        low, high = (base[f"{y}{end}"] / base[y] for end in ENDS)
        return None if pd.isna(low) or pd.isna(high) else (float(low), float(high))


@dataclass(frozen=True)
class FigureSheet:
    """One file of a figure."""

    drawing: Drawing
    grid: list[list[Panel]]  # rows of panels, top to bottom
    rows: pd.DataFrame = field(repr=False)  # all cells that are plotted
    setting: str = ""  # that the figure's other files lack; "" without other files
    missing: tuple[str, ...] = ()  # what was not measured, and why, of columns that are left out

    @property
    def panels(self) -> list[Panel]:
        """All panels, row by row."""
        return [panel for line in self.grid for panel in line]

    @property
    def series(self) -> list[PlotSeries]:
        """Those of all panels."""
        return [series for panel in self.panels for series in panel.series]

    def values(self, column: str) -> list[Any]:
        """Returns all that panels plot of a column, ascending."""
        plotted = [s.rows[column] for s in self.series if column in (s.layer.x, s.layer.y)]
        return sorted(pd.concat(plotted).unique()) if plotted else []

    def places(self, x: str) -> list[str]:
        """Returns the places along an x that is text, the same in all panels; none for numbers."""
        texts = any(isinstance(value, str) for value in self.values(x))
        return list(dict.fromkeys(map(str, self.rows[x]))) if texts else []

    def text(self, template: str, **more: object) -> str:
        """Returns a text about all that is plotted."""
        return fill(template, self.rows, self.drawing.names, **more)


def panels(
    cells: FigureCells,
    x: Names = "",
    y: Names = "",
    *,
    of: pd.DataFrame | None = None,
    paths_as_rows: bool = False,
    **said: Any,
) -> list[FigureSheet]:
    """Returns a figure's sheets, each with something plotted, of its measured cells or of rows in
    their place; ``paths_as_rows``: of cells without tree attention, too. Several columns for x or y
    are a column of panels each; ``said`` is all else of a ``Drawing``.
    """
    drawing = make_figure_spec(x, y, **{"files": () if cells.item.together else "pair", **said})
    if cells.alone:
        drawing = replace(
            drawing,
            layers=[each for each in drawing.layers if not each.get("printed")],
            heading="{pair}" if "pair" in several(drawing.files) else "",
            note=f"As printed in the tables of {cells.paper.title}; no intervals.",
            needs={},
        )
        found = split_into_sheets(drawing, cells.rows(), pd.DataFrame()) if of is None else ()
        return [replace(sheet, setting=ALONE) for sheet in found]
    measured = cells.rows(paths_as_rows) if of is None else of
    printed = cells.printed(measured) if "pair" in measured else pd.DataFrame()
    facets = (drawing.files, drawing.across, drawing.down)
    shown = {"pair", "task", *(name for names in facets for name in several(names))}
    for layer in drawing.all_layers:
        for name in {layer.x, layer.y} - {"", *measured, *header()}:
            if "." in name:  # of a sheet's own making, such as cell.score
                continue
            raise UsageError(f"no column {name!r}{suggest(name, [*measured])}")
        shown |= {layer.x, layer.y, *layer.hues, *layer.keep, layer.marker or ""}
    groups = {each.name for each in run_columns(measured)} if GROUP in shown else set()
    return [
        replace(sheet, setting=setting, missing=(*sheet.missing, *_unlike(cells, sheet)))
        for setting, part in split(measured, shown | groups)
        for sheet in split_into_sheets(drawing, part, printed)
    ]


def _unlike(cells: FigureCells, sheet: FigureSheet) -> list[str]:
    """Says of which other runs rows are, at which temperatures that the paper does not have."""
    if "temperature" not in sheet.rows:
        return []
    unlike = sheet.rows[~cells.fits(sheet.rows)].temperature.unique()
    said = [f"measured at temperature {each:g}, which the paper has not" for each in unlike]
    recipes = " or ".join(cells.item.recipes)
    return [*said, *(f"rows of {e}, not of {recipes}" for e in elsewhere(cells.item, sheet.rows))]


def make_figure_spec(x: Names = "", y: Names = "", **said: Any) -> Drawing:
    """Returns a figure as it is said; several columns for x or y are a column of panels each."""
    for name, column in (("x", x), ("y", y)):
        if isinstance(column, str):
            said[name] = column
        else:
            said["columns"] = [{name: each} for each in column]
    return Drawing(**_check_fields(said))


def _check_fields(said: dict[str, Any]) -> dict[str, Any]:
    """Refuses a word that a figure does not have."""
    words = [each.name for each in fields(Drawing)]
    for word in (each for each in said if each not in words):
        raise UsageError(unknown_setting(f"panels.{word}", word, words))
    return said


def split_into_sheets(
    drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame
) -> Iterator[FigureSheet]:
    """Yields a figure's files, each with something plotted; rows have their derived columns."""
    used = pd.Series(False, rows.index)  # rows that some layer draws, or compares with
    for layer in drawing.all_layers:
        used |= rows.index.isin(filter_rows(rows, layer.keep).index)
        if layer.over:
            used |= rows.decoder == layer.over
    files = [name for name in several(drawing.files) if name in rows]
    for values in _facets(filter_rows(rows, drawing.keep), files):
        part = add_group_column(rows[used & _mask_rows(rows, values)], drawing.x)
        counts = {name: part[name].nunique() if name in part else 0 for name in drawing.needs}
        if any(counts[name] < count for name, count in drawing.needs.items()):
            continue
        if sheet := _sheet(drawing, part, printed):
            yield sheet


def filter_rows(rows: pd.DataFrame, keep: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the rows that a layer draws."""
    for name, wanted in keep.items():
        if wanted == "max":
            rows = rows[rows[name] == rows[name].max()] if name in rows else rows
        elif name not in rows:
            return rows.iloc[:0]
        else:
            rows = rows[rows[name].isin(wanted if isinstance(wanted, list) else [wanted])]
    return rows


def _sheet(drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame) -> FigureSheet | None:
    """Returns one file; None where nothing is plotted."""
    drawn = filter_rows(rows, drawing.keep)
    wide = len(drawing.columns)
    acrosses = _facets(drawn, several(drawing.across))
    grid: list[list[Panel]] = []
    for down, row in product(_facets(drawn, several(drawing.down)), drawing.rows):
        line = []
        for across, column in product(acrosses, drawing.columns):
            here = rows[_mask_rows(rows, {**down, **across})]
            line.append(_panel(drawing.with_changes(row).with_changes(column), here, rows, printed))
        if any(panel.has_subject for panel in line):
            grid.append(line)
    filled = {i // wide for line in grid for i, panel in enumerate(line) if panel.has_subject}
    grid = [[panel for i, panel in enumerate(line) if i // wide in filled] for line in grid]
    if not grid:
        return None
    # A column without numbers is a line in the note.
    columns = list(zip(*grid, strict=True))
    full = [any(panel.series for panel in each) for each in columns]
    missing = [each[0].reason for each, any_ in zip(columns, full, strict=True) if not any_]
    shown = {name for line in grid for each in line for name in (each.said.x, each.said.y)}
    if TIMED & shown:
        missing += [f"times in doubt, {doubt}" for doubt in summarise_doubts(to_rows(drawn))]
    grid = [[*compress(line, full)] for line in grid]
    if drawing.wrap:
        flat = [panel for line in grid for panel in line]
        most = drawing.wrap
        grid = [flat[start : start + most] for start in range(0, len(flat), most)]
    plotted = [each for line in grid for panel in line for each in panel.series]
    measured = pd.concat([each.rows for each in plotted if not each.layer.printed])
    shown = rows[rows.index.isin(measured.index)]
    return FigureSheet(drawing, grid, shown, missing=tuple(dict.fromkeys(missing)))


def _facets(rows: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the combinations of values; of one column of numbers ascending, else as they come."""
    if not columns or rows.empty:
        return [] if rows.empty else [{}]
    values = rows[list(columns)].drop_duplicates()
    if len(columns) == 1 and pd.api.types.is_numeric_dtype(values[columns[0]]):
        values = values.sort_values(columns[0])
    return [{str(k): v for k, v in each.items()} for each in values.to_dict("records")]


def _mask_rows(rows: pd.DataFrame, values: Mapping[str, Any]) -> pd.Series:
    """Marks the rows with these values."""
    same = pd.Series(True, rows.index)
    for name, value in values.items():
        same &= rows[name] == value
    return same


def _panel(
    said: Drawing, rows: pd.DataFrame, file_rows: pd.DataFrame, printed: pd.DataFrame
) -> Panel:
    """Returns one panel: the rows at its place, with looks after all rows of the file."""
    series: list[PlotSeries] = []
    for layer in said.drawn:
        shown = rows
        if layer.printed:  # the cells of the pairs, tasks and sampling that were measured here
            shown = printed.iloc[:0]
            if layer.x in printed:
                here = rows[[*_ASKED, *_SAMPLING]].drop_duplicates()
                same = printed.reset_index().merge(here, on=_ASKED, suffixes=("", "_here"))
                for name in _SAMPLING:  # empty: the paper prints none
                    same = same[same[name].isna() | (same[name] == same[f"{name}_here"])]
                shown = printed.loc[same["index"].unique()].dropna(subset=[layer.x])
        if {layer.x, layer.y} <= set(shown):
            lost = filter_rows(shown, layer.keep)
            lost = lost[lost[LOST] & lost[layer.y].isna()] if LOST in lost else lost[:0]
            series += _series(layer, _select_plotted_rows(layer, shown), file_rows, lost)
    return Panel(said, rows, tuple(series))


def _select_plotted_rows(layer: Drawing, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows that a layer draws, its y as it is drawn."""
    x = layer.x
    y = layer.y
    if layer.over:
        base = _first_row(rows, layer.over)
        numbers = [y, *(f"{y}{end}" for end in ENDS)]
        divisor = float("nan") if base is None else base[y] or float("nan")
        rows = rows.assign(**{name: rows[name] / divisor for name in numbers if name in rows})
    rows = filter_rows(rows, layer.keep)
    rows = rows[rows[x].notna()]
    if layer.best:
        hue = [name for name in layer.hues if name in rows]
        judged = y if layer.best == "y" else layer.best
        rows = rows[rows[judged].notna()]
        rows = rows.loc[rows.groupby([*hue, x], sort=False)[judged].idxmax()]
    return rows[rows[y].notna()]


def _series(
    layer: Drawing, rows: pd.DataFrame, file_rows: pd.DataFrame, lost: pd.DataFrame
) -> list[PlotSeries]:
    """Returns a series per value of hue and marker that has rows; ``lost`` are printed cells whose
    number would be drawn, had it not been lost.
    """
    known = filter_rows(file_rows, layer.keep)
    hue = [name for name in layer.hues if name in file_rows]
    by_hue = assign_styles(layer, known, hue)
    by_marker = shapes(file_rows[layer.marker]) if layer.marker else {}
    columns = [*hue, *([layer.marker] if layer.marker else [])]
    parts = rows.groupby(columns, sort=False, dropna=False) if columns else [((), rows)]
    found: list[PlotSeries] = []
    for _, part in parts if len(rows) else ():
        look = by_hue[tuple(part[name].iloc[0] for name in hue)]
        if layer.marker:
            look = replace(look, marker=by_marker[part[layer.marker].iloc[0]])
        label = _label(layer, part, known) if len(hue) == len(layer.hues) else ""
        shape = fill(layer.shape, part)
        cells = part
        if layer.mark == "line":
            cells = part.sort_values(layer.order or layer.x, kind="stable")
        elif layer.mark == "front":  # the cells that no other beats, x ascending
            places = list(zip(part[layer.x], part[layer.y], strict=True))
            x_up, y_up = (layer.axis(name).better == "up" for name in (layer.x, layer.y))
            cells = part.iloc[pareto_front(places, higher_x=x_up, higher_y=y_up)]
        same = lost[(lost[hue] == part[hue].iloc[0]).all(axis=1)]
        at = same[layer.x].dropna().unique()
        found.append(PlotSeries(layer, cells, look, label, shape, tuple(at)))
    return sorted(found, key=lambda series: series.look.index)


def _label(layer: Drawing, part: pd.DataFrame, known: pd.DataFrame) -> str:
    """Returns a series' name in the legend: of all its rows in the file, in whichever panel."""
    template = layer.label
    if template is None:
        template = " ".join(f"{{{name}}}" for name in layer.hues) + "{marks}"
    for name in layer.hues:
        known = known[known[name].isin(part[name].unique())]
    r = correlation(part[layer.x], part[layer.y]) if "{correlation}" in template else None
    more = {"count": len(part), "correlation": "" if r is None else f", r = {r:.3f}"}
    return fill(template, part if known.empty else known, layer.names, **more)


def _first_row(rows: pd.DataFrame, decoder: str | None) -> pd.Series | None:
    matching = rows[rows.decoder == decoder] if decoder else rows.iloc[:0]
    return None if matching.empty else matching.iloc[0]


def pareto_front(
    points: Sequence[tuple[float, float]], *, higher_x: bool, higher_y: bool
) -> list[int]:
    """The Pareto front of points (x, y) without NaN: those that no other beats, being as good in
    both and better in one; their indices, x ascending, of equal points the first.
    """
    better_x = 1 if higher_x else -1
    better_y = 1 if higher_y else -1
    worth = [(better_x * x, better_y * y) for x, y in points]
    order = sorted(range(len(points)), key=lambda i: (*worth[i], -i), reverse=True)
    chosen: list[int] = []
    for index in order:  # the best x first: a point is on the front if its y is a new best
        if not chosen or worth[index][1] > worth[chosen[-1]][1]:
            chosen.append(index)
    return chosen[::-1] if higher_x else chosen
