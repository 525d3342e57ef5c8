"""How the figures look: colours, names, sizes, and how a figure becomes files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import pyplot

from spec_bench.report.papers.titles import MARKS

# Okabe & Ito: distinguishable with any colour vision.
BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DECODER_COLOURS = {  # as on pages
    **{"sd": BLUE, "spectr": ORANGE, "rsd_c": GREEN, "rsd_s": VERMILLION},
    **{"specinfer": ORANGE, "beam_sampling": GREEN, "dsbd": VERMILLION},
    **{"medusa": BLUE, "redrafter": VERMILLION, "redrafter_no_rnn": GREEN, "ar": BLACK},
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FORMATS = ("png", "pdf")
_DPI = 200
TWO_COLUMNS_INCHES = 7.2  # the width of a page of two columns
NAMES = {
    "ar": "AR",
    "sd": "SD",
    "spectr": "SpecTr",
    "rsd_c": "RSD-C",
    "rsd_s": "RSD-S",
    "xsum": "XSum",
    "wmt18_deen": "WMT18 De-En",
    "wmt14_ende": "WMT14 En-De",
    "dolly": "Dolly",
    "alpaca": "Alpaca",
    "squad": "SQuAD",
    "spider": "Spider",
    "specinfer": "SpecInfer",
    "beam_sampling": "beam sampling",
    "dsbd": "DSBD",
    "medusa": "Medusa",
    "redrafter": "ReDrafter",
    "redrafter_no_rnn": "ReDrafter, no recurrence",
    "mt_bench": "MT-bench",
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


def settings() -> Any:
    """A context in which everything drawn has the figures' sizes."""
    return pyplot.rc_context(_SETTINGS)


def name_of(label: object) -> str:
    """A decoder's or task's name in print."""
    return NAMES.get(str(label), str(label))


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
