"""How figures look: sizes, which colour and marker a series has, and how a figure becomes files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import pyplot

from spec_bench import names
from spec_bench.report.figures.drawing import Layer

FORMATS = ("png", "pdf")
TWO_COLUMNS_INCHES = 7.2  # the width of a page of two columns
GREY = "grey"
_DPI = 200
_COLOURS = {
    **{"blue": names.BLUE, "vermillion": names.VERMILLION, "green": names.GREEN},
    **{"purple": names.PURPLE, "orange": names.ORANGE, "sky": names.SKY, "black": names.BLACK},
}
_SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Look:
    """How a series is told apart.

    Attributes:
        index: its place among the series of its layer.
        colour: matplotlib's, or where it lies on the scale from dark (0) to light (1).
        marker: matplotlib's letter.
        dashed: whether its line is.
    """

    index: int
    colour: str | float
    marker: str
    dashed: bool = False


@dataclass(frozen=True)
class Looks:
    """The looks of a layer's series.

    Attributes:
        layer: the layer.
        values: of hue, in the legend's order.
        shapes: of the column that markers tell apart, in the legend's order.
    """

    layer: Layer
    values: list[tuple[Any, ...]]
    shapes: list[Any]

    @property
    def count(self) -> int:
        """How many series there may be."""
        return len(self.values)

    def look(self, value: tuple[Any, ...], shape: Any = None) -> Look:
        """The look of one value of hue and, where markers tell apart, of one shape."""
        index = self.values.index(value) if value in self.values else 0
        dashed = self.layer.dashed
        line = dashed if isinstance(dashed, bool) else str(value[0]) in dashed
        return Look(index, self._colour(index, value), self._marker(index, value, shape), line)

    def _colour(self, index: int, value: tuple[Any, ...]) -> str | float:
        own = self.layer.colours
        if isinstance(own, dict) and len(value) == 1 and str(value[0]) in own:
            named = own[str(value[0])]
            return _COLOURS[named].light if named in _COLOURS else named
        if self.layer.hue == ("decoder",) and str(value[0]) in names.DECODERS:
            return names.decoder(str(value[0])).colour.light
        if isinstance(own, float) and self.count > 2:
            return own * index / (self.count - 1)
        return names.PALETTE[index % len(names.PALETTE)].light

    def _marker(self, index: int, value: tuple[Any, ...], shape: Any) -> str:
        own = self.layer.markers
        key = str(value[0] if shape is None and value else shape)
        if isinstance(own, str) or key in own:
            return own if isinstance(own, str) else own[key]
        if shape is not None:
            return names.MARKERS[self.shapes.index(shape) % len(names.MARKERS)]
        if self.layer.hue == ("decoder",) and key in names.DECODERS:
            return names.decoder(key).marker
        return names.MARKERS[index % len(names.MARKERS)]


def looks_of(layer: Layer, rows: pd.DataFrame, hue: Sequence[str]) -> Looks:
    """The looks of a layer's series in all panels of a file.

    Args:
        layer: the layer.
        rows: the file's rows that it draws.
        hue: those of its columns that rows have.
    """
    values = [tuple(each) for each in rows[list(hue)].drop_duplicates().to_numpy()]
    if len(hue) == 1:
        listed = layer.keep.get(hue[0])
        mapped = list(layer.colours) if isinstance(layer.colours, dict) else []
        if isinstance(listed, list) or mapped:
            first = listed if isinstance(listed, list) else mapped
            values = [*((each,) for each in first), *(v for v in values if v[0] not in first)]
        elif pd.api.types.is_numeric_dtype(rows[hue[0]]):
            values = sorted(values)
    shapes = sorted(rows[layer.marker].dropna().unique()) if layer.marker else []
    return Looks(layer, values or [()], shapes)


def settings() -> Any:
    """A context in which everything drawn has the figures' sizes; ticks are made when saved."""
    return pyplot.rc_context(_SETTINGS)


def colour_of(look: Look) -> Any:
    """A look's colour as matplotlib takes it."""
    return look.colour if isinstance(look.colour, str) else pyplot.cm.viridis(look.colour)


def save(
    figure: Any, folder: Path, name: str, formats: Sequence[str], dpi: int = _DPI
) -> list[Path]:
    """Writes ``name.png``, ``name.pdf`` or both; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(dpi)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)  # once: every format would lay out and draw one more time
        figure.set_layout_engine(None)
    paths = [folder / f"{name}.{suffix}" for suffix in formats]
    for path in paths:
        dated = path.suffix == ".pdf"  # a PNG bears no date
        figure.savefig(path, dpi=dpi, metadata={"CreationDate": None} if dated else None)
    pyplot.close(figure)
    return paths
