"""Rows that were decoded in another sitting than the plain decoding of their table.

A speed-up is against plain decoding of the same sitting, timed in turn. So the rates of a cell that
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
    """Which rows of a table were decoded in another sitting than its plain decoding.

    Args:
        rows: comparable cells of one seed.
    """
    plain = next((_number(row, "token_rate") for row in rows if row["decoder"] == "ar"), None)
    found = []
    for row in rows:
        rate, speedup = _number(row, "token_rate"), _number(row, "speedup")
        known = plain and rate and speedup
        found.append(bool(known and abs(rate / plain / speedup - 1) > _ROUNDED))
    return found


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
