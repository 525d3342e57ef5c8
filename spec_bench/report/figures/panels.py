"""A figure as data: ``panels(cells, "draft_calls", "block_efficiency", across="task")``.

A figure is a grid of panels, a panel has layers, a layer is one way of drawing some rows. What is
said of the figure holds for its panels and what is said of a panel for its layers, unless these say
otherwise; a layer's ``keep`` adds to that of its panel. Columns are those of ``results.csv`` and
those of ``derived``, such as ``tree.depth`` and ``cell.score``. Texts may name columns in braces
(``texts``). Nothing is drawn here: the sheets, one for each file, can be read as numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import pandas as pd

from spec_bench.report.data.apart import split
from spec_bench.report.data.statistics import best_rows, correlation, front, relative_to
from spec_bench.report.figures.cells import Cells
from spec_bench.report.figures.derived import GROUP, SCORE, SCORE_NAME, grouped
from spec_bench.report.figures.style import Look, looks, shapes
from spec_bench.report.figures.texts import fill
from spec_bench.vocabulary.columns import COLUMNS, ENDS, apart_in

Names = str | Sequence[str]
_MARKS = ("line", "point", "front")
_ASKED = ("pair", "task", "temperature", "top_k", "top_p")  # printed and measured alike
ALONE = "paper's numbers alone"
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
    turned: bool = False  # whether the ticks' texts are, so that long ones fit
    hint: str = ""  # how to measure the column; shown in a panel without numbers


@dataclass(frozen=True)
class Layer:
    """One way of drawing some rows in a panel; every value of ``hue`` is a series."""

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
    at: Literal["inside", "below", "beside", "above"] = "beside"  # above: all over the panel

    @property
    def hues(self) -> tuple[str, ...]:
        """The columns of ``hue``."""
        return _several(self.hue)


@dataclass(frozen=True)
class Panel(Layer):
    """A panel."""

    title: str = ""  # where the figure has a ``side``, above the top panels only
    legend: bool = False
    guide: float | None = None  # a grey line at this height
    band: bool = False  # the interval of the decoder that ``over`` names, in grey
    empty: str = ""  # where nothing is drawn; by default why it was not measured
    finish: Callable[[Any, Sheet, PanelData], None] | None = None  # draws more, before the texts
    # What differs by layer; a row of panels without anything of the first one is left out.
    layers: Sequence[Mapping[str, Any]] = ({},)

    @cached_property
    def drawn(self) -> tuple[Layer, ...]:
        """Its layers, bottom to top."""
        return tuple(_changed(Layer, self, layer) for layer in self.layers)


@dataclass(frozen=True)
class Drawing(Panel):
    """A figure."""

    files: Names = "pair"  # every combination of these columns' values is a file
    down: str | None = None  # its values are rows of panels; ``cell.group``: comparable cells
    across: Names = ()  # their combinations are columns of panels
    rows: Sequence[Mapping[str, Any]] = ({},)  # what differs by row of panels
    columns: Sequence[Mapping[str, Any]] = ({},)  # and by column
    wrap: int | None = None  # so many panels side by side at most; for one row only
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
    legend_size: float | None = None  # of the panels' legends
    note: str = "Bars: 95% intervals over prompts."  # ``{jobs}``: decoders of another job
    note_printed: str = ""  # added where printed numbers are drawn

    def panel(self, row: int, column: int) -> Panel:
        """The panel in one of ``rows`` and one of ``columns``."""
        return _changed(Panel, _changed(Panel, self, self.rows[row]), self.columns[column])

    @property
    def grid(self) -> list[Panel]:
        """The panels of all ``rows`` and ``columns``."""
        places = itertools.product(range(len(self.rows)), range(len(self.columns)))
        return [self.panel(*place) for place in places]

    def axis(self, column: str, asked: str = "") -> Axis:
        """The axis of a column, with its label and direction filled in."""
        given = self.axes.get(column) or self.axes.get(asked) or Axis()
        known = next((each for each in COLUMNS if each.name == column), None)
        title, better = (known.title, known.better) if known else (column.rpartition(".")[2], None)
        if known and "/" in known.unit and known.unit not in title:
            title = f"{title} ({known.unit})"
        label = title if given.label is None else given.label
        return replace(given, label=label, better=given.better or better or "up")


_Part = TypeVar("_Part", bound=Layer)


def _changed(kind: type[_Part], above: Layer, changes: Mapping[str, Any]) -> _Part:
    """A panel of a figure, or a layer of a panel: what is said above it, and its changes."""
    base = {each.name: getattr(above, each.name) for each in fields(kind)}
    return _made(kind, {**base, **changes, "keep": {**above.keep, **changes.get("keep", {})}})


def _made(kind: type[_Part], said: Mapping[str, Any]) -> _Part:
    known = [each.name for each in fields(kind)]
    for name in said:
        if name not in known:
            raise ValueError(f"a {kind.__name__.lower()} has no {name!r}, but {', '.join(known)}")
    return kind(**said)


@dataclass(frozen=True)
class Series:
    """The cells that one layer plots in one colour, in the order of the line."""

    layer: Layer
    rows: pd.DataFrame
    look: Look
    label: str  # in a legend; "": in none
    shape: str = ""  # its marker's label, in a legend

    @property
    def x(self) -> str:
        """The column along the horizontal axis."""
        return self.layer.x

    @property
    def y(self) -> str:
        """The column along the vertical axis."""
        return self.layer.y

    def points(self, column: str) -> list[tuple[float, float, float]]:
        """(value, low, high) of x or y; the ends are NaN where they are not known."""
        nothing = pd.Series(float("nan"), self.rows.index)
        low, high = (self.rows.get(f"{column}{end}", nothing) for end in ENDS)
        return list(zip(self.rows[column], low, high, strict=True))

    def has_ends(self, column: str) -> bool:
        """Whether intervals are known, of some rows at least."""
        return any(not pd.isna(low) for _, low, _ in self.points(column))

    def lines(self) -> list[Series]:
        """The series by its lines: the cells of one differ in nothing but x."""
        apart = [each.name for each in apart_in(self.rows)]
        others = [name for name in (*apart, *_OF_A_LINE) if name in self.rows and name != self.x]
        names = [name for name in others if self.rows[name].nunique(dropna=False) > 1]
        if not names:
            return [self]
        parts = self.rows.groupby(names, sort=False, dropna=False)
        return [replace(self, rows=part) for _, part in parts]


@dataclass(frozen=True)
class PanelData:
    """The data of one panel."""

    panel: Panel
    rows: pd.DataFrame  # all cells of its place, plotted or not
    series: tuple[Series, ...] = ()  # in the order drawn

    @property
    def title(self) -> str:
        """The text above it."""
        return fill(self.panel.title, self.rows, self.panel.names)

    @property
    def has_subject(self) -> bool:
        """Whether it plots its first layer, the figure's subject."""
        return any(series.layer == self.panel.drawn[0] for series in self.series)

    def shown(self, column: str) -> str:
        """The real column behind one of this panel's: ``cell.score`` is one of the scores."""
        names = self.rows[SCORE_NAME].dropna().unique() if SCORE_NAME in self.rows else []
        return str(names[0]) if column == SCORE and len(names) == 1 else column

    @property
    def band(self) -> tuple[float, float] | None:
        """The interval of the decoder that all is relative to; None where there is none."""
        base, y = _first_of(self.rows, self.panel.over), self.panel.y
        if not self.panel.band or base is None or y not in base or not base[y]:
            return None
        low, high = (base[f"{y}{end}"] / base[y] for end in ENDS)
        return None if pd.isna(low) or pd.isna(high) else (float(low), float(high))


