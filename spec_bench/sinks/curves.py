"""Rows of results as curves over draft length and over target budget: the best spec at each.

A curve has one temperature; seeds are pooled in it.

Knows flat rows and the papers' shorthand of a tree; nothing about W&B.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from spec_bench.vocabulary import columns
from spec_bench.vocabulary.spec import parse

# What the papers' figures show; accuracy is the task's first score.
METRICS = (
    *("block_efficiency", "acceptance_rate", "mbsu", "token_rate", "speedup"),
    *("energy_j_per_token", "accuracy"),
)
AXES = ("draft_length", "budget")
_BY_LEVELS = ("mcsd", "mcsd_wor", "mcns", "specinfer", "rsd_c")  # a number is children at the root
_BEAMS = ("beam_sampling", "beam_search")  # a number is beams, and nothing is drafted


def axes_of(spec: str, decoder: str) -> tuple[int, int] | None:
    """Draft length and budget (tree nodes a target call verifies) of a decoder's spec.

    None where nothing is drafted, or the shorthand is a name.
    """
    tree = parse(spec or "-")
    if tree.form in ("root", "name") or decoder in _BEAMS:
        return None
    if tree.form == "number" and decoder in _BY_LEVELS:
        return 1, tree.width
    return tree.depth, tree.nodes


def better_of(metric: str, one: float, other: float) -> float:
    """The better of two values of one of ``METRICS``."""
    less = any(each.name == metric and each.better == "down" for each in columns.COLUMNS)
    return min(one, other) if less else max(one, other)


def curves(rows: Iterable[Mapping[str, Any]], axes: Sequence[str] = AXES) -> list[dict[str, float]]:
    """History lines, one a value of an axis.

    Args:
        rows: flat rows of one pair and task, with decoder, spec and numbers; failed ones have no
            numbers.
        axes: which of ``AXES``.

    Returns:
        ``{"draft_length": 3, "draft_length/mbsu/rsd_s/T0.3": 1.9, ...}`` for each draft length,
        then the same for each budget: a curve each decoder and temperature, and where other
        settings that tell runs apart differ, each of those. Seeds are pooled: a number is the mean
        over them. Of several specs of one decoder the best value of each metric is taken, as the
        figures of RSD (arXiv 2402.14160, Section 5) do. Autoregressive decoding, which has no
        place of its own, competes at each.
    """
    lines: dict[tuple[str, int], dict[str, float]] = {}
    constant: dict[str, float] = {}
    for (decoder, spec, curve), numbers in _over_seeds(list(rows)).items():
        places = dict(zip(AXES, axes_of(spec, decoder) or (), strict=False))
        for metric, number in numbers.items():
            if decoder == "ar":
                constant[f"{metric}/{decoder}/{curve}"] = number
        for axis, value in places.items():
            if axis not in axes or not numbers:
                continue
            line = lines.setdefault((axis, value), {axis: float(value)})
            for metric, number in numbers.items():
                name = f"{axis}/{metric}/{decoder}/{curve}"
                line[name] = better_of(metric, number, line.get(name, number))
    for (axis, _), line in lines.items():
        line |= {f"{axis}/{name}": number for name, number in constant.items()}
    return [lines[key] for key in sorted(lines, key=lambda key: (AXES.index(key[0]), key[1]))]


def curve_of(row: Mapping[str, Any], varying: Sequence[str] = ()) -> str:
    """Which curve of its decoder a row belongs to: ``T0.3``, ``T1, batch_size 4``."""
    temperature = row.get("temperature")
    label = "" if temperature in (None, "") else f"T{float(temperature):g}"
    return ", ".join(filter(None, [label, *(f"{name} {row.get(name, '')}" for name in varying)]))


def _over_seeds(
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str, str], dict[str, float]]:
    """(decoder, spec, curve) -> the mean of each metric over the seeds that have it."""
    apart = dict.fromkeys(each.name for row in rows for each in columns.apart_in(row))
    varying = [
        name
        for name in apart
        if name != "temperature" and len({str(row.get(name, "")) for row in rows}) > 1
    ]
    cells: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for row in rows:
        cell = (str(row["decoder"]), str(row.get("spec", "")), curve_of(row, varying))
        numbers = cells.setdefault(cell, {})
        for metric, number in _numbers(row).items():
            numbers.setdefault(metric, []).append(number)
    return {
        cell: {metric: fmean(seeds) for metric, seeds in numbers.items()}
        for cell, numbers in cells.items()
    }


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures' metrics, those that the row has; accuracy is the task's first score."""
    names = ["accuracy", *columns.scores_in(row)]
    scores = [row[name] for name in names if row.get(name) not in (None, "")]
    values = {**{name: row.get(name) for name in METRICS}, "accuracy": next(iter(scores), None)}
    return {name: float(value) for name, value in values.items() if value not in (None, "")}
