"""The settings that some rows do not share with others, in words."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from spec_bench.vocabulary.columns import Column

_UNSTATED, _FEW_UNSTATED = " not stated", 2


def together(parts: Iterable[str]) -> str:
    """All settings of a part; those not stated are counted if they are many."""
    words = list(parts)
    unstated = [word for word in words if word.endswith(_UNSTATED)]
    if len(unstated) <= _FEW_UNSTATED:
        return ", ".join(words)
    stated = [word for word in words if word not in unstated]
    return ", ".join([*stated, f"{len(unstated)} facts{_UNSTATED}"])


def value_text(column: Column, value: object) -> str:
    """A value of a column in a heading: ``batch size 4``; an unknown one is ``not stated``."""
    if value is None or pd.isna(value) or value == "":
        return f"{column.title}{_UNSTATED}"
    return f"{column.title} {value:g}" if isinstance(value, float) else f"{column.title} {value}"