@dataclass(frozen=True)
class Sheet:
    """One file of a figure."""

    drawing: Drawing
    grid: list[list[PanelData]]  # rows of panels, top to bottom
    rows: pd.DataFrame = field(repr=False)  # all cells that are plotted
    setting: str = ""  # that the figure's other files lack; "" without other files

    @property
    def panels(self) -> list[PanelData]:
        """All panels, row by row."""
        return [panel for line in self.grid for panel in line]

    @property
    def printed(self) -> bool:
        """Whether some of the paper's numbers are plotted."""
        return any(series.layer.printed for panel in self.panels for series in panel.series)

    def values(self, x: str) -> list[Any]:
        """All values that the panels with this x plot along it, ascending."""
        columns = [each.rows[x] for each in self._plotted(x) if x in each.rows]
        return sorted(pd.concat(columns).unique()) if columns else []

    def places(self, x: str) -> list[str]:
        """The places along an x that is text, the same in all panels; none for numbers."""
        columns = [each.rows[each.x] for each in self._plotted(x)]
        if not columns or pd.api.types.is_numeric_dtype(columns[0]):
            return []
        return list(dict.fromkeys(str(value) for value in self.rows[columns[0].name]))

    def _plotted(self, column: str) -> list[Series]:
        series = [each for panel in self.panels for each in panel.series]
        return [each for each in series if column in (each.x, each.y)]

    def text(self, template: str, **more: object) -> str:
        """A text about all that is plotted."""
        return fill(template, self.rows, self.drawing.names, **more)


