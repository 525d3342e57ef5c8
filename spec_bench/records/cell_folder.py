"""A cell's folder read: its lines, what its answers scored, where it was measured.

Another process may be adding to it. A line is a generation's JSON with a check, the CRC-32 of its
cell's id and of the line without it: a line that was cut, altered or comes from another cell
differs from a whole one. Knows which file holds what; ``parquet`` knows what is made of it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any
from zlib import crc32

from spec_bench.records import seals
from spec_bench.records.parquet import Packed, Scored, Scores, pack
from spec_bench.records.types import Generation
from spec_bench.settings.fields import one_line
from spec_bench.system import files

log = logging.getLogger(__name__)
_FAULTS = (ValueError, TypeError, AttributeError, OSError, RecursionError, OverflowError)
_CHECKED = re.compile(rb'(.*),"check":"([0-9a-f]{8})"}', re.DOTALL)


@dataclass(frozen=True)
class Lines:
    """What a file of generations holds."""

    # its whole lines in their order, of a repeat and prompt the last
    generations: tuple[Generation, ...] = ()
    # what is wrong with the others, one text each: the line's number and why
    faults: tuple[str, ...] = ()
    torn: int = 0  # bytes at the end that are no line yet, as a kill leaves them: no fault


def written(generation: Generation, run_id: str) -> str:
    """Returns a generation as a line of its cell's file, its end included."""
    text = json.dumps(generation.to_json(), separators=(",", ":"))[:-1]
    return f'{text},"check":"{_check(text.encode(), run_id)}"}}\n'


def read(path: Path, vocabulary: int | None = None) -> Lines:
    """The lines of a cell's ``generations.jsonl``, in the folder that its run id names; none where
    there is no file. Where the size of the target's ``vocabulary`` is known token ids lie below.
    """
    try:
        data = seals.bytes_of(path)
    except FileNotFoundError:
        return Lines()
    except (OSError, ValueError) as error:
        return Lines(faults=(getattr(error, "strerror", None) or str(error),))
    whole = data.rfind(b"\n") + 1
    generations: dict[tuple[int, str], Generation] = {}
    faults = []
    for number, line in enumerate(data[:whole].split(b"\n")[:-1], start=1):
        try:
            each = _read(line, path.parent.name, vocabulary)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            faults.append(f"line {number}: {one_line(error, 120)}")
        else:
            generations[each.repeat, each.prompt_id] = each
    return Lines(tuple(generations.values()), tuple(faults), len(data) - whole)


def replace(path: Path, generations: Iterable[Generation]) -> None:
    """Writes a cell's file anew."""
    files.write_text(path, "".join(written(each, path.parent.name) for each in generations))


def _check(text: bytes, run_id: str) -> str:
    return f"{crc32(text, crc32(run_id.encode())):08x}"


def _read(line: bytes, run_id: str, vocabulary: int | None) -> Generation:
    """Returns one line."""
    if not (checked := _CHECKED.fullmatch(line)):
        raise ValueError("it has no check, as a whole line has")
    text, check = checked[1], checked[2].decode()
    if check != _check(text, run_id):
        raise ValueError("its check does not fit: it was altered, or is another run's")
    generation = Generation.from_json(json.loads(text + b"}"))
    if vocabulary is not None and (impossible := max(generation.tokens, default=0)) >= vocabulary:
        raise ValueError(f"token id {impossible}")
    return generation


def pack_run(run: Path) -> Packed | None:
    """The records of a cell's folder; None where the cell is not here, or, with a line that says
    so, where a file of it cannot be used.
    """
    path = run / files.GENERATIONS
    try:
        lines, starts = read(path), read_starts(run / files.PROVENANCE)
        if lines.faults:
            raise ValueError(f"{path}: {lines.faults[0]}")
        if not starts and not lines.generations:
            return None
        origin, again = starts[-1] if starts else None, read_retimed(run)
        return pack(run.name, lines.generations, origin, read_scores(run), again)
    except ValueError as error:
        log.warning("%s", error)
        return None


def read_lines(path: Path) -> list[Generation]:
    """A cell's generations in their order; what is no whole line is left out, and logged."""
    lines = read(path)
    if lines.faults:
        log.warning("%s: %s", path, lines.faults[0])
    return list(lines.generations)


def read_retimed(run: Path) -> list[Generation]:
    """Returns what later sittings timed again of a baseline, in the order of their files."""
    return [each for path in files.retimed_files(run) for each in read_lines(path)]


def read_scores(run: Path) -> Scores:
    """What a cell's answers scored (``scores.json``), held against what its result seals; nothing
    where ``<results>/runs/<run_id>`` has no such file. Raises ValueError: the file cannot be used,
    or has other scores than the cell's result was made of; the message names it and says why.
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
    """Returns what tells scores from others; a score that no prompt has does not count."""
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
    """Scores, if they are numbers."""
    values = [value for by_prompt in scores.values() for value in by_prompt.values()]
    numbers = [n for each in values for n in (each if isinstance(each, list) else [each])]
    if not all(type(value) in (int, float) and isfinite(value) for value in numbers):
        raise ValueError("a score is no number")
    return dict(scores)


def _floats(value: Scored) -> list[float]:
    return [float(each) for each in ([value] if isinstance(value, int | float) else value)]


def read_starts(path: Path) -> list[dict[str, Any]]:
    """What a cell's ``provenance.json`` says, an entry a start; none where there is none."""
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
