"""Which rows of an experiment are of a past state: other weights, data or code under equal labels.

Knows rows and columns; nothing about files. A changed checkpoint, a data set that moved on or
another engine makes new cells, with other run ids. Beside the old ones they would be two answers to
one question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from spec_bench.vocabulary import columns

Row = Mapping[str, Any]
STATE = (
    *("target_revision", "draft_revision", "tree_revision"),
    *("data_revision", "prompts_digest", "engine"),
)
# What follows from the state and the place, and is nothing that a user varies.
_FOLLOWS = ("run_id", "machine", "attention")
_APART = (*STATE, *_FOLLOWS)
# What rows without an engine's number do not state.
_NEWER = ("data_source", "data_file", "device", "dtype", "compile", "threads", "stop_rule")


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
    names = [each for each in columns.names_of("identity", "setting") if each not in _APART]
    latest: dict[_Labels, dict[tuple[str, ...], float]] = defaultdict(dict)
    for new in rows:
        if _text(new, "status") == "failed":
            continue
        state, when = _state(new), _end(new, ended)
        for old_states, old_asked in product((True, False), repeat=2):
            states = latest[_labels(new, names, old_states, old_asked)]
            states[state] = max(when, states.get(state, when))

    def is_past(old: Row) -> bool:
        labels = _labels(old, names, bool(_text(old, "engine")), bool(_text(old, "prompts")))
        later, state_then = _end(old, ended), _state(old)
        others = latest.get(labels, {}).items()
        return any(when > later for state, when in others if state != state_then)

    return {str(old["run_id"]) for old in rows if is_past(old)}


_Labels = tuple[str | None, ...]


def _labels(row: Row, names: Sequence[str], stated: bool, asked: bool) -> _Labels:
    """What rows must agree in; None stands for what the older one does not say: what rows without
    an engine's number do not, unless ``stated``, and how many prompts were asked, unless ``asked``.
    """
    labels = [None if name in _NEWER and not stated else _text(row, name) for name in names]
    return (*labels, _text(row, "prompts") if asked else None, str((stated, asked)))


def _state(row: Row) -> tuple[str, ...]:
    return tuple(_text(row, name) for name in STATE)


def _end(row: Row, ended: Mapping[str, float]) -> float:
    """When the last of its jobs ended; -1 where no job names it."""
    return ended.get(str(row["run_id"]), -1.0)


def _text(row: Row, name: str) -> str:
    """A value as a file has it."""
    value = row.get(name)
    return "" if value is None else str(value)
