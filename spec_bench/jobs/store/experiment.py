"""An experiment's cells, which share a name: its jobs' notes, and the CSV and records built from
them.

Every job writes a note, ``runs/jobs/<experiment>/<job_id>.json``, that lists its cells; no other
process writes that file, and a job in a worker writes nothing else. CSV and records follow from all
notes and from each cell's folder. The user's process writes them at its end; ``spec-bench report``
completes them after a killed process. Readers also read cells that the tables lack, but write
nothing.

``index.jsonl`` beside the notes has each finished cell's row and the stamps of the tables' sources,
so that only changed cells are read again. It is a cache: if it is missing or damaged, the tables
are built from the folders, and are equal to the byte.
"""

import json
import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

from spec_bench import __version__
from spec_bench.jobs.store.store import FAULTS, CellStore
from spec_bench.records import cell_folder, checksums, parquet
from spec_bench.records.parquet import PackedRecords
from spec_bench.records.types import Stage
from spec_bench.settings.fields import to_one_line
from spec_bench.settings.validation import adapter
from spec_bench.sinks.rows import (
    Row,
    merge_results_csv,
    read_results_rows,
    result_to_row,
    strip_past_models_suffix,
)
from spec_bench.sinks.sink import Sink
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.columns import list_value_column_names
from spec_bench.vocabulary.numbers import format_count

log = logging.getLogger(__name__)
_APART_S = 0.001  # between the ends of two jobs, if the clock does not separate them


@dataclass(frozen=True)
class JobRecord:
    """A finished job's note."""

    number: int  # its place in the sweep; 0 outside a sweep
    cells: tuple[str, ...]  # the run ids of its cells, in order
    stage: Stage = ""  # which stage of a search it is
    # when, in seconds; later than all notes there, so that the latest job decides a cell's state
    ended: float = 0.0


def compute_job_id(run_ids: Iterable[str]) -> str:
    """Hashes the set of a job's cells, so that a job resumed after a kill has the same id."""
    return files.hash_json(sorted(run_ids))


class ExperimentCells(NamedTuple):
    """An experiment's cells as its jobs' notes list them, by run id."""

    stages: dict[str, Stage]  # in the order of the rows
    end_times: dict[str, float]  # seconds, of each cell's last job
    end_times_by_job: dict[str, dict[int, float]]  # by the job's place in a sweep
    rows: dict[str, Row]  # of finished cells


