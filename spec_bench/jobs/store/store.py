"""What one cell leaves on disk, and how a rerun finds it again and makes it good.

``runs/<run_id>/`` holds ``config.yaml``, ``provenance.json``, ``generations.jsonl`` (one line per
prompt and repeat, on disk before the next prompt starts), ``scores.json`` (what each answer
scored), ``result.json`` (whole or not there) and, after a failure, ``trace.txt``; the baseline's
also ``retimed-<sitting>.jsonl``, where later sessions timed it again.

A folder is checked whenever a job opens it: anything may have written to it last. What a full disk,
a power cut, an editor or a copy from another folder leaves is named in one line, set aside beside
its place (``NAME.bad-1``), and made again. What is good stays. Knows nothing about what numbers
mean.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import yaml

from spec_bench.records import cell_folder, seals
from spec_bench.records.cell_folder import Lines
from spec_bench.records.parquet import Scores
from spec_bench.records.types import CellResult, Generation
from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import adapter
from spec_bench.sinks.rows import restored, stored
from spec_bench.system import files
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
FAULTS = (
    *(ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, OverflowError),
    yaml.YAMLError,
)
Repeats = defaultdict[int, dict[str, Generation]]
"""Generations by repeat, from 0, and prompt id."""


class CellStore:
    """One cell's folder, ``<results>/runs/<run_id>``."""

    def __init__(self, results: Path, run_id: str) -> None:
        self.folder = files.run_folder(results, run_id)
        self._lock: TextIO | None = None
        self._scores: Scores | None = None  # that this process wrote

    def lock(self, wait: bool = True) -> bool:
        """Waits, or not, until no other process works on this cell; returns whether none does. A
        killed process holds no lock.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / ".lock").open("w")
        free = files.lock(self._lock, wait=False)
        if wait and not free:
            log.info("waiting for another job to finish %s", self.folder)
            free = files.lock(self._lock, wait=True)
        return free

    def unlock(self) -> None:
        """Lets other processes work on this cell."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def describe(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Writes the resolved settings and the provenance; each start of the cell adds one."""
        text = yaml.safe_dump(dict(settings), sort_keys=False)
        files.write_text(self.folder / files.CONFIG, text)
        starts = cell_folder.read_starts(self.folder / files.PROVENANCE)
        files.write_json(self.folder / files.PROVENANCE, [*starts, provenance])

    def append(self, generations: Iterable[Generation], again: str = "") -> None:
        """Adds generations, or those that a session timed ``again`` of prompts that have some; when
        this returns they survive a kill.
        """
        path = self.folder / files.GENERATIONS
        path = files.retimed_file(self.folder, again) if again else path
        with files.naming(path), path.open("a", encoding="utf-8") as stream:
            files.lock(stream, wait=True)  # another job may look for a torn line
            for generation in generations:
                stream.write(cell_folder.written(generation, self.folder.name))
            stream.flush()
            os.fsync(stream.fileno())

    def load_retimed(self) -> list[Generation]:
        """Returns what later sessions timed again; unusable lines are left out."""
        return cell_folder.read_retimed(self.folder)

    def load(self) -> dict[str, Generation]:
        """Returns the generations on disk by prompt id, of the first repeat."""
        return self.load_repeats()[0]

    def load_repeats(self) -> Repeats:
        """Returns the generations on disk, whole lines of them."""
        return _by_repeat(cell_folder.read(self.folder / files.GENERATIONS))

    def mend(self, settings: Mapping[str, Any]) -> Repeats:
        """Sets aside what cannot be used, where this process holds the lock; the generations."""
        lines = self._mend_lines(None)
        for name, check in CHECKS.items():
            try:
                check(self.folder)
            except ValueError as error:
                # Without its scores a result is made again from the same answers.
                for each in (name, *((files.RESULT,) if name == files.SCORES else ())):
                    if os.path.lexists(self.folder / each):
                        self._aside(each, _message(error.__cause__ or error))
        self._mend_config(settings)
        return _by_repeat(lines)

    def mend_tokens(self, vocabulary: int) -> Repeats:
        """Returns the generations whose token ids the target knows, once their number is known."""
        return _by_repeat(self._mend_lines(vocabulary))

    def _mend_lines(self, vocabulary: int | None) -> Lines:
        """Keeps files of generations to their whole lines; a last one torn by a kill is cut off."""
        for path in (*files.retimed_files(self.folder), self.folder / files.GENERATIONS):
            lines = cell_folder.read(path, vocabulary)
            if lines.faults:
                more = f" and {len(lines.faults) - 1} more lines" if len(lines.faults) > 1 else ""
                self._aside(path.name, f"{lines.faults[0]}{more}", copy=True)
                cell_folder.replace(path, lines.generations)
            elif lines.torn:
                with path.open("rb+") as stream:
                    files.lock(stream.fileno(), wait=True)
                    torn = cell_folder.read(path, vocabulary).torn  # none if it was being written
                    stream.truncate(path.stat().st_size - torn)
        return lines

    def _mend_config(self, settings: Mapping[str, Any]) -> None:
        """Rewrites the file of a cell's settings if it differs from the known ones."""
        path, text = self.folder / files.CONFIG, yaml.safe_dump(dict(settings), sort_keys=False)
        there = os.path.lexists(path)
        try:
            same = there and yaml.safe_load(seals.bytes_of(path)) == yaml.safe_load(text)
        except FAULTS:
            same = False
        if there and not same:
            self._aside(files.CONFIG, "it has other settings than its run id stands for")
        if not same and (there or (self.folder / files.RESULT).exists()):
            files.write_text(path, text)

    def _aside(self, name: str, why: str, copy: bool = False) -> None:
        path = self.folder / name
        log.warning("%s: %s; it is now %s", path, why, files.set_aside(path, copy).name)

    def keep_scores(self, scores: Scores) -> None:
        """Writes what each prompt's answer scored, by score and prompt id; ``finish`` seals it."""
        files.write_json(self.folder / files.SCORES, scores)
        self._scores = scores

    def finish(
        self, result: CellResult, job: str, compared: Mapping[str, Any] | None = None
    ) -> None:
        """Writes the cell's result, the last thing a cell writes, with the job that finished it
        and, in ``compared``, the baseline's run id and the sessions whose timings of it the
        speed-up is against.
        """
        made_of = _measured(self.folder / files.GENERATIONS)
        document = {**stored(result), "compared": compared, "job": job, "generations": made_of}
        document["starts"] = files.digest(cell_folder.read_starts(self.folder / files.PROVENANCE))
        document["scores"] = None if self._scores is None else cell_folder.scores_seal(self._scores)
        files.write_json(self.folder / files.RESULT, seals.sealed(document))

    def result(self) -> CellResult | None:
        """The cell's result, complete or failed; None if it was not finished or is damaged."""
        try:
            kept = read_result(self.folder)
        except ValueError as error:
            log.warning("%s: %s; a rerun replaces it", self.folder / files.RESULT, error)
            return None
        return None if kept is None else kept.result

    def complete(self, repeats: int = 1) -> bool:
        """Returns whether the cell needs no more work; a failed cell is tried again. ``repeats``,
        how often every prompt is decoded, are no part of its settings: more of them extend it.
        """
        result = self.result()
        if result is None or result.status != "complete":
            return False
        return int(result.metrics.get("repeats") or 1) >= repeats


