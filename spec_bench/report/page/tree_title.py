"""A cell's tree for people: its shorthand, and the drafter where cells differ in it alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def tree_titles(rows: pd.DataFrame) -> list[str]:
    """A title for each row of a group.

    Args:
        rows: with ``decoder``, ``spec`` and, where it is known, ``draft``.

    Returns:
        The shorthand; behind it the draft's or the heads' name where cells of that decoder and tree
        differ in it.
    """
    if "draft" not in rows:
        return [_spec(row) for row in rows.to_dict("records")]
    several = rows.groupby(["decoder", "spec"]).draft.transform("nunique") > 1
    named = zip(rows.to_dict("records"), several, strict=True)
    return [
        f"{_spec(row)} {_short(str(row['draft']))}" if both else _spec(row) for row, both in named
    ]


def _spec(row: Mapping[Any, Any]) -> str:
    return str(row["spec"])


def _short(draft: str) -> str:
    """The last part of a model's name; of heads in a training's folder that of the training."""
    return draft.rstrip("/").removesuffix("/heads").rsplit("/", 1)[-1]
