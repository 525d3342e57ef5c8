"""ReDrafter's Figure 3: how often the heads are right at t+1 to t+5, in training and validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.figures.choose import nothing_measured
from spec_bench.report.figures.style import (
    DECODER_COLOURS,
    MARKERS,
    TWO_COLUMNS_INCHES,
    name_of,
    pyplot,
    save,
    settings,
)
from spec_bench.report.heads import GUESSES, KINDS, NO_RNN, TEACHER_FORCING, best_heads, heads_of
from spec_bench.report.papers.drafter_size import written
from spec_bench.report.papers.index import Item

_SIDES = {"train": "training", "validation": "validation"}
_NOTE = (
    "Of each kind the head with the highest mean accuracy in validation. Bars: 95%, as if each "
    "held-out dialogue were one draw.\n" + TEACHER_FORCING
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws two panels, a curve a kind of head.

    Raises:
        ValueError: no heads were trained here.
    """
    found = best_heads(heads_of(rows))
    if not found:
        raise nothing_measured(item)
    with settings():
        figure, axes = pyplot.subplots(
            1, 2, figsize=(TWO_COLUMNS_INCHES * 0.8, 2.9), sharey=True, layout="constrained"
        )
        for plot, (side, title) in zip(axes, _SIDES.items(), strict=True):
            for kind, head in found.items():
                _curve(plot, kind, head, side)
            plot.set(xlabel="guess", title=title)
        axes[0].set_ylim(bottom=0)  # both: the axis is shared
        axes[0].set_ylabel("accuracy of the best guess")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        figure.supxlabel(_NOTE, fontsize=6.5, x=0.01, ha="left")
        return save(figure, folder, f"redrafter-fig{item.number}", formats)


def half_width(share: float, draws: float) -> float:
    """Of a share's 95% interval."""
    return 1.96 * sqrt(share * (1 - share) / draws)


def _curve(plot: Any, kind: str, head: Mapping[str, Any], side: str) -> None:
    """One head; bars in validation only, since training's positions were learned."""
    shares = [head[f"{side} {guess}"] for guess in GUESSES]
    dialogues = head.get("validation dialogues")
    bars = None
    if side == "validation" and dialogues is not None and not pd.isna(dialogues):
        bars = [half_width(share, float(dialogues)) for share in shares]
    blocks = f"{int(head['blocks'])} block{'' if head['blocks'] == 1 else 's'}"
    plot.errorbar(
        GUESSES,
        shares,
        yerr=bars,
        fmt=f"{MARKERS[KINDS.index(kind)]}{'--' if kind == NO_RNN else '-'}",
        color=DECODER_COLOURS[kind],
        markersize=4,
        elinewidth=0.6,
        capsize=1.5,
        label=f"{name_of(kind)}\n{blocks}, {written(int(head['parameters']))}",
    )