class FollowerStore(CellStore):
    """The same cell seen by a process that must not write, as another one of a split model does. It
    starts from the same records, so that both decode the same prompts.
    """

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Process 0 writes, and holds the lock."""

    def lock(self, wait: bool = True) -> bool:
        """Process 0 holds it for all."""
        return True

    unlock = describe = append = _nothing
    keep_scores = finish = _nothing


class Kept(NamedTuple):
    """A result as its folder keeps it."""

    result: CellResult
    # size and digest of the generations it was made of; None for an older version
    measured: Mapping[str, Any] | None
    scores: str | None  # their seal; None for an older version, and a failed cell


def read_result(folder: Path) -> Kept | None:
    """A cell's result; None if it has none. Raises ValueError: the file cannot be used, as it is of
    another cell, altered, or no number stands where a column holds one; the message says why.
    """
    path = folder / files.RESULT
    if not os.path.lexists(path):
        return None
    try:
        content = seals.opened(path)
        result = restored(content)
        if result.run_id != folder.name:
            raise ValueError(f"it is of run {result.run_id!r}")
        for name, value in result.metrics.items():
            if isinstance(value, int | float) and not isfinite(value):
                raise ValueError(f"{name} is {value}")
        for column in columns.columns_in(result.metrics):
            for name in column.names:
                value = result.metrics.get(name)
                if value is not None and isinstance(value, str) == (column.holds == "number"):
                    raise ValueError(f"{name} is {value!r}")
        adapter(CellResult).validate_json(json.dumps(asdict(result)), strict=True)
    except FAULTS as error:
        raise ValueError(_message(error)) from error
    return Kept(result, content.get("generations"), content.get("scores"))


def check_result(folder: Path) -> None:
    """Raises ValueError: a cell's result cannot be used, or was made of other generations than are
    in its folder.
    """
    kept, path = read_result(folder), folder / files.GENERATIONS
    if kept is not None and kept.result.status != "failed":
        made_of = kept.measured or {"bytes": 0}
        if _measured(path, int(made_of["bytes"])) != made_of:
            raise ValueError(f"it was made of other generations than {path.name} holds")


CHECKS: dict[str, Callable[[Path], Any]] = {
    files.RESULT: check_result,
    files.SCORES: cell_folder.read_scores,
    files.PROVENANCE: lambda folder: cell_folder.read_starts(folder / files.PROVENANCE),
}
"""What each file of a cell's folder is held to, beside its generations."""


def _measured(path: Path, size: int | None = None) -> dict[str, Any]:
    """What tells generations from others: bytes and SHA-256 of a file, or of its first ``size``."""
    part = path.read_bytes()[:size] if path.is_file() else b""
    return {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}


def _message(error: BaseException) -> str:
    """Returns an error in one short line."""
    text = one_line(error, 200)
    return f"{text} is missing" if isinstance(error, KeyError) else text


def _by_repeat(lines: Lines) -> Repeats:
    """Generations by repeat and prompt id."""
    repeats: Repeats = defaultdict(dict)
    for each in lines.generations:
        repeats[each.repeat][each.prompt_id] = each
    return repeats
