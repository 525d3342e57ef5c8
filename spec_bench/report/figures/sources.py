"""Where the rows of a figure come from: measured cells, trained heads, or both joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from spec_bench.report.data.heads import GUESSES, grid_of, heads_of, shown_heads
from spec_bench.report.data.statistics import half_width
from spec_bench.report.figures.choose import shown_cells
from spec_bench.report.figures.derived import derive
from spec_bench.report.figures.drawing import Drawing
from spec_bench.report.figures.printed import with_axes
from spec_bench.report.papers.pairs import written
from spec_bench.report.papers.paper import Figure

_SIDES = {"train": "training", "validation": "validation"}


def cells(item: Figure, drawing: Drawing, rows: pd.DataFrame) -> pd.DataFrame:
    """Measured cells."""
    return with_axes(derive(shown_cells(item, rows, drawing.paths_as_rows)), item.paper)


def cells_of_heads(item: Figure, drawing: Drawing, rows: pd.DataFrame) -> pd.DataFrame:
    """Measured cells with what is known of the head that drafted."""
    return grid_of(heads_of(rows), cells(item, drawing, rows))


def best_of_heads(item: Figure, drawing: Drawing, rows: pd.DataFrame) -> pd.DataFrame:
    """How often the best head of each kind and size is right: a row per head, side and guess.

    Bars are those of validation, as if each held-out dialogue were one draw: training's positions
    were learned.
    """
    found = []
    for kind, head in shown_heads(heads_of(rows)).items():
        for side, title in _SIDES.items():
            draws: Any = head.get("validation dialogues") if side == "validation" else None
            for guess in GUESSES:
                share = head[f"{side} {guess}"]
                known = draws is not None and not pd.isna(draws)
                half = half_width(share, float(draws)) if known else float("nan")
                found.append(
                    {
                        **{"head": kind, "side": title, "guess": guess, "blocks": head["blocks"]},
                        "size": written(int(head["parameters"])),
                        "accuracy": share,
                        **{"accuracy_low": share - half, "accuracy_high": share + half},
                    }
                )
    return pd.DataFrame(found)


SOURCES: dict[str, Callable[[Figure, Drawing, pd.DataFrame], pd.DataFrame]] = {
    "cells": cells,
    "cells_of_heads": cells_of_heads,
    "best_of_heads": best_of_heads,
}
"""What ``source`` of a drawing may name."""