def panels(
    cells: Cells,
    x: Names = "",
    y: Names = "",
    *,
    of: pd.DataFrame | None = None,
    paths_as_rows: bool = False,
    **said: Any,
) -> list[Sheet]:
    """A figure's sheets, each with something plotted.

    Args:
        cells: of the figure.
        x: column; several: a column of panels each.
        y: likewise.
        of: the rows to draw in place of the measured cells.
        paths_as_rows: whether cells without tree attention are drawn, too.
        said: all else of a ``Drawing``.
    """
    drawing = drawing_of(x, y, **{"files": () if cells.item.together else "pair", **said})
    if cells.alone:
        if of is not None:
            return []
        found = sheets(_alone(cells, drawing), cells.rows(), pd.DataFrame())
        return [replace(sheet, setting=ALONE) for sheet in found]
    measured = cells.rows(paths_as_rows) if of is None else of
    printed = cells.printed(measured) if "pair" in measured else pd.DataFrame()
    shown = {*_several(drawing.files), *_several(drawing.across), drawing.down or ""}
    shown |= {"pair", "task"}
    for layer in (layer for panel in drawing.grid for layer in panel.drawn):
        shown |= {layer.x, layer.y, *layer.hues, *layer.keep, layer.marker or ""}
    groups = {each.name for each in apart_in(measured)} if GROUP in shown else set()
    return [
        replace(sheet, setting=setting)
        for setting, part in split(measured, shown | groups)
        for sheet in sheets(drawing, part, printed)
    ]


def drawing_of(x: Names = "", y: Names = "", **said: Any) -> Drawing:
    """A figure as it is said; several columns for x or y are a column of panels each.

    Raises:
        ValueError: it cannot be one.
    """
    for name, column in (("x", x), ("y", y)):
        said[name] = column if isinstance(column, str) else column[0]
        if not isinstance(column, str):
            if "columns" in said:
                raise ValueError(f"columns and several {name} exclude each other")
            said["columns"] = [{name: each} for each in column]
    drawing = _made(Drawing, said)
    if drawing.wrap and (drawing.down or len(drawing.rows) > 1):
        raise ValueError("wrap is for figures with one row of panels")
    for layer in (layer for panel in drawing.grid for layer in panel.drawn):
        if not layer.x or not layer.y:
            raise ValueError("a panel needs a column for x and one for y")
        if layer.mark not in _MARKS:
            raise ValueError(f"mark must be one of {', '.join(_MARKS)}, got {layer.mark!r}")
    return drawing


