"""What one cell leaves on disk, and how a rerun finds it again.

``runs/<run_id>/`` holds ``config.yaml``, ``provenance.json``, ``generations.jsonl`` (one line a
prompt and repeat, on disk before the next prompt starts), ``scores.json`` (what each answer
scored), ``result.json`` (whole or not there), with it ``records.parquet`` (the generations as an
experiment keeps them) and, after a failure, ``trace.txt``; the baseline's also
``retimed-<sitting>.jsonl``, where later sittings timed it again. Knows nothing about what numbers
mean.

An experiment is the cells that share a name. Every job writes a note of its own,
``runs/jobs/<experiment>/<job_id>.json``, that lists its cells; nobody else writes that file. The
CSV is rebuilt from all notes and the cells' own results, so jobs that end at the same moment on
different machines need no lock on a shared file, and a process killed at any point leaves a CSV
that the next job's end, or a rerun, makes whole. So is the file of records beside it, from what
each cell packed when it finished: a job's end reads no generations of other jobs.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import yaml

from spec_bench import files, lines, packed
from spec_bench.files import digest
from spec_bench.judge.cells import read_judged
from spec_bench.lines import Lines
from spec_bench.packed import Packed
from spec_bench.records import CellResult, Generation, Reason, Request, Stage
from spec_bench.run import kept
from spec_bench.run.cells import Cell
from spec_bench.run.kept import Kept
from spec_bench.sinks.csv import merge_csv, read_rows
from spec_bench.sinks.rows import stored

if TYPE_CHECKING:
    from spec_bench.decode.config import AnyDecoder
    from spec_bench.measure.memory import PeakMemory

log = logging.getLogger(__name__)
Read = TypeVar("Read")
_MESSAGE_LENGTH = 300
Repeats = defaultdict[int, dict[str, Generation]]
"""Generations by repeat, from 0, and prompt id."""


def run_id(settings: Mapping[str, Any]) -> str:
    """The id of one cell.

    Args:
        settings: pair, task, prompts, generation, engine, decoder, energy, warm-up and seed, all
            resolved; output folder, sinks and names are no part of it.
    """
    return digest(settings)


def job_id(run_ids: Iterable[str]) -> str:
    """The id of a job: the set of its cells, so that a job resumed after a kill is the same job."""
    return digest(sorted(run_ids))


class CellStore:
    """One cell's folder.

    Attributes:
        folder: ``<results>/runs/<run_id>``.
    """

    def __init__(self, results: Path, run_id: str) -> None:
        self.folder = files.run_folder(results, run_id)
        self._lock: TextIO | None = None

    @property
    def trace_path(self) -> Path:
        """Where a failure's traceback lies."""
        return self.folder / files.TRACE

    def lock(self) -> None:
        """Waits until no other process works on this cell; a killed process holds no lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another job to finish %s", self.folder)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def unlock(self) -> None:
        """Lets other processes work on this cell."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def describe(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Writes the resolved settings and the provenance; each start of the cell adds one."""
        text = yaml.safe_dump(dict(settings), sort_keys=False)
        files.write_text(self.folder / files.CONFIG, text)
        starts = packed.read_starts(self.folder / files.PROVENANCE)
        files.write_json(self.folder / files.PROVENANCE, [*starts, provenance])

    def append(self, generations: Iterable[Generation]) -> None:
        """Adds generations; when this returns they survive a kill."""
        self._append(self.folder / files.GENERATIONS, generations)

    def append_retimed(self, generations: Iterable[Generation], sitting: str) -> None:
        """Adds timings of prompts whose generations stand; they survive a kill likewise."""
        self._append(files.retimed_file(self.folder, sitting), generations)

    def _append(self, path: Path, generations: Iterable[Generation]) -> None:
        with path.open("a", encoding="utf-8") as stream:
            for generation in generations:
                stream.write(lines.written(generation, self.folder.name))
            stream.flush()
            os.fsync(stream.fileno())

    def load_retimed(self) -> list[Generation]:
        """What later sittings timed again; lines that cannot be used are left out."""
        found = map(lines.read, files.retimed_files(self.folder))
        return [generation for each in found for generation in each.generations]

    def load(self) -> dict[str, Generation]:
        """The generations on disk by prompt id, of the first repeat."""
        return self.load_repeats()[0]

    def load_repeats(self) -> Repeats:
        """The generations on disk, whole lines of them."""
        return _by_repeat(lines.read(self.folder / files.GENERATIONS))

    def mend(self, settings: Mapping[str, Any]) -> Repeats:
        """Sets aside what cannot be used (``run.kept``); the generations on disk.

        Args:
            settings: the cell's, resolved.
        """
        return _by_repeat(kept.mend(self.folder, settings))

    def mend_tokens(self, vocabulary: int) -> Repeats:
        """The same once it is known how many tokens there are."""
        return _by_repeat(kept.mend_lines(self.folder, vocabulary))

    def keep_scores(self, scores: packed.Scores) -> None:
        """Writes what each prompt's answer scored, by score and prompt id."""
        files.write_json(self.folder / files.SCORES, scores)

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
        if (own := self._packed()) is not None:
            packed.write(self.folder / files.RECORDS, own)
        made_of = kept.measured(self.folder / files.GENERATIONS)
        said = {**stored(result), "compared": compared, "job": job, "generations": made_of}
        content = kept.sealed(said)
        files.write_json(self.folder / files.RESULT, content)

    def records(self) -> Packed | None:
        """The cell's records as an experiment keeps them; None where the cell is not here.

        Writes nothing: another process may be at work on the cell.
        """
        path = self.folder / files.RECORDS
        try:
            return packed.read(path) if path.exists() else self._packed()
        except ValueError as error:
            log.warning("%s; packed again", error)
            return self._packed()

    def _packed(self) -> Packed | None:
        """The same from what was written while the cell ran."""
        starts = self._or_none(packed.read_starts, files.PROVENANCE)
        done = packed.read_lines(self.folder / files.GENERATIONS)
        if not starts and not done:
            return None
        scores = self._or_none(packed.read_scores, files.SCORES)
        return packed.pack(self.folder.name, done, starts[-1] if starts else None, scores)

    def _or_none(self, read: Callable[[Path], Read], name: str) -> Read | None:
        """What a file says; one that cannot be used is said, and set aside by a rerun."""
        try:
            return read(self.folder / name)
        except ValueError as error:
            log.warning("%s", error)
            return None

    def result(self) -> CellResult | None:
        """The cell's result, complete or failed; None where it was not finished.

        What a judge said of its answers is part of it.
        """
        own = self._kept()
        if own is None or own.result.status == "failed":
            return None if own is None else own.result
        try:
            judged = read_judged(self.folder)
        except (ValueError, TypeError) as error:
            log.warning("%s: its judgement is not used: %s", self.folder, error)
            judged = None
        return own.result if judged is None else judged.joined(own.result)

    def job(self) -> str | None:
        """The job that finished the cell; cells of one job were measured interleaved."""
        own = self._kept()
        return None if own is None else own.job

    def _kept(self) -> Kept | None:
        """The result on disk; one that cannot be used is said, and set aside by a rerun."""
        try:
            return kept.read_result(self.folder)
        except ValueError as error:
            log.warning("%s: %s; a rerun replaces it", self.folder / files.RESULT, error)
            return None

    def complete(self, repeats: int = 1) -> bool:
        """Whether the cell needs no more work; a failed cell is tried again.

        Args:
            repeats: how often every prompt is to be decoded. They are no part of a cell's settings:
                more of them extend it.
        """
        result = self.result()
        return result is not None and result.status == "complete" and repeats_of(result) >= repeats


