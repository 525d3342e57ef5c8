"""The cells that share a name: their jobs' notes, and the CSV and the records made of them.

Every job writes a separate note, ``runs/jobs/<experiment>/<job_id>.json``, that lists its cells;
nobody else writes that file. The CSV is rebuilt from all notes and the cells' results, so jobs
that end at the same moment on different machines need no lock on a shared file, and a process
killed at any point leaves a CSV that the next job's end, or a rerun, completes. The file of records
beside it is rebuilt likewise, from what each cell packed when it finished: a job's end reads no
generations of other jobs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from spec_bench.jobs.config.settings import job_id
from spec_bench.jobs.store.store import CellStore
from spec_bench.records import parquet
from spec_bench.records.parquet import Packed
from spec_bench.records.types import Stage
from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import adapter
from spec_bench.sinks.rows import merge_csv, read_rows
from spec_bench.system import files

log = logging.getLogger(__name__)
_QUICK_S = 0.5  # a rebuild this short is always done
_SHARE = 0.05  # of a sweep's time that longer ones may take


@dataclass(frozen=True)
class JobNote:
    """What a job leaves about itself."""

    number: int  # its place in the sweep, 0 if there is none
    place: str  # labels that tell jobs of one number apart, so their order never depends on time
    cells: tuple[str, ...]  # the run ids of its cells, in order
    stage: Stage = ""  # which stage of a search it is
    ended: float = 0.0  # when, in seconds; of a cell's states the one of the latest job counts


class Experiment:
    """The cells that share a name, and so a CSV and a file of records."""

    def __init__(self, results: Path, name: str) -> None:
        self.csv = files.results_file(results, name)
        self.records = files.records_file(self.csv)
        self._results = results
        self._notes = files.jobs_folder(results, name)

    def check_places(self) -> None:
        """Checks that a job's final files can be written: better now than after decoding. Raises
        ValueError: a folder takes no file, the table there takes no more rows, or the records
        beside it are no good and those of some row are nowhere else.
        """
        for folder in (self.csv.parent, self._results / files.RUNS):
            files.check_writable(folder)
        rows = [*read_rows(files.screening_file(self.csv)), *read_rows(self.csv)]
        if os.path.lexists(self.records):
            try:
                parquet.check(self.records)
            except ValueError:
                ids = (str(row["run_id"]) for row in rows if row.get("stage") != "screen")
                if not all(files.run_folder(self._results, each).is_dir() for each in ids):
                    raise

    def note(self, note: JobNote) -> None:
        """Notes a job that has ended, which the next rebuild sees."""
        path = self._notes / f"{job_id(note.cells)}.json"
        files.write_json(path, asdict(replace(note, ended=time.time())))

    def rebuild(self, *, wait: bool = True) -> list[dict[str, Any]]:
        """Rewrites CSV and records, once more if a job has ended meanwhile; the rows, those that no
        note knows first, in their order.

        A worker does not ``wait`` for another process that is at it, and has no rows then: that
        process goes over all once more, and the user's process does so at a sweep's end.
        """
        self._notes.mkdir(parents=True, exist_ok=True)
        with (self._notes / ".lock").open("w") as file:
            return self._rebuilt() if files.lock(file, wait=wait) else []

    def _rebuilt(self) -> list[dict[str, Any]]:
        """The rows, written; at most two passes, so that nobody stays as long as others end."""
        state, rows = None, list[dict[str, Any]]()
        for _ in range(2):
            if state == (state := self._state()):
                break
            found = [note for path in self._paths() if (note := _note(path)) is not None]
            order, ended = dict[str, Stage](), dict[str, float]()  # by run id
            for note in sorted(found, key=lambda note: (note.number, note.place)):
                for name in note.cells:
                    order[name] = note.stage or order.get(name, "")
                    ended[name] = max(note.ended, ended.get(name, 0.0))
            known = ((CellStore(self._results, each).result(), order[each]) for each in order)
            results = [result.at_stage(stage) for result, stage in known if result is not None]
            rows = merge_csv(self.csv, results, order, ended)
            past = files.read_csv(files.archive_file(self.csv))
            kept = [row for row in (*rows, *past) if row.get("stage") != "screen"]
            self._write_records([str(row["run_id"]) for row in kept])
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
        if self.records.is_dir():
            log.warning("%s: a folder; it is now %s", self.records, files.set_aside(self.records))
        parquet.write(self.records, parquet.joined(parts))

    def _records_before(self) -> Packed:
        """Returns the file as it is; one that cannot be read is set aside."""
        try:
            there = os.path.lexists(self.records)
            return parquet.read(self.records) if there else parquet.joined([])
        except ValueError as error:
            log.warning("%s; it is now %s", error, files.set_aside(self.records))
            return parquet.joined([])

    def _state(self) -> dict[str, tuple[int, int]]:
        """Returns what changes whenever a job writes its note, even the same note again."""
        states = {path.name: path.stat() for path in self._paths()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in states.items()}

    def _paths(self) -> list[Path]:
        return sorted(self._notes.glob("*.json"))


class Tables:
    """The tables that the jobs of one process add to.

    A rebuild reads and writes all of an experiment's cells: done after every short job of a sweep,
    it would cost their number squared. A job that others follow in this process leaves it to them
    if the last rebuild took long and was recent; ``finish`` makes up for it. What a killed process
    left undone, the next job's end, or the rerun's, does.
    """

    def __init__(self) -> None:
        self._behind: dict[Path, Experiment] = {}
        self._last: dict[Path, tuple[float, float]] = {}  # when it ended and how long it took

    def add(
        self, experiment: Experiment, note: JobNote, more: bool, *, wait: bool = True
    ) -> list[dict[str, Any]]:
        """Notes a job that has ended; the rows, none if it is left to a job that follows here."""
        experiment.note(note)
        ended, took = self._last.get(experiment.csv, (0.0, 0.0))
        if more and took > _QUICK_S and monotonic() - ended < took / _SHARE:
            self._behind[experiment.csv] = experiment
            return []
        return self._rebuild(experiment, wait=wait)

    def finish(self) -> None:
        """Rebuilds the tables that do not have all ended jobs yet."""
        while self._behind:
            _, experiment = self._behind.popitem()
            self._rebuild(experiment)

    def _rebuild(self, experiment: Experiment, *, wait: bool = True) -> list[dict[str, Any]]:
        started = monotonic()
        rows = experiment.rebuild(wait=wait)
        self._behind.pop(experiment.csv, None)
        self._last[experiment.csv] = monotonic(), monotonic() - started
        return rows


def _note(path: Path) -> JobNote | None:
    """Returns a job's note; an unusable one is set aside, and its cells' rows stay as they are."""
    try:
        note = adapter(JobNote).validate_json(path.read_bytes(), strict=True)
        if job_id(note.cells) != path.stem:
            raise ValueError("it is another job's")
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        aside = files.set_aside(path).name
        log.warning("%s: %s; it is now %s", path, one_line(error, 200), aside)
        return None
    return note