def _alone(cells: Cells, drawing: Drawing) -> Drawing:
    """The drawing of the paper's numbers by themselves."""
    return replace(
        drawing,
        layers=[each for each in drawing.layers if not each.get("printed")],
        heading="{pair}" if "pair" in _several(drawing.files) else "",
        note=f"As printed in the tables of {cells.paper.title}; no intervals.",
        note_printed="",
        needs={},
    )


def sheets(drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame) -> Iterator[Sheet]:
    """A figure's files, each with something plotted; rows have their derived columns."""
    used = _used(drawing, rows)
    files = [name for name in _several(drawing.files) if name in rows]
    for values in _facets(kept(rows, drawing.keep), files):
        part = grouped(rows[used & _matches(rows, values)])
        counts = {name: part[name].nunique() if name in part else 0 for name in drawing.needs}
        if any(counts[name] < count for name, count in drawing.needs.items()):
            continue
        if sheet := _sheet(drawing, part, printed):
            yield sheet


def kept(rows: pd.DataFrame, keep: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that a layer draws."""
    for name, wanted in keep.items():
        if wanted == "max":
            rows = rows[rows[name] == rows[name].max()] if name in rows else rows
        elif name not in rows:
            return rows.iloc[:0]
        else:
            rows = rows[rows[name].isin(wanted if isinstance(wanted, list) else [wanted])]
    return rows


def _used(drawing: Drawing, rows: pd.DataFrame) -> pd.Series:
    """Marks the rows that some layer draws, or compares with."""
    used = pd.Series(False, rows.index)
    for panel in drawing.grid:
        for layer in panel.drawn:
            used |= rows.index.isin(kept(rows, layer.keep).index)
        if panel.over:
            used |= rows.decoder == panel.over
    return used


def _sheet(drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame) -> Sheet | None:
    """One file; None where nothing is plotted."""
    drawn = kept(rows, drawing.keep)
    downs = _facets(drawn, [drawing.down] if drawing.down else [])
    acrosses = _facets(drawn, _several(drawing.across))
    views = list(itertools.product(range(len(acrosses)), range(len(drawing.columns))))
    grid: list[list[PanelData]] = []
    for down, row in itertools.product(downs, range(len(drawing.rows))):
        line = []
        for across, column in views:
            part = rows[_matches(rows, {**down, **acrosses[across]})]
            line.append(_panel(drawing, drawing.panel(row, column), part, rows, printed))
        if any(panel.has_subject for panel in line):
            grid.append(line)
    filled = {views[i][0] for line in grid for i, panel in enumerate(line) if panel.has_subject}
    grid = [[line[i] for i, (across, _) in enumerate(views) if across in filled] for line in grid]
    if not grid:
        return None
    if drawing.wrap:
        (flat,), wide = grid, drawing.wrap
        grid = [flat[start : start + wide] for start in range(0, len(flat), wide)]
    plotted = [each for line in grid for panel in line for each in panel.series]
    measured = pd.concat([each.rows for each in plotted if not each.layer.printed])
    return Sheet(drawing, grid, rows[rows.index.isin(measured.index)])


def _facets(rows: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations of values; of one column of numbers ascending, else as they come."""
    if not columns or rows.empty:
        return [] if rows.empty else [{}]
    values = rows[list(columns)].drop_duplicates()
    if len(columns) == 1 and pd.api.types.is_numeric_dtype(values[columns[0]]):
        values = values.sort_values(columns[0])
    return [{str(k): v for k, v in each.items()} for each in values.to_dict("records")]


def _matches(rows: pd.DataFrame, values: Mapping[str, Any]) -> pd.Series:
    same = pd.Series(True, rows.index)
    for name, value in values.items():
        same &= rows[name] == value
    return same


def _panel(
    drawing: Drawing,
    panel: Panel,
    rows: pd.DataFrame,
    file_rows: pd.DataFrame,
    printed: pd.DataFrame,
) -> PanelData:
    """One panel: the rows at its place, with looks after all rows of the file."""
    series: list[Series] = []
    for layer in panel.drawn:
        shown = _beside(printed, rows, layer.x) if layer.printed else rows
        if {layer.x, layer.y} <= set(shown):
            parts = _series(layer, _plotted(layer, shown), file_rows)
            series += [_front(drawing, each) if layer.mark == "front" else each for each in parts]
    return PanelData(panel, rows, tuple(series))


def _beside(printed: pd.DataFrame, rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """The printed cells of the pairs, tasks and sampling that a panel's measured rows have."""
    if printed.empty or x not in printed:
        return printed.iloc[:0]
    asked = rows[list(_ASKED)].drop_duplicates()
    same = printed.reset_index().merge(asked, on=list(_ASKED)).set_index("index")
    return printed.loc[same.index].dropna(subset=[x])


def _plotted(layer: Layer, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that a layer draws, its y as it is drawn."""
    x, y = layer.x, layer.y
    if layer.over:
        rows = relative_to(rows, _first_of(rows, layer.over), [y, *(f"{y}{end}" for end in ENDS)])
    rows = kept(rows, layer.keep)
    rows = rows[rows[x].notna()]
    if layer.best:
        hue = [name for name in layer.hues if name in rows]
        rows = best_rows(rows, [*hue, x], y if layer.best == "y" else layer.best)
    return rows[rows[y].notna()]


def _series(layer: Layer, rows: pd.DataFrame, file_rows: pd.DataFrame) -> list[Series]:
    """A series per value of hue and marker that has rows."""
    hue = [name for name in layer.hues if name in file_rows]
    known = kept(file_rows, layer.keep)
    by_hue = looks(layer, known, hue)
    by_marker = shapes(known[layer.marker]) if layer.marker else {}
    columns = [*hue, *([layer.marker] if layer.marker else [])]
    parts = rows.groupby(columns, sort=False, dropna=False) if columns else [((), rows)]
    curves: list[Series] = []
    for _, part in parts if len(rows) else ():
        look = by_hue[tuple(part[name].iloc[0] for name in hue)]
        if layer.marker:
            look = replace(look, marker=by_marker[part[layer.marker].iloc[0]])
        label = _label(layer, part, file_rows) if len(hue) == len(layer.hues) else ""
        ordered = part.sort_values(layer.order or layer.x, kind="stable")
        cells = ordered if layer.mark == "line" else part
        curves.append(Series(layer, cells, look, label, fill(layer.shape, part)))
    return sorted(curves, key=lambda series: series.look.index)


def _label(layer: Layer, part: pd.DataFrame, file_rows: pd.DataFrame) -> str:
    """A series' name in the legend: of all its rows in the file, in whichever panel."""
    template = layer.label
    if template is None:
        template = " ".join(f"{{{name}}}" for name in layer.hues) + "{marks}"
    matching = kept(file_rows, layer.keep)
    for name in layer.hues:
        matching = matching[matching[name].isin(part[name].unique())]
    r = correlation(part[layer.x], part[layer.y]) if "{correlation}" in template else None
    more = {"count": len(part), "correlation": "" if r is None else f", r = {r:.3f}"}
    return fill(template, part if matching.empty else matching, layer.names, **more)


def _front(drawing: Drawing, series: Series) -> Series:
    """The series with those of its rows that no other beats, x ascending."""
    places = list(zip(series.rows[series.x], series.rows[series.y], strict=True))
    up = {name: drawing.axis(name).better == "up" for name in (series.x, series.y)}
    chosen = front(places, higher_x=up[series.x], higher_y=up[series.y])
    return replace(series, rows=series.rows.iloc[chosen])


def _first_of(rows: pd.DataFrame, decoder: str | None) -> pd.Series | None:
    """A decoder's first cell."""
    matching = rows[rows.decoder == decoder] if decoder else rows.iloc[:0]
    return None if matching.empty else matching.iloc[0]


def _several(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
