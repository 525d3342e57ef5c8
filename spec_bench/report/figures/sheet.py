"""A figure's data: which rows its panels plot, as series with labels, colours and markers.

Knows nothing of matplotlib: what is here can be read, and tested, as numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from spec_bench.columns import ENDS
from spec_bench.report.figures.derived import grouped
from spec_bench.report.figures.drawing import Drawing, Layer, Panel
from spec_bench.report.figures.style import Look, looks_of
from spec_bench.report.figures.texts import fill
from spec_bench.report.statistics import best_rows, correlation, front, relative_to

# Cells that differ in one of these are no points of one line.
_APART = (
    *("pair", "draft", "task", "temperature", "top_k", "top_p", "seed", "batch_size"),
    "max_new_tokens",
)
_ASKED = ("pair", "task", "temperature", "top_k", "top_p")  # printed and measured alike


@dataclass(frozen=True)
class Series:
    """What one layer plots in one colour.

    Attributes:
        layer: how it is drawn.
        rows: the cells, in the order of the line.
        look: colour and marker.
        label: in a legend; "": in none.
        shape: what its marker says, in a legend.
        aside: how far the marks are moved, in units of x or as a factor.
    """

    layer: Layer
    rows: pd.DataFrame
    look: Look
    label: str
    shape: str = ""
    aside: float | None = None

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
        ends = [f"{column}{end}" for end in ENDS]
        if column == self.y and self.layer.ends:
            ends = list(self.layer.ends)
        nothing = pd.Series(float("nan"), self.rows.index)
        low, high = (self.rows.get(end, nothing) for end in ends)
        return list(zip(self.rows[column], low, high, strict=True))

    def has_ends(self, column: str) -> bool:
        """Whether intervals are known, of some rows at least."""
        return any(not pd.isna(low) for _, low, _ in self.points(column))

    def lines(self) -> list[Series]:
        """The series by its lines: the cells of one differ in nothing but x."""
        others = [name for name in _APART if name in self.rows and name != self.x]
        names = [name for name in others if self.rows[name].nunique(dropna=False) > 1]
        if not names:
            return [self]
        parts = self.rows.groupby(names, sort=False, dropna=False)
        return [replace(self, rows=part) for _, part in parts]


@dataclass(frozen=True)
class PanelData:
    """What one panel plots.

    Attributes:
        panel: how it is drawn.
        rows: all cells of its place, plotted or not.
        series: in the order drawn.
    """

    panel: Panel
    rows: pd.DataFrame
    series: tuple[Series, ...] = ()

    @property
    def title(self) -> str:
        """The text above it."""
        return fill(self.panel.title, self.rows, self.panel.names)

    @property
    def tells(self) -> bool:
        """Whether it plots what the figure is about: its first layer."""
        return any(series.layer == self.panel.drawn[0] for series in self.series)

    def shown(self, column: str) -> str:
        """What a column of this panel is: ``score`` is one of the quality scores."""
        names = self.rows.score_name.dropna().unique() if "score_name" in self.rows else []
        return str(names[0]) if column == "score" and len(names) == 1 else column

    @property
    def band(self) -> tuple[float, float] | None:
        """The interval of the decoder that all is relative to; None where there is none."""
        base = _first(self.rows, self.panel.over)
        y = self.panel.y
        if not self.panel.band or base is None or y not in base or not base[y]:
            return None
        low, high = (base[f"{y}{end}"] / base[y] for end in ENDS)
        return None if pd.isna(low) or pd.isna(high) else (float(low), float(high))


@dataclass(frozen=True)
class Sheet:
    """One file of a figure.

    Attributes:
        drawing: how it is drawn.
        grid: rows of panels, top to bottom.
        rows: all cells that are plotted.
    """

    drawing: Drawing
    grid: list[list[PanelData]]
    rows: pd.DataFrame = field(repr=False)

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
        own = [each.rows[x] for each in self._plotted(x) if x in each.rows]
        return sorted(pd.concat(own).unique()) if own else []

    def places(self, x: str) -> list[str]:
        """The places along an x that is text, the same in all panels; none for numbers."""
        own = [each.rows[each.x] for each in self._plotted(x)]
        if not own or pd.api.types.is_numeric_dtype(own[0]):
            return []
        return list(dict.fromkeys(str(value) for value in self.rows[own[0].name]))

    def _plotted(self, column: str) -> list[Series]:
        series = [each for panel in self.panels for each in panel.series]
        return [each for each in series if column in (each.layer.x, each.layer.y)]

    def text(self, template: str, **more: object) -> str:
        """A text about all that is plotted."""
        return fill(template, self.rows, self.drawing.names, **more)


def sheets(drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame) -> Iterator[Sheet]:
    """A figure's files, each with something plotted.

    Args:
        drawing: the figure.
        rows: measured cells, derived columns among them.
        printed: the paper's numbers, likewise.
    """
    for part in _parts(kept(rows, drawing.keep), drawing.files):
        enough = all(
            name in part and part[name].nunique() >= count for name, count in drawing.needs.items()
        )
        same = rows[_used(drawing, rows) & _same_values(rows, part, drawing.files)]
        if enough and (sheet := _sheet(drawing, grouped(same), printed)):
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
    """Which rows some layer draws, or compares with: others say nothing about its panels."""
    used = pd.Series(False, rows.index)
    for row, column in itertools.product(range(len(drawing.rows)), range(len(drawing.columns))):
        panel = drawing.panel(row, column)
        for layer in panel.drawn:
            used |= rows.index.isin(kept(rows, layer.keep).index)
        if panel.over:
            used |= rows.decoder == panel.over
    return used


def _parts(rows: pd.DataFrame, columns: Sequence[str]) -> list[pd.DataFrame]:
    """The rows by their values of some columns, in the order of the rows."""
    names = [name for name in columns if name in rows]
    if not names or rows.empty:
        return [] if rows.empty else [rows]
    return [part for _, part in rows.groupby(names, sort=False, dropna=False)]


def _same_values(rows: pd.DataFrame, part: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Which rows have the part's values; each of these columns has one in it."""
    same = pd.Series(True, rows.index)
    for name in columns:
        if name in rows:
            same &= rows[name].isin(part[name].unique())
    return same


