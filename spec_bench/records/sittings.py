"""Rows that were decoded in another session than the plain decoding of their table.

A speed-up is against plain decoding of the same session, timed in turn. So the rates of a cell that
was added to a finished job have a quotient that its speed-up is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

OTHER = "another sitting"
MEANING = (
    f"{OTHER}: decoded after the others were; times and rates of different sittings are not "
    "comparable, and its speed-up is against plain decoding timed again beside it."
)
_ROUNDED = 1e-3  # what files round a rate by is far less, what two sittings differ by is more


def of_other_sitting(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Returns which rows of a seed were decoded in another session than their plain decoding."""
    rates = [_number(row, "token_rate") for row in rows]
    plain = next((rate for row, rate in zip(rows, rates, strict=True) if row["decoder"] == "ar"), 0)
    speedups = [_number(row, "speedup") for row in rows]
    return [
        bool(plain and rate and speedup) and abs(rate / plain / speedup - 1) > _ROUNDED
        for rate, speedup in zip(rates, speedups, strict=True)
    ]


def _number(row: Mapping[str, Any], name: str) -> float:
    """Returns a row's number; 0 where it has none."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) else 0.0
