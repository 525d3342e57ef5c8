"""Selects the cells on a side of a claim's comparison, and formats metrics' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

Names = str | Sequence[str]
Cells = Mapping[str, Any]
"""Conditions for the cells on one side of a comparison, see ``cells``."""
DECODERS = "decoders"


def format_metric(metric: str) -> str:
    """Formats a metric's name for a sentence."""
    return {"mbsu": "MBSU"}.get(metric, metric.replace("_", " "))


def to_tuple(names: Names) -> tuple[str, ...]:
    """Returns one name or several as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def cells(*decoders: str, **where: Any) -> Cells:
    """Returns conditions for cells of some decoders, or of all decoders of our engine. ``where``
    has conditions for ``ClaimQuery.get_value``: a value, several values, or a function that returns
    whether a value fits, as in ``cells("sd", width=lambda w: w > 1)``.
    """
    return {DECODERS: decoders, **where}


def meets_condition(value: Any, condition: Any) -> bool:
    """Returns whether a value equals a condition, is among its values, or satisfies it."""
    if value is None or pd.isna(value):
        return False
    if callable(condition):
        return bool(condition(value))
    choices = condition if isinstance(condition, tuple | list | set) else (condition,)
    return value in choices