def _sheet(drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame) -> Sheet | None:
    """One file; None where nothing is plotted."""
    drawn = kept(rows, drawing.keep)
    downs = _facets(drawn, (drawing.down,) if drawing.down else ())
    acrosses = _facets(drawn, drawing.across)
    grid: list[list[PanelData]] = []
    for down, row in itertools.product(downs, range(len(drawing.rows))):
        line = []
        for across, column in itertools.product(acrosses, range(len(drawing.columns))):
            part = rows[_matches(rows, {**down, **across})]
            line.append(_panel(drawing, drawing.panel(row, column), part, rows, printed))
        if any(panel.tells for panel in line):
            grid.append(line)
    if not grid:
        return None
    if drawing.wrap:
        flat, wide = grid[0], drawing.wrap
        grid = [flat[start : start + wide] for start in range(0, len(flat), wide)]
    plotted = [each.rows for line in grid for panel in line for each in panel.series]
    shown = rows[rows.index.isin(pd.concat(plotted).index)]
    return Sheet(drawing, grid, shown)


def _facets(rows: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations of values; of one column of numbers ascending, else as they come."""
    if not columns:
        return [{}]
    found = rows[list(columns)].drop_duplicates()
    if len(columns) == 1 and pd.api.types.is_numeric_dtype(found[columns[0]]):
        found = found.sort_values(columns[0])
    return [{str(k): v for k, v in each.items()} for each in found.to_dict("records")]


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
    """One panel: the rows at its place, and of all rows of the file what series there are."""
    series: list[Series] = []
    for layer in panel.drawn:
        own = _beside(printed, rows, layer.x) if layer.printed else rows
        if {layer.x, layer.y} <= set(own):
            found = _series(layer, _plotted(layer, own), file_rows)
            series += [_front(drawing, each) if layer.mark == "front" else each for each in found]
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
        columns = [y, *(layer.ends or [f"{y}{end}" for end in ENDS])]
        rows = relative_to(rows, _first(rows, layer.over), columns)
    rows = kept(rows, layer.keep)
    rows = rows[rows[x].notna()]
    if layer.best:
        hue = [name for name in layer.hue if name in rows]
        rows = best_rows(rows, [*hue, x], y if layer.best == "y" else layer.best)
    return rows[rows[y].notna()]


def _series(layer: Layer, rows: pd.DataFrame, file_rows: pd.DataFrame) -> list[Series]:
    """A series per value of hue and marker that has rows."""
    hue = [name for name in layer.hue if name in file_rows]
    looks = looks_of(layer, kept(file_rows, layer.keep), hue)
    columns = [*hue, *([layer.marker] if layer.marker else [])]
    parts = rows.groupby(columns, sort=False, dropna=False) if columns else [((), rows)]
    found: list[Series] = []
    for _, part in parts if len(rows) else ():
        shape = part[layer.marker].iloc[0] if layer.marker else None
        look = looks.look(tuple(part[name].iloc[0] for name in hue), shape)
        label = _label(layer, part, file_rows) if len(hue) == len(layer.hue) else ""
        ordered = part.sort_values(layer.order or layer.x, kind="stable")
        own = ordered if layer.mark == "line" else part
        aside = None if layer.dodge is None else look.index - (looks.count - 1) / 2
        found.append(Series(layer, own, look, label, fill(layer.shape, part), aside))
    return sorted(found, key=lambda series: series.look.index)


def _label(layer: Layer, part: pd.DataFrame, file_rows: pd.DataFrame) -> str:
    """A series' name in the legend: of all its rows in the file, in whichever panel."""
    template = layer.label
    if template is None:
        template = " ".join(f"{{{name}}}" for name in layer.hue) + "{marks}"
    own = kept(file_rows, layer.keep)
    for name in layer.hue:
        own = own[own[name].isin(part[name].unique())]
    r = correlation(part[layer.x], part[layer.y]) if "{correlation}" in template else None
    more = {"count": len(part), "correlation": "" if r is None else f", r = {r:.3f}"}
    return fill(template, part if own.empty else own, layer.names, **more)


def _front(drawing: Drawing, series: Series) -> Series:
    """The series with those of its rows that no other beats, x ascending."""
    places = list(zip(series.rows[series.x], series.rows[series.y], strict=True))
    up = {name: drawing.axis(name).better == "up" for name in (series.x, series.y)}
    chosen = front(places, higher_x=up[series.x], higher_y=up[series.y])
    return replace(series, rows=series.rows.iloc[chosen])


def _first(rows: pd.DataFrame, decoder: str | None) -> pd.Series | None:
    """A decoder's first cell."""
    found = rows[rows.decoder == decoder] if decoder else rows.iloc[:0]
    return None if found.empty else found.iloc[0]