class Experiment:
    """The cells that share a name, and therefore a CSV and a file of records."""

    def __init__(self, results: Path, name: str) -> None:
        self.csv = files.get_results_file(results, name)
        self.records = files.get_records_file(self.csv)
        self._results = results
        self._jobs_folder = files.get_jobs_folder(results, name)
        self._index = self._jobs_folder / "index.jsonl"
        self._row_tables = (files.get_screening_path(self.csv), self.csv)
        self._tables = (*self._row_tables, files.get_archive_path(self.csv), self.records)

    def require_writable_tables(self) -> None:
        """Raises UsageError, before decoding, if a job's final files cannot be written: if a folder
        is not writable, the table takes no more rows, or the records are damaged and some rows have
        no other source.
        """
        for folder in (self.csv.parent, self._results / files.RUNS):
            files.require_writable(folder)
        if self._read_index_header().get("tables") == _stamp_files(self._tables):
            return  # unchanged since they were built
        rows = self._read_all_rows()
        if os.path.lexists(self.records):
            try:
                parquet.read_verified_bytes(self.records)
            except UsageError:
                ids = (str(row["run_id"]) for row in rows if row.get("stage") != "screen")
                if not all(files.get_run_folder(self._results, run_id).is_dir() for run_id in ids):
                    raise

    def write_job_record(self, job_record: JobRecord) -> None:
        """Writes the record of a finished job, for the process that rebuilds the tables next. Its
        end is later than that of all earlier jobs, even if a clock was ahead when they ended.
        """
        self._jobs_folder.mkdir(parents=True, exist_ok=True)
        path = self._jobs_folder / f"{compute_job_id(job_record.cells)}.json"
        with files.open_regular_to_write(self._jobs_folder / ".order") as file:
            files.lock_file(file, may_wait=True)
            end_time = max(
                files.read_folder_clock_s(self._jobs_folder), self._read_latest_end() + _APART_S
            )
            files.write_redacted_json(
                path, checksums.redact_and_add_checksum(asdict(replace(job_record, ended=end_time)))
            )
        if not self.csv.exists():  # readers find experiments by their tables, and complete them
            files.write_bytes(self.csv, b"")

    def rebuild_tables(self, *, wait_s: float = inf) -> bool:
        """Rebuilds CSV and records, and once more if a job has ended meanwhile. Returns False if
        another process was rebuilding them for longer than ``wait_s`` seconds.
        """
        if not self._jobs_folder.is_dir():  # no job has ended here, or the folder is gone
            return True
        until = time.monotonic() + wait_s
        with files.open_regular_to_write(self._jobs_folder / ".lock") as file:
            while not files.lock_file(file, may_wait=wait_s == inf):
                if time.monotonic() >= until:
                    return False
                time.sleep(0.05)
            for _ in range(2):  # at most twice, even if jobs keep ending
                if self._is_up_to_date():
                    break
                self._write_tables()
        return True

    def rebuild_and_publish(self, sinks: Sequence[Sink], *, wait_s: float = inf) -> bool:
        """Rebuilds the tables and gives the rows of each pair and task to the sinks; returns
        whether the tables were rebuilt. With sinks it waits until another process has finished
        rebuilding.
        """
        is_complete = self.rebuild_tables(wait_s=inf if sinks else wait_s)
        if not is_complete:
            log.warning("%s: another process makes it; spec-bench report completes it", self.csv)
        rows = self._read_all_rows() if sinks else ()
        parts = group_by_key(((row["pair"], row["task"]), row) for row in rows)
        for sink in sinks:
            for rows in parts.values():
                sink.take((), rows)
        return is_complete

    @contextmanager
    def tables_or_completed_copies(self) -> Iterator[tuple[Path, ...]]:
        """Yields the table of screened rows and the CSV with every finished cell, for a reader: the
        files themselves or, if they lack cells, completed copies in a temporary folder. Changes
        nothing below the results. Raises UsageError if a table without its cells was altered since
        its records were written.
        """
        has_notes = self._jobs_folder.is_dir()
        if has_notes and self._is_up_to_date():
            yield self._row_tables
            return
        try:
            parquet.require_unaltered_tables(self.records)
        except UsageError as error:
            if not has_notes:
                raise
            log.warning("%s; read from its runs", str(error).partition(";")[0])
        if not has_notes:
            self._warn_of_rows_of_other_models()
            yield self._row_tables
            return
        order, end_times, job_end_times, rows = self._read_cells_of_notes(set_bad_aside=False)
        with TemporaryDirectory() as folder:
            for table in self._tables[:3]:
                if table.is_file():
                    shutil.copy(table, folder)
            copy = Path(folder, self.csv.name)
            merge_results_csv(copy, rows.values(), order, end_times, job_end_times)
            yield files.get_screening_path(copy), copy

    def _read_all_rows(self) -> list[dict[str, str]]:
        return [row for path in self._row_tables for row in read_results_rows(path)]

    def _warn_of_rows_of_other_models(self) -> None:
        """Warns of rows of other models than the cells here that have the same run ids."""
        faults = []
        for row in self._read_all_rows() if (self._results / files.RUNS).is_dir() else ():
            folder = files.get_run_folder(self._results, row["run_id"])
            try:
                cell_folder.require_row_of_these_models(folder, row)
            except UsageError as error:
                faults.append(str(error))
        if faults:
            log.warning(
                "%s: %s of other models than the cells that are here; %s",
                *(self.csv, format_count(len(faults), "row"), faults[0]),
            )

    def _write_tables(self) -> None:
        """Writes the tables, and then the index with the stamps of their sources."""
        notes = _stamp_files(self._list_job_records())
        order, end_times, job_end_times, rows = self._read_cells_of_notes(set_bad_aside=True)
        cells = self._stamp_cells(order)
        header = self._read_index_header()
        indexed_cells = header.get("cells", {})
        unchanged_ids = [run_id for run_id in rows if cells[run_id] == indexed_cells.get(run_id)]
        table = merge_results_csv(self.csv, rows.values(), order, end_times, job_end_times)
        past_rows = files.read_csv(files.get_archive_path(self.csv))
        run_ids = [
            str(row["run_id"]) for row in (*table, *past_rows) if row.get("stage") != "screen"
        ]
        are_records_unchanged = header.get("tables", {}).get(self.records.name) == _stamp_file(
            self.records
        )
        self._write_records(
            [*dict.fromkeys(run_ids)], unchanged_ids if are_records_unchanged else ()
        )
        sources = {"cells": cells, "code": __version__, "notes": notes}
        texts = map(json.dumps, ({**sources, "tables": _stamp_files(self._tables)}, rows))
        files.write_text(
            self._index, "".join(f"{_compute_line_checksum(text)} {text}\n" for text in texts)
        )

    def _build_rows(self, order: Mapping[str, Stage]) -> dict[str, Row]:
        """Builds the rows of finished cells by run id; rows of unchanged cells
        come from the index.
        """
        header = self._read_index_header()
        indexed_cells = header.get("cells", {})
        text = self._index.read_text(encoding="utf-8", errors="replace") if header else ""
        indexed_rows = json.loads(_strip_checksum_or_empty(text.partition("\n")[2]) or "{}")
        cells = self._stamp_cells(order)
        rows = {
            run_id: row
            for run_id, row in indexed_rows.items()
            if cells.get(run_id) == indexed_cells.get(run_id)
        }
        for run_id in (run_id for run_id in cells if run_id not in rows):
            if (result := CellStore(self._results, run_id).load_result()) is not None:
                rows[run_id] = result_to_row(result.with_stage(order[run_id]))
        return rows

    def _write_records(self, run_ids: Sequence[str], unchanged_ids: Collection[str]) -> None:
        """Writes the records of ``run_ids``; ``unchanged_ids`` and cells without a folder keep
        their old records.
        """
        previous = (
            self._load_or_set_aside_records() if unchanged_ids else parquet.concat_records([])
        )
        unchanged_ids = {*unchanged_ids}.intersection(previous.run_ids)
        runs = (
            files.get_run_folder(self._results, run_id)
            for run_id in run_ids
            if run_id not in unchanged_ids
        )
        cells_with_folder = [
            (folder.name, cell_folder.pack_valid_cell_folder(folder)) for folder in runs
        ]
        packed_cells = {run_id: part for run_id, part in cells_with_folder if part is not None}
        if missing_ids := [
            run_id
            for run_id in run_ids
            if run_id not in unchanged_ids and run_id not in packed_cells
        ]:
            ids_with_folder = [
                name for name in missing_ids if files.get_run_folder(self._results, name).is_dir()
            ]
            if ids_with_folder and not unchanged_ids and self._are_records_unreadable():
                log.warning(
                    "%s is left as it is: cells are of an earlier version, or altered (%s); "
                    "their command again makes it whole",
                    *(self.records, ", ".join(ids_with_folder[:3])),
                )
                return
            previous = previous if unchanged_ids else self._load_or_set_aside_records()
        old_records = previous.select_cells([*unchanged_ids, *missing_ids])
        if self.records.is_dir():
            log.warning("%s: a folder; it is now %s", self.records, files.move_aside(self.records))
        records = parquet.concat_records([old_records, *packed_cells.values()]).select_cells(
            run_ids
        )
        tables = {path.name: files.hash_file(path) for path in self._tables[:3] if path.exists()}
        parquet.write_records(self.records, records, tables)

    def _are_records_unreadable(self) -> bool:
        """Returns whether the file of records exists but cannot be read."""
        try:
            parquet.read_verified_bytes(self.records)
        except UsageError:
            return self.records.is_file()
        return False

    def _load_or_set_aside_records(self) -> PackedRecords:
        """Reads the file of records; sets it aside (logged) if it cannot be read."""
        try:
            exists = os.path.lexists(self.records)
            return parquet.read_records(self.records) if exists else parquet.concat_records([])
        except UsageError as error:
            log.warning("%s; it is now %s", error, files.move_aside(self.records))
            return parquet.concat_records([])

    def _is_up_to_date(self) -> bool:
        """Returns whether the tables are up to date: neither they nor their
        sources have changed.
        """
        header = self._read_index_header()
        stages = {
            run_id: stamp.partition(" ")[0] for run_id, stamp in header.get("cells", {}).items()
        }
        return header == {
            "cells": self._stamp_cells(stages),
            "code": __version__,
            "notes": _stamp_files(self._list_job_records()),
            "tables": _stamp_files(self._tables),
        }

    def _read_index_header(self) -> dict[str, Any]:
        """Reads the stamps of the tables' sources; {} if they are unknown."""
        try:
            with self._index.open(encoding="utf-8") as stream:
                header = dict(json.loads(_strip_checksum_or_empty(stream.readline())))
        except (OSError, ValueError):
            return {}
        return header if header.get("code") == __version__ else {}

    def _read_latest_end(self) -> float:
        """Reads the latest end of a recorded job, in seconds; 0 if there is none."""
        latest = 0.0
        for path in self._list_job_records():
            with suppress(*FAULTS):  # a rebuild of the tables sets it aside
                latest = max(latest, read_job_record(path).ended)
        return latest

    def _read_cells_of_notes(self, *, set_bad_aside: bool) -> ExperimentCells:
        """Reads the notes' cells, in order: notes with the same number are ordered by their first
        cell's labels, whenever they ended. ``set_bad_aside`` sets unusable notes aside.
        """
        notes = list[JobRecord]()
        stages = dict[str, Stage]()
        end_times = dict[str, float]()
        job_end_times: dict[str, dict[int, float]] = defaultdict(dict)
        for path in self._list_job_records():
            try:
                notes.append(read_job_record(path))
            except FileNotFoundError:
                continue
            except FAULTS as error:
                outcome = (
                    f"it is now {files.move_aside(path).name}"
                    if set_bad_aside
                    else "it is left out"
                )
                log.warning("%s: %s; %s", path, to_one_line(error, 200), outcome)
        notes.sort(key=lambda note: note.number)
        for note in notes:
            for name in note.cells:
                stages[name] = note.stage or stages.get(name, "")
                end_times[name] = max(note.ended, end_times.get(name, 0.0))
                job_end_times[name][note.number] = max(
                    note.ended, job_end_times[name].get(note.number, 0.0)
                )
        for name in sorted(os.listdir(self._results / files.RUNS)):
            current = strip_past_models_suffix(name)  # a cell of earlier models
            if current != name and current in stages:
                stages[name] = stages[current]
        rows = self._build_rows(stages)
        notes.sort(key=lambda note: (note.number, _list_labels_of_first_cell(rows, note.cells)))
        ordered_stages = {name: stages[name] for note in notes for name in note.cells}
        return ExperimentCells(ordered_stages | stages, end_times, job_end_times, rows)

    def _stamp_cells(self, stages: Mapping[str, str]) -> dict[str, str]:
        """Maps run id to a text that changes with the cell: its stage and its files' stamps."""
        runs = os.fspath(self._results / files.RUNS)
        return {
            run_id: f"{stage} {_stamp_cell_files(f'{runs}/{run_id}')}"
            for run_id, stage in stages.items()
        }

    def _list_job_records(self) -> list[Path]:
        return sorted(self._jobs_folder.glob("*.json"))


