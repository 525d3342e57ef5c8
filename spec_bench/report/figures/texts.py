"""Texts of figures that name columns in braces: ``{task}, t = {tree.threshold:g}``.

A column is written if all rows have one value of it, and is empty otherwise; its name with an s
(``{tasks}``) lists all values. ``{paths:path}`` counts: 1 path, 2 paths. ``{marks}`` are the
marks of rows that are not exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from spec_bench.vocabulary.names import MARKS, title

_NAMED = re.compile(r"\{([^{}:]+):?([^{}]*)\}")


def fill(
    text: str, rows: pd.DataFrame, names: Mapping[str, str] | None = None, **more: object
) -> str:
    """The text with its braces filled: from columns of the rows, or from ``more``, which are none;
    ``names`` has the text of a value, where the usual name is not meant.
    """
    known = {"marks": marks(rows), **more}

    def shown(value: Any) -> Any:
        return (names or {}).get(value) or title(value) if isinstance(value, str) else value

    def written(match: re.Match[str]) -> str:
        name, form = match.groups()
        many = name.removesuffix("s")
        values = next((list(rows[n].dropna().unique()) for n in (name, many) if n in rows), [])
        value: Any = ", ".join(str(shown(each)) for each in values)
        if name in known:
            value = known[name]
        elif name in rows:
            bare = len(values) != 1 or (name == "spec" and values[0] == "-")
            value = "" if bare else shown(values[0])
        if len(form) > 1 and form.isalpha() and value != "":
            return f"{value:g} {form}{'' if value == 1 else 's'}"
        return "" if value == "" else f"{value:{form}}"

    return re.sub(" {2,}", " ", _NAMED.sub(written, text)).strip(" ")


def known(text: str, row: Mapping[str, Any]) -> bool:
    """Whether a row has a value in every column that a text names."""
    return not any(name in row and pd.isna(row[name]) for name, _ in _NAMED.findall(text))


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
