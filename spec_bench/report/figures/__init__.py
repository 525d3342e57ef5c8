"""The papers' figures from measured rows: ``draw("rsd", "4", rows, folder)``.

Knows which figure is drawn by which module, and nothing about where rows come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from spec_bench.report.figures import (
    acceptance,
    accepted_width,
    accuracy_speed,
    batch_sizes,
    beam_effects,
    bernoulli,
    best_trees,
    configurations,
    fronts,
    head_accuracy,
    head_beams,
)
from spec_bench.report.figures.style import FORMATS
from spec_bench.report.papers.index import Item, find_item

_Drawer = Callable[[Item, pd.DataFrame, Path, Sequence[str]], list[Path]]

_DRAWERS: dict[str, dict[str, _Drawer]] = {
    "rsd": {"1": bernoulli.draw, **dict.fromkeys("456789", best_trees.draw)},
    "mcsd": {"3": acceptance.draw, "4": configurations.draw, "5": acceptance.draw},
    "dsbd": {
        **dict.fromkeys("456", fronts.draw),
        "7": accepted_width.draw,
        **dict.fromkeys("89", beam_effects.draw),
    },
    "redrafter": {
        "3": head_accuracy.draw,
        "4": accuracy_speed.draw,
        "5": head_beams.draw,
        "6": batch_sizes.draw,
    },
}

FIGURES: dict[str, tuple[str, ...]] = {paper: tuple(drawers) for paper, drawers in _DRAWERS.items()}
"""The figures that can be drawn, by paper."""


def draw(
    paper: str,
    figure: str,
    rows: pd.DataFrame,
    folder: Path,
    pair: str | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draws a paper's figure as PNG and PDF, or as one of them.

    Args:
        paper: a key of ``FIGURES``.
        figure: one of its figures.
        rows: measured cells; for RSD's Figure 1 the grid of ``spec_bench.audit.bernoulli``.
        folder: where to write to; it is made if needed.
        pair: draw this pair's rows only; None: the figure's own pairs, or if none of them is
            measured, every pair that is.
        formats: endings of the files to write, of ``png`` and ``pdf``.

    Returns:
        The files, one of each format; RSD's and DSBD's figures have one of each per pair.

    Raises:
        ValueError: unknown figure, or nothing measured for it.
    """
    figure = str(figure)
    if paper not in FIGURES:
        raise ValueError(f"no figures of paper {paper!r}; there are: {', '.join(FIGURES)}")
    if figure not in FIGURES[paper]:
        choices = ", ".join(FIGURES[paper])
        raise ValueError(f"{paper} has no figure {figure!r} to draw; it has: {choices}")
    if pair is not None and "pair" in rows:
        known = list(dict.fromkeys(rows.pair.astype(str)))
        rows = rows[rows.pair == pair]
        if rows.empty:
            raise ValueError(
                f"nothing measured on pair {pair!r}; measured: {', '.join(known) or 'none'}"
            )
    return _DRAWERS[paper][figure](find_item("figure", f"{paper}/{figure}"), rows, folder, formats)
