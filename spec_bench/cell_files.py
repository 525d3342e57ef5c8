"""A cell's folder read: its lines, what its answers scored, where it was measured.

Another process may be adding to it. Knows which file holds what; ``packed`` knows what is made of
it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from spec_bench import files
from spec_bench.lines import read as read_generations
from spec_bench.packed import Packed, Scores, pack
from spec_bench.records import Generation

log = logging.getLogger(__name__)
_FAULTS = (ValueError, TypeError, AttributeError, OSError, RecursionError)
Read = TypeVar("Read")


def pack_run(run: Path) -> Packed | None:
    """The records of a cell's folder; None where the cell is not here.

    Scores or starts that cannot be used are said and left out; a rerun sets them aside.

    Args:
        run: ``<results>/runs/<run_id>``.
    """
    starts = _or_none(read_starts, run / files.PROVENANCE)
    done = read_lines(run / files.GENERATIONS)
    if not starts and not done:
        return None
    scores = _or_none(read_scores, run / files.SCORES)
    return pack(run.name, done, starts[-1] if starts else None, scores, read_retimed(run))


def _or_none(read: Callable[[Path], Read], path: Path) -> Read | None:
    try:
        return read(path)
    except ValueError as error:
        log.warning("%s", error)
        return None


def read_lines(path: Path) -> list[Generation]:
    """A cell's own lines in their order, which another process may be adding to.

    Args:
        path: its ``generations.jsonl``; none where there is none yet.

    Returns:
        One a repeat and prompt, of several the last; what is no whole line is left out, and said
        where it is not a kill's.
    """
    found = read_generations(path)
    if found.faults:
        log.warning("%s: %s", path, found.faults[0])
    return list(found.generations)


def read_retimed(run: Path) -> list[Generation]:
    """What later sittings timed again of a baseline, in the order of their files.

    Args:
        run: the baseline's folder.
    """
    return [each for path in files.retimed_files(run) for each in read_lines(path)]


def read_scores(path: Path) -> Scores:
    """What a cell's ``scores.json`` says; nothing where there is none.

    Raises:
        ValueError: the file cannot be used; the message names it and says why.
    """
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
        values = [value for own in found.values() for value in own.values()]
        numbers = [n for each in values for n in (each if isinstance(each, list) else [each])]
        if not all(type(value) in (int, float) and isfinite(value) for value in numbers):
            raise ValueError("a score is no number")
    except _FAULTS as error:
        raise ValueError(f"{str(path)!r} has no scores: {_said(error)}") from error
    return dict(found)


def read_starts(path: Path) -> list[dict[str, Any]]:
    """What a cell's ``provenance.json`` says, an entry a start; none where there is no file.

    Raises:
        ValueError: the file cannot be used; the message names it and says why.
    """
    if not path.exists():
        return []
    try:
        starts = json.loads(path.read_bytes())
        if not isinstance(starts, list) or not starts:
            raise ValueError("no list of starts")
        if not all(isinstance(each, dict) and each for each in starts):
            raise ValueError("a start is no mapping")
    except _FAULTS as error:
        raise ValueError(f"{str(path)!r} tells no starts: {_said(error)}") from error
    return starts


def _said(error: BaseException) -> str:
    """An error in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
