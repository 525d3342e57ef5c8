"""What tells some rows from others, in words."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from spec_bench.vocabulary.columns import Column

_UNSTATED, _FEW_UNSTATED = " not stated", 2


def together(told: Iterable[str]) -> str:
    """All that tells a part from others; of rows that lack many columns it says how many."""
    words = list(told)
    unstated = [word for word in words if word.endswith(_UNSTATED)]
    if len(unstated) <= _FEW_UNSTATED:
        return ", ".join(words)
    stated = [word for word in words if word not in unstated]
    return ", ".join([*stated, f"{len(unstated)} facts{_UNSTATED}"])


def said(column: Column, value: object) -> str:
    """A value of a column in a heading: ``batch size 4``; an unknown one is ``not stated``."""
    if value is None or pd.isna(value) or value == "":
        return f"{column.title}{_UNSTATED}"
    return f"{column.title} {value:g}" if isinstance(value, float) else f"{column.title} {value}"
