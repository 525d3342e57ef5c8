"""Which cells are on a side of a claim's comparison, and how a metric is called in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

Names = str | Sequence[str]


def titled(metric: str) -> str:
    """Returns a metric's name in a sentence."""
    return {"mbsu": "MBSU"}.get(metric, metric.replace("_", " "))


def several(names: Names) -> tuple[str, ...]:
    """Returns a name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True)
class ClaimCells:
    """Cells on one side of a comparison, see ``cells``."""

    decoders: tuple[str, ...]
    where: Mapping[str, Any]


def cells(*decoders: str, **where: Any) -> ClaimCells:
    """Cells of some decoders, or of all of our engine: ``cells("sd", width=lambda w: w > 1)``;
    ``where`` has what ``ClaimQuery.value`` must be: a value, several, or a function that says yes.
    """
    return ClaimCells(decoders, where)


Side = str | Sequence[str] | ClaimCells


def is_match(value: Any, condition: Any) -> bool:
    """Whether a value is a condition, is among several, or makes a function say yes."""
    if value is None or pd.isna(value):
        return False
    if callable(condition):
        return bool(condition(value))
    return (
        value in condition
        if isinstance(condition, tuple | list | set)
        else bool(value == condition)
    )
