"""The look of figures: sizes, the colour and marker of a series, and how a figure becomes files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import pyplot

from spec_bench.report.figures.drawing import Layer
from spec_bench.vocabulary.decoders import find_decoder
from spec_bench.vocabulary.palette import COLOURS, MARKERS, PALETTE

FORMATS = ("png", "pdf")
TWO_COLUMNS_INCHES = 7.2  # the width of a page of two columns
GREY = "grey"
_DPI = 200
_COLOURS = {str(name): colour.light for name, colour in COLOURS.items()}
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
    """The distinctive look of a series.

    Attributes:
        index: its place among the series of its layer.
        aside: how many places it stands from the middle one.
        colour: as matplotlib takes it.
        marker: matplotlib's letter.
        dashed: whether its line is.
    """

    index: int
    aside: float
    colour: Any
    marker: str
    dashed: bool


def looks_of(layer: Layer, rows: pd.DataFrame, hue: Sequence[str]) -> dict[tuple[Any, ...], Look]:
    """The looks of a layer's series, by their value of hue, in all panels of a file."""
    values = _ordered(layer, rows, hue) if hue else [()]
    looks = {}
    for index, value in enumerate(values):
        name = str(value[0]) if len(value) == 1 else ""
        usual = find_decoder(name) if layer.hue == ("decoder",) else None
        colour, marker = _of_index(layer, index, len(values))
        if usual is not None:
            colour, marker = usual.colour.light, usual.marker
        if isinstance(layer.colours, dict):
            colour = _COLOURS.get(layer.colours.get(name, ""), layer.colours.get(name, colour))
        if layer.markers:
            markers = layer.markers
            marker = markers if isinstance(markers, str) else markers.get(name, marker)
        dashed = layer.dashed if isinstance(layer.dashed, bool) else name in layer.dashed
        looks[value] = Look(index, index - (len(values) - 1) / 2, colour, marker, dashed)
    return looks


def shapes_of(layer: Layer, rows: pd.DataFrame) -> dict[Any, str]:
    """The markers of the layer's ``marker`` column, by its value."""
    values = sorted(rows[layer.marker].dropna().unique()) if layer.marker else []
    return {value: MARKERS[i % len(MARKERS)] for i, value in enumerate(values)}


def _ordered(layer: Layer, rows: pd.DataFrame, hue: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of hue as the description lists them, numbers ascending, else as they come."""
    values = [tuple(each) for each in rows[list(hue)].drop_duplicates().to_numpy()]
    if len(hue) > 1:
        return values
    listed = layer.keep.get(hue[0])
    if not isinstance(listed, list):
        listed = list(layer.colours) if isinstance(layer.colours, dict) else []
    if not listed and pd.api.types.is_numeric_dtype(rows[hue[0]]):
        return sorted(values)
    return [*((each,) for each in listed), *(each for each in values if each[0] not in listed)]


def _of_index(layer: Layer, index: int, count: int) -> tuple[Any, str]:
    """Colour and marker of a series that states none."""
    marker = MARKERS[index % len(MARKERS)]
    if isinstance(layer.colours, float) and count > 2:
        return pyplot.cm.viridis(layer.colours * index / (count - 1)), marker
    return PALETTE[index % len(PALETTE)].light, marker


def settings() -> Any:
    """A context in which everything drawn has the figures' sizes; ticks are made when saved."""
    return pyplot.rc_context(_SETTINGS)


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
