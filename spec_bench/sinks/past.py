"""Which rows of an experiment are of a past state: other weights, data or code under equal labels.

Knows rows and columns; nothing about files. A changed checkpoint, a data set that moved on or
another engine makes new cells, with other run ids. Beside the old ones they would be two answers to
one question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from spec_bench import columns

Row = Mapping[str, Any]
STATE = ("target_revision", "draft_revision", "data_revision", "prompts_digest", "engine")
# What follows from the state and the place, and is nothing that a user varies.
_FOLLOWS = ("run_id", "machine", "attention")
# What rows without an engine's number do not state.
_NEWER = ("data_source", "data_file", "device", "dtype", "compile", "threads", "stop_rule")
_CELL = ("pair", "target", "draft", "task", "decoder", "spec")


def superseded(rows: Sequence[Row], ended: Mapping[str, float]) -> set[str]:
    """The run ids of the rows that a newer row takes the place of.

    It does where all labels are equal (pair, models, task, decoder, spec, and every setting that a
    user varies on purpose, such as temperature, batch size, seed or dtype), as many prompts were
    asked, and some of ``STATE`` is another. A failed row takes no place.

    Args:
        rows: an experiment's, as its file has them.
        ended: run id -> when the last job that has the cell ended, in seconds; a row that it does
            not name is older than all that it names.
    """
    cells: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        cells[tuple(_text(row, name) for name in _CELL)].append(row)
    return {
        str(old["run_id"])
        for same in cells.values()
        for old, new in permutations(same, 2)
        if _takes_the_place(new, old, ended)
    }


def _takes_the_place(new: Row, old: Row, ended: Mapping[str, float]) -> bool:
    """Whether the one is the other's cell, measured later and in another state."""
    later = ended.get(str(new["run_id"]), -1.0) > ended.get(str(old["run_id"]), -1.0)
    if not later or _text(new, "status") == "failed":
        return False
    unstated = () if _text(old, "engine") else _NEWER
    labels = [
        name
        for name in columns.names_of("identity", "setting")
        if name not in (*STATE, *_FOLLOWS, *unstated)
    ]
    alike = all(_text(new, name) == _text(old, name) for name in labels)
    asked = _text(old, "prompts") in ("", _text(new, "prompts"))
    return alike and asked and any(_text(new, name) != _text(old, name) for name in STATE)


def _text(row: Row, name: str) -> str:
    """A value as a file has it."""
    value = row.get(name)
    return "" if value is None else str(value)
