"""Which cells are on a side of a claim's comparison, and how a metric is called in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

Names = str | Sequence[str]
Cells = Mapping[str, Any]
"""Cells on one side of a comparison, see ``cells``."""
DECODERS = "decoders"


def format_metric(metric: str) -> str:
    """Formats a metric's name for a sentence."""
    return {"mbsu": "MBSU"}.get(metric, metric.replace("_", " "))


def to_tuple(names: Names) -> tuple[str, ...]:
    """Returns one name or several as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def cells(*decoders: str, **where: Any) -> Cells:
    """Cells of some decoders, or of all of our engine: ``cells("sd", width=lambda w: w > 1)``;
    ``where`` has what ``ClaimQuery.get_value`` must be: a value, several, or a function that says
    yes.
    """
    return {DECODERS: decoders, **where}


def meets_condition(value: Any, condition: Any) -> bool:
    """Returns whether a value equals a condition, is one of several, or satisfies a function."""
    if value is None or pd.isna(value):
        return False
    if callable(condition):
        return bool(condition(value))
    among = condition if isinstance(condition, tuple | list | set) else (condition,)
    return value in among