def repeats_of(result: CellResult) -> int:
    """How often every prompt of a cell was decoded."""
    return int(result.metrics.get("repeats") or 1)


class FollowerStore(CellStore):
    """The same cell seen by a process that must not write: another one of a split model does.

    It starts from the same records, so that both decode the same prompts.
    """

    def lock(self) -> None:
        """Process 0 holds the lock."""

    def unlock(self) -> None:
        """Process 0 holds the lock."""

    def describe(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Process 0 writes."""

    def _append(self, path: Path, generations: Iterable[Generation]) -> None:
        """Process 0 writes."""

    def keep_scores(self, scores: packed.Scores) -> None:
        """Process 0 writes."""

    def finish(
        self, result: CellResult, job: str, compared: Mapping[str, Any] | None = None
    ) -> None:
        """Process 0 writes."""


@dataclass(frozen=True)
class JobNote:
    """What a job leaves about itself.

    Attributes:
        number: its place in the sweep, 0 where there is none.
        place: labels that tell jobs of one number apart, so that their order never depends on time.
        cells: the run ids of its cells, in order.
        stage: which stage of a search it is.
        ended: when, in seconds; of two states of a cell the present one is that of the later job.
    """

    number: int
    place: str
    cells: tuple[str, ...]
    stage: Stage = ""
    ended: float = 0.0


def _stages(notes: Iterable[JobNote]) -> dict[str, Stage]:
    """All run ids in the notes' order, each once, with their stages."""
    stages: dict[str, Stage] = {}
    for note in notes:
        for name in note.cells:
            stages[name] = note.stage or stages.get(name, "")
    return stages


def _ends(notes: Iterable[JobNote]) -> dict[str, float]:
    """Run id -> when the last of its jobs ended."""
    ends: dict[str, float] = {}
    for note in sorted(notes, key=lambda note: note.ended):
        ends.update(dict.fromkeys(note.cells, note.ended))
    return ends


class Experiment:
    """The cells that share a name, and so a CSV and a file of records.

    Args:
        results: the results folder.
        name: the experiment's name.
    """

    def __init__(self, results: Path, name: str) -> None:
        self.csv = files.results_file(results, name)
        self.records = files.records_file(self.csv)
        self._results = results
        self._notes = files.jobs_folder(results, name)

    def check_places(self) -> None:
        """Whether what a job ends with can be written: better said now than after decoding.

        Raises:
            ValueError: a folder takes no file, or the table there is none that takes more rows.
        """
        for folder in (self.csv.parent, self._results / files.RUNS):
            files.check_writable(folder)
        read_rows(self.csv)

    def add(self, note: JobNote) -> list[dict[str, Any]]:
        """Notes a job that has ended and rebuilds the CSV; its rows."""
        path = self._notes / f"{job_id(note.cells)}.json"
        files.write_json(path, asdict(replace(note, ended=time.time())))
        return self.rebuild()

    def rebuild(self) -> list[dict[str, Any]]:
        """Rewrites CSV and records until no job has ended since its notes were read; the rows.

        Whoever renames last has then seen every note: a note that comes later brings a rebuild of
        its own. Rows of the file that no note knows stay first, in their order.
        """
        state, rows = None, list[dict[str, Any]]()
        while state != (state := self._state()):
            notes = self._read_notes()
            order, ended = _stages(notes), _ends(notes)
            known = ((CellStore(self._results, each).result(), order[each]) for each in order)
            found = [result.at_stage(stage) for result, stage in known if result is not None]
            rows = merge_csv(self.csv, found, order, ended)
            past = files.read_csv(files.archive_file(self.csv))
            self._write_records([str(row["run_id"]) for row in (*rows, *past)])
        return rows

    def _write_records(self, run_ids: Sequence[str]) -> None:
        """Writes these cells' records; those of cells that are not here stay as they are."""
        parts, before = [], None
        for run_id in dict.fromkeys(run_ids):
            part = CellStore(self._results, run_id).records()
            if part is None:
                before = self._records_before() if before is None else before
                part = before.cell(run_id)
            parts.append(part)
        packed.write(self.records, packed.joined(parts))

    def _records_before(self) -> Packed:
        """The file as it is; one that cannot be read is set aside."""
        try:
            return packed.read(self.records) if self.records.exists() else packed.joined([])
        except ValueError as error:
            log.warning("%s; it is now %s", error, files.set_aside(self.records))
            return packed.joined([])

    def _read_notes(self) -> list[JobNote]:
        """All jobs' notes by their places in the sweep."""
        notes = [note for path in self._paths() if (note := _note(path)) is not None]
        return sorted(notes, key=lambda note: (note.number, note.place))

    def _state(self) -> dict[str, tuple[int, int]]:
        """What changes whenever a job writes its note, even the same note again."""
        states = {path.name: path.stat() for path in self._paths()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in states.items()}

    def _paths(self) -> list[Path]:
        return sorted(self._notes.glob("*.json"))


def _note(path: Path) -> JobNote | None:
    """A job's note; one that cannot be used is set aside, and its cells' rows stay as they are."""
    try:
        note = JobNote(**json.loads(path.read_bytes()))
        texts = (note.place, note.stage, *note.cells)
        if type(note.number) is not int or not all(isinstance(each, str) for each in texts):
            raise ValueError("it does not name a number, a place and cells")
        if type(note.ended) not in (int, float):
            raise ValueError(f"it ended at {note.ended!r}")
        if job_id(note.cells) != path.stem:
            raise ValueError("it is another job's")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError, OSError) as error:
        said = " ".join(str(error).split())
        log.warning("%s: %s; it is now %s", path, said, files.set_aside(path).name)
        return None
    return replace(note, cells=tuple(note.cells))


