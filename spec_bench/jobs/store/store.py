"""What one cell leaves on disk, and how a rerun finds it again.

``runs/<run_id>/`` holds ``config.yaml``, ``provenance.json``, ``generations.jsonl`` (one line per
prompt and repeat, on disk before the next prompt starts), ``scores.json`` (what each answer
scored), ``result.json`` (whole or not there), with
it ``records.parquet`` (the generations as an experiment keeps them) and, after a failure,
``trace.txt``; the baseline's also ``retimed-<sitting>.jsonl``, where later sittings timed it again.
Knows nothing about what numbers mean.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

import yaml

from spec_bench.jobs.store import kept
from spec_bench.jobs.store.kept import Kept
from spec_bench.records import cell_folder, parquet, seals
from spec_bench.records.cell_folder import Lines
from spec_bench.records.parquet import Packed, Scores
from spec_bench.records.types import CellResult, Generation
from spec_bench.sinks.rows import stored
from spec_bench.system import files

log = logging.getLogger(__name__)
Repeats = defaultdict[int, dict[str, Generation]]
"""Generations by repeat, from 0, and prompt id."""


class CellStore:
    """One cell's folder.

    Attributes:
        folder: ``<results>/runs/<run_id>``.
    """

    def __init__(self, results: Path, run_id: str) -> None:
        self.folder = files.run_folder(results, run_id)
        self._lock: TextIO | None = None
        self._scores: Scores | None = None  # that this process wrote

    @property
    def trace_path(self) -> Path:
        """Where a failure's traceback is."""
        return self.folder / files.TRACE

    def lock(self) -> None:
        """Waits until no other process works on this cell; a killed process holds no lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / ".lock").open("w")
        if not files.lock(self._lock, wait=False):
            log.info("waiting for another job to finish %s", self.folder)
            files.lock(self._lock, wait=True)

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

    def append(self, generations: Iterable[Generation]) -> None:
        """Adds generations; when this returns they survive a kill."""
        self._append(self.folder / files.GENERATIONS, generations)

    def append_retimed(self, generations: Iterable[Generation], sitting: str) -> None:
        """Adds timings of prompts that have generations; they survive a kill likewise."""
        self._append(files.retimed_file(self.folder, sitting), generations)

    def _append(self, path: Path, generations: Iterable[Generation]) -> None:
        with files.naming(path), path.open("a", encoding="utf-8") as stream:
            for generation in generations:
                stream.write(cell_folder.written(generation, self.folder.name))
            stream.flush()
            os.fsync(stream.fileno())

    def load_retimed(self) -> list[Generation]:
        """What later sittings timed again; unusable lines are left out."""
        return cell_folder.read_retimed(self.folder)

    def load(self) -> dict[str, Generation]:
        """The generations on disk by prompt id, of the first repeat."""
        return self.load_repeats()[0]

    def load_repeats(self) -> Repeats:
        """The generations on disk, whole lines of them."""
        return _by_repeat(cell_folder.read(self.folder / files.GENERATIONS))

    def mend(self, settings: Mapping[str, Any]) -> Repeats:
        """Sets aside what cannot be used (``kept``); the generations on disk."""
        return _by_repeat(kept.mend(self.folder, settings))

    def mend_tokens(self, vocabulary: int) -> Repeats:
        """The same once the number of tokens is known."""
        return _by_repeat(kept.mend_lines(self.folder, vocabulary))

    def keep_scores(self, scores: Scores) -> None:
        """Writes what each prompt's answer scored, by score and prompt id; ``finish`` seals it."""
        files.write_json(self.folder / files.SCORES, scores)
        self._scores = scores

    def finish(
        self, result: CellResult, job: str, compared: Mapping[str, Any] | None = None
    ) -> None:
        """Packs the cell's records and writes its result, the last thing a cell writes.

        Args:
            result: the cell's.
            job: the job that finished it.
            compared: the baseline's run id, and the sittings whose timings of it the speed-up is
                against; None without a speed-up.
        """
        self.pack()
        made_of = kept.measured(self.folder / files.GENERATIONS)
        document = {**stored(result), "compared": compared, "job": job, "generations": made_of}
        document["scores"] = None if self._scores is None else cell_folder.scores_seal(self._scores)
        files.write_json(self.folder / files.RESULT, seals.sealed(document))

    def pack(self) -> None:
        """Writes the cell's records as an experiment keeps them, later timings included."""
        if (packed := cell_folder.pack_run(self.folder, self._scores)) is not None:
            parquet.write(self.folder / files.RECORDS, packed)

    def records(self) -> Packed | None:
        """The cell's records as an experiment keeps them; None if the cell is not here.

        Writes nothing: another process may be at work on the cell.
        """
        path = self.folder / files.RECORDS
        try:
            there = os.path.lexists(path)
            return parquet.read(path) if there else cell_folder.pack_run(self.folder)
        except ValueError as error:
            log.warning("%s; packed again", error)
            return cell_folder.pack_run(self.folder)

    def result(self) -> CellResult | None:
        """The cell's result, complete or failed; None if it was not finished."""
        kept_result = self._kept()
        return None if kept_result is None else kept_result.result

    def job(self) -> str | None:
        """The job that finished the cell; cells of one job were measured interleaved."""
        kept_result = self._kept()
        return None if kept_result is None else kept_result.job

    def _kept(self) -> Kept | None:
        """The result on disk; an unusable one is reported, and set aside by a rerun."""
        try:
            return kept.read_result(self.folder)
        except ValueError as error:
            log.warning("%s: %s; a rerun replaces it", self.folder / files.RESULT, error)
            return None

    def complete(self, repeats: int = 1) -> bool:
        """Whether the cell needs no more work; a failed cell is tried again.

        Args:
            repeats: how often every prompt is decoded. They are not part of a cell's settings: more
                of them extend it.
        """
        result = self.result()
        return result is not None and result.status == "complete" and repeats_of(result) >= repeats


def repeats_of(result: CellResult) -> int:
    """How often every prompt of a cell was decoded."""
    return int(result.metrics.get("repeats") or 1)


class FollowerStore(CellStore):
    """The same cell seen by a process that must not write, as another one of a split model does.

    It starts from the same records, so that both decode the same prompts.
    """

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Process 0 writes, and holds the lock."""

    lock = unlock = describe = _append = _nothing
    keep_scores = pack = finish = _nothing


def _by_repeat(lines: Lines) -> Repeats:
    """Generations by repeat and prompt id."""
    repeats: Repeats = defaultdict(dict)
    for each in lines.generations:
        repeats[each.repeat][each.prompt_id] = each
    return repeats
