"""Rows split by what tells runs apart, so that no table or figure mixes them.

Knows the columns that do (``columns.csv``, ``apart``); nothing about tables or figures.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import pandas as pd

from spec_bench.columns import Column, apart_in
from spec_bench.files import digest
from spec_bench.report.rows import said

_WITHIN = {"run": (), "task": ("pair", "task"), "pair": ("pair",)}
_LONGEST = 60  # characters of a file's name
_ANY: str = ""  # a value that no row of the same task, or pair, differs in


def split(rows: pd.DataFrame, told: Collection[str]) -> list[tuple[str, pd.DataFrame]]:
    """The rows in parts that agree in every column that tells runs apart.

    What belongs to the task, such as its length limit, may differ from task to task, and likewise
    for the pair: only where one task has several is it a reason to split, and rows of other tasks
    stand in every part.

    Args:
        rows: cells.
        told: columns whose values are told apart within a table or figure anyway.

    Returns:
        What tells each part from the others (``batch size 4``) and its rows, the part with most
        rows first; one part, told by "", where nothing differs.
    """
    values = {each: _values(rows, each) for each in apart_in(rows) if each.name not in told}
    varying = [column for column, own in values.items() if (own != _ANY).any()]
    if not varying:
        return [("", rows)]
    keys = [tuple(values[column].iloc[place] for column in varying) for place in range(len(rows))]
    whole = [key for key in dict.fromkeys(keys) if not _covered(key, keys)]
    parts = [
        (", ".join(filter(None, key)), rows[[_fits(own, key) for own in keys]]) for key in whole
    ]
    return sorted(parts, key=lambda part: -len(part[1]))


def _values(rows: pd.DataFrame, column: Column) -> pd.Series:
    """A column's values as headings say them; nothing where it tells no rows apart."""
    texts = rows[column.name].map(lambda value: said(column, value))
    within = [name for name in _WITHIN[column.apart] if name in rows]
    counts = texts.groupby([rows[name] for name in within] if within else [0] * len(rows))
    return texts.where(counts.transform("nunique") > 1, _ANY)


def _fits(own: tuple[str, ...], key: tuple[str, ...]) -> bool:
    return all(mine in (_ANY, other) for mine, other in zip(own, key, strict=True))


def _covered(key: tuple[str, ...], keys: Iterable[tuple[str, ...]]) -> bool:
    """Whether a part with more values holds these rows, too."""
    return any(other != key and _fits(key, other) for other in keys)


def slug(text: str) -> str:
    """What tells a part from others, as part of a file's name: ``-batch-size-4``; "" for none.

    Of a long text its beginning and its digest.
    """
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
    if len(plain) > _LONGEST:
        plain = f"{plain[:_LONGEST].rpartition('-')[0] or plain[:_LONGEST]}-{digest(text)[:8]}"
    return f"-{plain}" if plain else ""
