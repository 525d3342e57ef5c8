"""The quickstart's figure: what each decoder gains and whether its texts stay as good."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from spec_bench.metrics import METRICS
from spec_bench.report.load import Group

matplotlib.use("Agg")
from matplotlib import pyplot

# Okabe & Ito: distinguishable with any colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_PANELS = (
    ("block_efficiency", "block efficiency (tokens per target call)"),
    ("mbsu", "memory-bound speed-up (MBSU)"),
    ("token_rate", "token rate (tokens/s, decoding)"),
    ("quality", "quality (the task's score)"),
)


def draw(groups: Sequence[Group], path: Path) -> None:
    """Draws four panels, one mark with its 95% interval per decoder and task.

    Args:
        groups: comparable cells each.
        path: the PNG to write.
    """
    names = list(dict.fromkeys(_label(row) for group in groups for row in _rows(group)))
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), sharex=True, constrained_layout=True)
    for (column, title), axis in zip(_PANELS, axes.flat, strict=True):
        for index, group in enumerate(groups):
            _series(axis, group, names, column, index, len(groups))
        axis.set_title(title, fontsize=11)
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right")
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=9, frameon=False)
    figure.suptitle(f"{groups[0].rows.iloc[0].pair}: bars are 95% intervals over prompts")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _series(
    axis: Any, group: Group, names: Sequence[str], column: str, index: int, count: int
) -> None:
    """One task's marks in one panel, moved aside so that tasks do not hide each other."""
    name = column if column != "quality" else quality_column(group)
    if name is None:
        return
    offset = (index - (count - 1) / 2) * 0.18
    for position, row in enumerate(_rows(group)):
        value = row.get(name)
        if value is None or pd.isna(value):
            continue
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        known = not (pd.isna(low) or pd.isna(high))
        errors = [[max(0.0, value - low)], [max(0.0, high - value)]] if known else None
        title = group.title if column != "quality" else f"{group.title}: {name}"
        axis.errorbar(
            names.index(_label(row)) + offset,
            value,
            yerr=errors,
            fmt=_MARKERS[index % len(_MARKERS)],
            color=_COLOURS[index % len(_COLOURS)],
            capsize=2,
            markersize=5,
            label=title if position == 0 else None,
        )


def quality_column(group: Group) -> str | None:
    """The first quality score that the group has."""
    known = (name for name in METRICS if name in group.rows and group.rows[name].notna().any())
    return next(known, None)


def _rows(group: Group) -> list[pd.Series]:
    """The cells that have numbers."""
    return [row for _, row in group.rows.iterrows() if row.status != "failed"]


def _label(row: pd.Series) -> str:
    return f"{row.decoder} {row.spec}" if row.spec != "-" else str(row.decoder)
