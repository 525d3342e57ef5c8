"""A figure's data: the cells that its panels plot, as series with labels, colours and markers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from spec_bench.report.figures.derived import SCORE, SCORE_NAME
from spec_bench.report.figures.drawing import Drawing, Layer, Panel
from spec_bench.report.figures.style import Look
from spec_bench.report.figures.texts import fill
from spec_bench.vocabulary.columns import ENDS, apart_in

_OF_A_LINE = ("draft",)  # and the settings of runs: cells that differ are of two lines


@dataclass(frozen=True)
class Series:
    """The cells that one layer plots in one colour.

    Attributes:
        layer: how it is drawn.
        rows: the cells, in the order of the line.
        look: colour and marker.
        label: in a legend; "": in none.
        shape: its marker's label, in a legend.
    """

    layer: Layer
    rows: pd.DataFrame
    look: Look
    label: str
    shape: str = ""

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
        apart = [each.name for each in apart_in(self.rows)]
        others = [name for name in (*apart, *_OF_A_LINE) if name in self.rows and name != self.x]
        names = [name for name in others if self.rows[name].nunique(dropna=False) > 1]
        if not names:
            return [self]
        parts = self.rows.groupby(names, sort=False, dropna=False)
        return [replace(self, rows=part) for _, part in parts]


@dataclass(frozen=True)
class PanelData:
    """The data of one panel.

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
        base = first_of(self.rows, self.panel.over)
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
        setting: settings that the figure's other files lack; "" without other files.
    """

    drawing: Drawing
    grid: list[list[PanelData]]
    rows: pd.DataFrame = field(repr=False)
    setting: str = ""

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
        return [each for each in series if column in (each.layer.x, each.layer.y)]

    def text(self, template: str, **more: object) -> str:
        """A text about all that is plotted."""
        return fill(template, self.rows, self.drawing.names, **more)


def first_of(rows: pd.DataFrame, decoder: str | None) -> pd.Series | None:
    """A decoder's first cell."""
    matching = rows[rows.decoder == decoder] if decoder else rows.iloc[:0]
    return None if matching.empty else matching.iloc[0]
