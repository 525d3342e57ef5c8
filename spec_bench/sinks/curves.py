"""Rows of results as curves over draft length and over target budget: the best spec at each.

Knows flat rows and the papers' shorthand of a tree; nothing about W&B.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spec_bench import columns
from spec_bench.spec import parse

# What RSD's figures show (arXiv 2402.14160, Section 5); accuracy is the task's first score.
METRICS = ("block_efficiency", "mbsu", "token_rate", "accuracy")
AXES = ("draft_length", "budget")


def axes_of(spec: str) -> tuple[int, int] | None:
    """Draft length and budget (tree nodes a target call verifies) of a spec.

    None where nothing is drafted, or the shorthand is another decoder's.
    """
    tree = parse(spec or "-")
    if tree.form not in ("number", "levels", "product"):
        return None
    return tree.depth, tree.nodes


def curves(rows: Iterable[Mapping[str, Any]], axes: Sequence[str] = AXES) -> list[dict[str, float]]:
    """History lines, one a value of an axis.

    Args:
        rows: flat rows with decoder, spec and numbers; failed ones have no numbers.
        axes: which of ``AXES``.

    Returns:
        ``{"draft_length": 3, "draft_length/mbsu/rsd_s": 1.9, ...}`` for each draft length, then
        the same for each budget. Of several specs of one decoder the best value of each metric
        is taken, as the figures of RSD (arXiv 2402.14160, Section 5) do.
    """
    best: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        at = axes_of(str(row.get("spec", "")))
        for axis, value in zip(AXES, at or (), strict=False):
            if axis not in axes:
                continue
            line = best.setdefault((axis, value), {axis: float(value)})
            for metric, number in _numbers(row).items():
                name = f"{axis}/{metric}/{row['decoder']}"
                line[name] = max(number, line.get(name, number))
    order = sorted(best, key=lambda key: (AXES.index(key[0]), key[1]))
    return [best[key] for key in order if len(best[key]) > 1]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures' four metrics, those that the row has; accuracy is the task's first score."""
    names = ["accuracy", *columns.scores_in(row)]
    scores = [row[name] for name in names if row.get(name) not in (None, "")]
    values = {**{name: row.get(name) for name in METRICS}, "accuracy": next(iter(scores), None)}
    return {name: float(value) for name, value in values.items() if value not in (None, "")}
