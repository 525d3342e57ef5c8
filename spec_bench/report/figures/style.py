"""How the figures look: colours, names, sizes, and how a figure becomes files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import pyplot

from spec_bench import names
from spec_bench.names import MARKS

MARKERS = names.MARKERS
COLOURS = tuple(colour.light for colour in names.PALETTE)
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS
DECODER_COLOURS = {name: each.colour.light for name, each in names.DECODERS.items()}
FORMATS = ("png", "pdf")
_DPI = 200
TWO_COLUMNS_INCHES = 7.2  # the width of a page of two columns
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


def settings() -> Any:
    """A context in which everything drawn has the figures' sizes."""
    return pyplot.rc_context(_SETTINGS)


def name_of(label: object) -> str:
    """A decoder's or task's name in print."""
    return names.title(str(label))


def marks(rows: pd.DataFrame) -> str:
    """What sets these rows apart from exact ones, for a title; "" where nothing does."""
    if "lossless" not in rows:
        return ""
    found = [text for mark, text in MARKS.items() if (rows.lossless == mark).any()]
    return f" ({', '.join(found)})" if found else ""


def error_bars(points: Iterable[tuple[float, float, float]]) -> list[list[float]]:
    """Two rows of lengths from (value, low, high); 0 where an end is unknown."""
    below, above = [], []
    for value, low, high in points:
        below.append(0.0 if pd.isna(low) else max(0.0, value - low))
        above.append(0.0 if pd.isna(high) else max(0.0, high - value))
    return [below, above]


def save(figure: Any, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Writes ``name.png``, ``name.pdf`` or both; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(_DPI)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)  # once: every format would lay out and draw one more time
        figure.set_layout_engine(None)
    paths = [folder / f"{name}.{suffix}" for suffix in formats]
    for path in paths:
        dated = path.suffix == ".pdf"  # a PNG bears no date
        figure.savefig(path, dpi=_DPI, metadata={"CreationDate": None} if dated else None)
    pyplot.close(figure)
    return paths
