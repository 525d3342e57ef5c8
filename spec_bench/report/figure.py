"""The quickstart's figure: what each decoder gains and whether its texts stay as good."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.figures.relative import score_column
from spec_bench.report.figures.style import (
    COLOURS,
    MARKERS,
    error_bars,
    marks,
    name_of,
    pyplot,
    settings,
)
from spec_bench.report.load import Group

_PANELS = (
    ("block_efficiency", "block efficiency (tokens per target call)"),
    ("mbsu", "memory-bound speed-up (MBSU)"),
    ("token_rate", "token rate (tokens/s, decoding)"),
    ("quality", "quality (the task's score)"),
)
_INCHES_PER_DECODER = 0.34
_LEAST_INCHES, _MOST_INCHES = 8.0, 24.0


def draw(groups: Sequence[Group], path: Path) -> None:
    """Draws four panels, one mark with its 95% interval per decoder and task.

    Args:
        groups: comparable cells each.
        path: the PNG to write.
    """
    names = list(dict.fromkeys(_label(row) for group in groups for row in _rows(group)))
    width = min(max(_LEAST_INCHES, 2 * _INCHES_PER_DECODER * len(names)), _MOST_INCHES)
    with settings():
        figure, axes = pyplot.subplots(
            2, 2, figsize=(width, 6.2), sharex=True, layout="constrained"
        )
        for (column, title), axis in zip(_PANELS, axes.flat, strict=True):
            for index, group in enumerate(groups):
                _series(axis, group, names, column, index, len(groups))
            axis.set_title(title)
            axis.set_xticks(range(len(names)), names, rotation=40, ha="right")
            axis.grid(axis="x", visible=False)
            axis.set_ylim(bottom=0)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False)
        pairs = ", ".join(dict.fromkeys(str(group.rows.iloc[0].pair) for group in groups))
        mark = marks(pd.concat([group.rows for group in groups]))
        figure.suptitle(f"{pairs}{mark}: bars are 95% intervals over prompts", fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        pyplot.close(figure)


def _series(
    axis: Any, group: Group, names: Sequence[str], column: str, index: int, count: int
) -> None:
    """One task's marks in one panel, moved aside so that tasks do not hide each other."""
    name = column if column != "quality" else score_column(group.rows)
    if name is None or name not in group.rows:
        return
    rows = [row for row in _rows(group) if not pd.isna(row[name])]
    if not rows:
        return
    spread = 0.6 / max(count, 3)  # all tasks' marks of a decoder stay nearer to it than to others
    aside = (index - (count - 1) / 2) * spread
    title = " ".join([name_of(group.rows.iloc[0].task), *group.title.split(" ")[1:]])
    axis.errorbar(
        [names.index(_label(row)) + aside for row in rows],
        [row[name] for row in rows],
        yerr=error_bars((row[name], row[f"{name}_low"], row[f"{name}_high"]) for row in rows),
        fmt=MARKERS[index % len(MARKERS)],
        color=COLOURS[index % len(COLOURS)],
        capsize=2,
        markersize=4.5,
        label=f"{title}: {name}" if column == "quality" else title,
    )


def _rows(group: Group) -> list[pd.Series]:
    """The cells that have numbers."""
    return [row for _, row in group.rows.iterrows() if row.status != "failed"]


def _label(row: pd.Series) -> str:
    rows = "" if str(row.get("tree_attention", True)).lower() != "false" else ", paths as rows"
    return f"{row.decoder} {row.spec}{rows}" if row.spec != "-" else str(row.decoder)
