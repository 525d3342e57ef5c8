"""A cell's folder read: its lines, what its answers scored, where it was measured.

Another process may be adding to it. Knows which file holds what; ``parquet`` knows what is made of
it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from spec_bench.records import seals
from spec_bench.records.jsonl import read as read_generations
from spec_bench.records.line import Scored, Scores
from spec_bench.records.parquet import Packed, pack
from spec_bench.records.types import Generation
from spec_bench.settings.fields import one_line
from spec_bench.system import files

log = logging.getLogger(__name__)
_FAULTS = (ValueError, TypeError, AttributeError, OSError, RecursionError, OverflowError)
Read = TypeVar("Read")


def pack_run(run: Path, scores: Scores | None = None) -> Packed | None:
    """The records of a cell's folder; None where the cell is not here. ``scores`` are those of its
    file, where they are known.

    Scores or starts that cannot be used are logged and left out; a rerun makes them good.
    """
    starts = _or_none(read_starts, run / files.PROVENANCE)
    done = read_lines(run / files.GENERATIONS)
    if not starts and not done:
        return None
    scores = _or_none(read_scores, run) if scores is None else scores
    return pack(run.name, done, starts[-1] if starts else None, scores, read_retimed(run))


def _or_none(read: Callable[[Path], Read], path: Path) -> Read | None:
    try:
        return read(path)
    except ValueError as error:
        log.warning("%s", error)
        return None


def read_lines(path: Path) -> list[Generation]:
    """A cell's lines in their order, which another process may be adding to.

    Args:
        path: its ``generations.jsonl``; none where there is none yet.

    Returns:
        One a repeat and prompt, of several the last; what is no whole line is left out, and logged
        where it is not a kill's.
    """
    lines = read_generations(path)
    if lines.faults:
        log.warning("%s: %s", path, lines.faults[0])
    return list(lines.generations)


def read_retimed(run: Path) -> list[Generation]:
    """What later sittings timed again of a baseline, in the order of their files."""
    return [each for path in files.retimed_files(run) for each in read_lines(path)]


def read_scores(run: Path) -> Scores:
    """What a cell's answers scored (``scores.json``), held against what its result seals; nothing
    where ``<results>/runs/<run_id>`` has no such file.

    Raises:
        ValueError: the file cannot be used, or has other scores than the cell's result was made of;
            the message names it and says why.
    """
    path, scores = run / files.SCORES, dict[str, Any]()
    try:
        if os.path.lexists(path):
            scores = _numbers(json.loads(seals.bytes_of(path)))
        if _sealed_scores(run) not in (None, scores_seal(scores)):
            raise ValueError(f"{files.RESULT} was made with others")
    except _FAULTS as error:
        raise ValueError(
            f"{str(path)!r} is not what the cell's answers scored: {one_line(error, 200)}; "
            "run its experiment again"
        ) from error
    return scores


def scores_seal(scores: Scores) -> str:
    """What tells scores from others; a score that no prompt has does not count."""
    named = {name: by_prompt for name, by_prompt in scores.items() if by_prompt}
    return files.digest(
        {name: {k: _floats(v) for k, v in by_prompt.items()} for name, by_prompt in named.items()}
    )


def _sealed_scores(run: Path) -> str | None:
    """The seal of a cell's scores; None where it is not finished, or an earlier version's."""
    path = run / files.RESULT
    try:
        return seals.opened(path).get("scores")
    except FileNotFoundError:
        return None
    except _FAULTS as error:
        raise ValueError(f"{files.RESULT}: {one_line(error, 200)}") from error


def _numbers(scores: Any) -> dict[str, Any]:
    """Scores, if they are numbers.

    Raises:
        ValueError: they are not; or another error of its kind.
    """
    values = [value for by_prompt in scores.values() for value in by_prompt.values()]
    numbers = [n for each in values for n in (each if isinstance(each, list) else [each])]
    if not all(type(value) in (int, float) and isfinite(value) for value in numbers):
        raise ValueError("a score is no number")
    return dict(scores)


def _floats(value: Scored) -> list[float]:
    return [float(each) for each in ([value] if isinstance(value, int | float) else value)]


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
        raise ValueError(f"{str(path)!r} tells no starts: {one_line(error, 200)}") from error
    return starts
