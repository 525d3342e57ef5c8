"""Texts of figures that name columns in braces: ``{task}, t = {tree.threshold:g}``.

A column is written if all rows have one value of it, and is empty otherwise; its name with an s
(``{tasks}``) lists all values. ``{paths:path}`` counts: 1 path, 2 paths. ``{marks}`` are the
marks of rows that are not exact.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

import pandas as pd

from spec_bench.vocabulary.names import MARKS, title


def fill(
    text: str, rows: pd.DataFrame, names: Mapping[str, str] | None = None, **more: object
) -> str:
    """The text with its braces filled: from columns of the rows, or from ``more``, which are none;
    ``names`` has the text of a value, where the usual name is not meant.
    """
    filled = _Columns(rows, names or {}, more).format(text)
    return re.sub(" {2,}", " ", filled).strip(" ")


def known(text: str, row: Mapping[str, Any]) -> bool:
    """Whether a row has a value in every column that a text names."""
    names = [name for _, name, _, _ in string.Formatter().parse(text) if name]
    return not any(pd.isna(row[name]) for name in names if name in row)


def marks(rows: pd.DataFrame) -> str:
    """The marks of rows that are not exact, for a title; "" where all are. A row of another engine
    among ours is named: the rest is not that engine's.
    """
    if "lossless" not in rows:
        return ""
    named = {mark: text for mark, text in MARKS.items() if (rows.lossless == mark).any()}
    elsewhere = rows.lossless == "unaudited"
    if elsewhere.any() and not elsewhere[rows.decoder != "ar"].all():
        decoders = dict.fromkeys(map(title, rows.decoder[elsewhere]))
        named["unaudited"] = f"{', '.join(decoders)}: {MARKS['unaudited']}"
    return f" ({', '.join(named.values())})" if named else ""


def jobs(rows: pd.DataFrame) -> str:
    """The note on decoders that were not measured side by side with the rest; "" if all were."""
    if "baseline" not in rows or rows.baseline.nunique() < 2:
        return ""
    names = dict.fromkeys(rows.decoder[rows.baseline == "same job"])
    listed = ", ".join(title(name) for name in names)
    return f"\nNot one job: {listed} measured with AR, the rest in a later one."


class _Columns(string.Formatter):
    """Looks names up in rows."""

    def __init__(
        self, rows: pd.DataFrame, names: Mapping[str, str], more: Mapping[str, object]
    ) -> None:
        self._rows, self._names, self._more = rows, names, more

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        name = str(key)
        if name in self._more:
            return self._more[name]
        if name == "marks":
            return marks(self._rows)
        if name in self._rows:
            values = self._rows[name].dropna().unique()
            bare = len(values) != 1 or (name == "spec" and values[0] == "-")
            return "" if bare else self._written(values[0])
        if name.removesuffix("s") in self._rows:
            values = self._rows[name.removesuffix("s")].dropna().unique()
            return ", ".join(str(self._written(value)) for value in values)
        return ""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return self.get_value(field_name, args, kwargs), field_name  # a dot is part of the name

    def format_field(self, value: Any, format_spec: str) -> Any:
        if value == "":
            return ""
        if len(format_spec) > 1 and format_spec.isalpha():
            return f"{value:g} {format_spec}{'' if value == 1 else 's'}"
        return super().format_field(value, format_spec)

    def _written(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return self._names.get(value) or title(value)