def _by_repeat(found: Lines) -> Repeats:
    """Generations by repeat and prompt id."""
    repeats: Repeats = defaultdict(dict)
    for each in found.generations:
        repeats[each.repeat][each.prompt_id] = each
    return repeats


@dataclass
class CellRun:
    """One cell while its job runs.

    Attributes:
        cell: which decoder.
        store: where its records go.
        memory: peak memory of its windows.
        done: generations by repeat and prompt id, those of an earlier, killed job included.
        unpaired: of these, repeat and prompt id of what no baseline was timed in turn with.
        decoder: None until it is built, and for a cell that was complete before.
        failure: why the cell was given up; None while it goes on.
    """

    cell: Cell
    store: CellStore
    memory: PeakMemory
    done: Repeats = field(default_factory=lambda: defaultdict(dict))
    unpaired: set[tuple[int, str]] = field(default_factory=set)
    decoder: AnyDecoder | None = None
    failure: Reason | None = None

    @property
    def run_id(self) -> str:
        """The hash of the settings that change its numbers."""
        return self.store.folder.name

    def missing(self, requests: Sequence[Request], repeat: int = 0) -> list[Request]:
        """The requests it still has to decode in a repeat; none once it has failed."""
        return [] if self.decoder is None else self.lacking(requests, repeat)

    def lacking(self, requests: Sequence[Request], repeat: int = 0) -> list[Request]:
        """The same whether or not it can be decoded: not done, or not in turn with the baseline."""
        return [
            each
            for each in requests
            if each.prompt_id not in self.done[repeat] or (repeat, each.prompt_id) in self.unpaired
        ]

    def fail(self, error: Exception) -> None:
        """Gives the cell up; its trace lies beside its records."""
        files.write_text(self.store.trace_path, "".join(traceback.format_exception(error)))
        message = (str(error).strip().splitlines() or [""])[0][:_MESSAGE_LENGTH]
        trace = str(self.store.trace_path)
        self.failure = Reason("", f"{type(error).__name__}: {message}", trace)
        self.decoder = None
        log.error("%s failed: %s", self.cell.title, self.failure)


def job_of(runs: Sequence[CellRun]) -> str:
    """The id of the job that these cells make up."""
    return job_id(run.run_id for run in runs)
