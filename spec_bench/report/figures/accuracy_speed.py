"""ReDrafter's Figure 4: heads with and without the recurrence, accuracy at t+5 against speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spec_bench.report.figures import published
from spec_bench.report.figures.choose import (
    nothing_measured,
    own_pairs_first,
    sampled_as,
    usable,
)
from spec_bench.report.figures.style import (
    BLUE,
    ORANGE,
    TWO_COLUMNS_INCHES,
    error_bars,
    marks,
    pyplot,
    save,
    settings,
)
from spec_bench.report.heads import NO_RNN, grid_of, heads_of
from spec_bench.report.papers.index import Item

ACCURACY = "validation t+5"
_KINDS = {"redrafter": ("with recurrence", ORANGE, "o"), NO_RNN: ("without", BLUE, "s")}
_PANELS = {"token_rate": "tokens/s", "block_efficiency": "tokens per target call"}
_NOTE = (
    "A mark is a head (number of blocks, learning rate); r: Pearson's correlation. The paper "
    "prints 0.798 with and 0.907 without recurrence, for speed.\nBars: 95% intervals over prompts. "
    "Each head decoded in a job of its own, so that speeds hold what the machine did meanwhile."
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws two panels per pair: speed, and tokens per target call, which no machine changes.

    Raises:
        ValueError: no cell of a head whose accuracy is known.
    """
    found = own_pairs_first(sampled_as(item, usable(rows, item)), published.pairs_of(item))
    grid = grid_of(heads_of(rows), found)
    if grid.empty:
        raise nothing_measured(item)
    paths = []
    for pair, own in grid.groupby("pair", sort=False):
        with settings():
            figure, axes = pyplot.subplots(
                1, 2, figsize=(TWO_COLUMNS_INCHES, 3.0), layout="constrained"
            )
            for plot, (column, title) in zip(axes, _PANELS.items(), strict=True):
                _draw_panel(plot, own, column)
                plot.set(xlabel="validation accuracy at t+5", ylabel=title)
            beams = ", ".join(dict.fromkeys(own.spec.astype(str)))
            figure.suptitle(f"{pair}: beams {beams}{marks(own)}", fontsize=8)
            figure.supxlabel(_NOTE, fontsize=6.5, x=0.01, ha="left")
            paths += save(figure, folder, f"redrafter-fig{item.number}-{pair}", formats)
    return paths


def correlation(grid: pd.DataFrame, column: str) -> float | None:
    """Pearson's r of accuracy at t+5 and a column; None for fewer than three heads."""
    known = grid.dropna(subset=[ACCURACY, column])
    if len(known) < 3 or known[ACCURACY].std() == 0 or known[column].std() == 0:
        return None
    return float(np.corrcoef(known[ACCURACY], known[column])[0, 1])


def _draw_panel(plot: Any, grid: pd.DataFrame, column: str) -> None:
    """A cloud a kind."""
    for kind, (name, colour, marker) in _KINDS.items():
        own = grid[grid["head"] == kind]
        if own.empty:
            continue
        r = correlation(own, column)
        ends = own[[column, f"{column}_low", f"{column}_high"]].itertuples(index=False, name=None)
        plot.errorbar(
            own[ACCURACY],
            own[column],
            yerr=error_bars(ends),
            fmt=marker,
            color=colour,
            markersize=5,
            elinewidth=0.6,
            label=f"{name} ({len(own)} heads){'' if r is None else f', r = {r:.3f}'}",
        )
    plot.legend(frameon=False)
