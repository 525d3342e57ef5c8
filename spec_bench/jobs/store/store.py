"""What one cell leaves on disk, and how a rerun finds it again and makes it good.

``runs/<run_id>/`` holds ``generations.jsonl`` (one line per prompt and repeat, on disk before the
next prompt starts), ``cell.json`` (settings, the provenance of each start, and at the end scores
and result) and, after a failure, ``trace.txt``; the baseline's also ``retimed-<sitting>.jsonl``,
where later sessions timed it again.

A folder is checked whenever a job opens it: anything may have written to it last. What a full disk,
a power cut, an editor or a copy from another folder leaves is named in one line, set aside beside
its place (``NAME.bad-1``), and made again. What is good stays. Knows nothing about what numbers
mean.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from spec_bench.records import cell_folder
from spec_bench.records.cell_folder import Lines
from spec_bench.records.parquet import Scores
from spec_bench.records.types import CellResult, Generation
from spec_bench.settings.fields import one_line
from spec_bench.sinks.rows import restored, stored
from spec_bench.system import files

log = logging.getLogger(__name__)
FAULTS = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, OverflowError)
Repeats = defaultdict[int, dict[str, Generation]]
"""Generations by repeat, from 0, and prompt id."""


class CellStore:
    """One cell's folder, ``<results>/runs/<run_id>``."""

    def __init__(self, results: Path, run_id: str, own_code: str | None = None) -> None:
        self.folder = files.run_folder(results, run_id)
        self._own_code = own_code  # behind its numbers now, see ``metrics.own_code``; None: any
        self._lock: TextIO | None = None

    def lock(self, wait: bool = True) -> bool:
        """Locks the cell, or waits for it; returns whether it is free. A kill frees it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = files.open_own(self.folder / ".lock")
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
        cell = self._cell()
        starts = [*cell.get("starts", ()), provenance]
        cell_folder.write_cell(self.folder, {**cell, "settings": settings, "starts": starts})

    def _cell(self) -> dict[str, Any]:
        """Returns what ``describe`` and ``finish`` wrote; nothing where it cannot be used."""
        try:
            return cell_folder.read_cell(self.folder)
        except ValueError as error:
            log.warning("%s", error)
            return {}

    def append(self, generations: Iterable[Generation], again: str = "") -> None:
        """Adds generations, or those that a session timed ``again``; they survive a kill."""
        path = self.folder / (files.RETIMED.replace("*", again) if again else files.GENERATIONS)
        with files.naming(path), files.open_own(path) as stream:
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

    def mend(self) -> Repeats:
        """Sets aside what cannot be used, where this process holds the lock; the generations."""
        lines = self._mend_lines(None)
        try:
            cell_folder.check_cell(self.folder, cell_folder.read_cell(self.folder))
        except ValueError as error:
            self._aside(files.CELL, one_line(error.__cause__ or error, 200))
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
                with files.open_own(path, "rb+") as stream:
                    files.lock(stream.fileno(), wait=True)
                    torn = cell_folder.read(path, vocabulary).torn  # none if it was being written
                    stream.truncate(path.stat().st_size - torn)
        return lines

    def _aside(self, name: str, why: str, copy: bool = False) -> None:
        path = self.folder / name
        log.warning("%s: %s; it is now %s", path, why, files.set_aside(path, copy).name)

    def finish(
        self,
        result: CellResult,
        job: str,
        scores: Scores | None = None,
        compared: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the cell's result, the last thing a cell writes, with the job that finished it,
        what each answer scored and, in ``compared``, the baseline's run id and the sessions whose
        timings of it the speed-up is against.
        """
        made_of = cell_folder.measure(self.folder / files.GENERATIONS)
        ended = {"result": stored(result), "job": job, "generations": made_of}
        more = {"scores": scores or {}, "compared": compared, "own_code": self._own_code or ""}
        cell_folder.write_cell(self.folder, {**self._cell(), **ended, **more})

    def result(self) -> CellResult | None:
        """The cell's result, complete or failed; None if it was not finished or is damaged."""
        content = self._cell().get("result")
        return content and restored(content)

    def call(self, decoder: str) -> None:
        """Gives a finished cell's row the name that its decoder has now, if it is another one."""
        result = self.result()
        if result is not None and result.facts.decoder != decoder:
            renamed = replace(result, facts=replace(result.facts, decoder=decoder))
            cell_folder.write_cell(self.folder, {**self._cell(), "result": stored(renamed)})

    def complete(self, repeats: int = 1) -> bool:
        """Returns whether the cell needs no more work; a failed cell is tried again, and one whose
        user's metrics have changed is scored again. ``repeats``, how often every prompt is decoded,
        are no part of its settings: more of them extend it.
        """
        result = self.result()
        if result is None or result.status != "complete":
            return False
        if self._own_code not in (None, self._cell().get("own_code", "")):
            return False
        return int(result.metrics.get("repeats") or 1) >= repeats


class FollowerStore(CellStore):
    """The same cell seen by a process that must not write, as one of a split model."""

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Process 0 writes, and holds the lock."""

    def lock(self, wait: bool = True) -> bool:
        """Process 0 holds it for all."""
        return True

    unlock = describe = append = finish = _nothing


def _by_repeat(lines: Lines) -> Repeats:
    repeats: Repeats = defaultdict(dict)
    for each in lines.generations:
        repeats[each.repeat][each.prompt_id] = each
    return repeats