def _list_labels_of_first_cell(rows: Mapping[str, Row], cells: Sequence[str]) -> list[str]:
    """Lists the labels of the first cell's row, a key to sort by; [] if it has no row."""
    row = rows.get(cells[0]) if cells else None
    return (
        [str(row.get(name, "")) for name in list_value_column_names("identity", "setting")]
        if row
        else []
    )


def _stamp_cell_files(folder: str) -> str:
    """Joins the stamps of a cell's files; "" if it has no ``cell.json``."""
    try:
        with os.scandir(folder) as entries:
            cell_entries = [
                entry for entry in entries if entry.name.endswith((".jsonl", files.CELL))
            ]
            stamps = {
                entry.name: _format_file_stamp(entry.stat(follow_symlinks=False))
                for entry in cell_entries
            }
    except OSError:
        return ""
    return " ".join(stamps[name] for name in sorted(stamps)) if files.CELL in stamps else ""


def _stamp_files(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: _stamp_file(path) for path in paths}


def _stamp_file(path: Path) -> str:
    """Returns a text that changes whenever the file is written; "" if there is no file."""
    try:
        return _format_file_stamp(os.lstat(path))
    except OSError:
        return ""


def _format_file_stamp(state: os.stat_result) -> str:
    return f"{state.st_size}-{state.st_mtime_ns}-{state.st_ino}"


def _compute_line_checksum(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def _strip_checksum_or_empty(line: str) -> str:
    """Strips the checksum of a line of the index; "" if it does not fit the line."""
    check, _, text = line.removesuffix("\n").partition(" ")
    return text if check == _compute_line_checksum(text) else ""


def read_job_record(path: Path) -> JobRecord:
    """Reads a job's record. Raises ValueError if it is damaged or another job's."""
    content = json.dumps(checksums.read_verified_json(path))
    job_record = adapter(JobRecord).validate_json(content, strict=True)
    if compute_job_id(job_record.cells) != path.stem:
        raise UsageError("it is another job's")
    return job_record
