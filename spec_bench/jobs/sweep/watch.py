"""``spec-bench watch NAME``: a sweep's progress, on any machine that sees its folder.

In ``runs/jobs/<experiment>/under_way`` a ``sweep-<id>.json`` lists each sweep's jobs. A note per
job, named by a hash of its choices, has its place and state; its progress comes from the cells'
records. Nothing else reads the notes: rows and tables do not depend on them.
"""

import json
import os
import socket
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spec_bench.records import checksums
from spec_bench.settings.fields import to_one_line
from spec_bench.settings.validation import Ge, Lt, adapter
from spec_bench.system import files
from spec_bench.system.errors import UsageError

State = Literal["waiting", "running", "done", "failed", "interrupted", "lost", "unreadable"]
_RESUMES = "interrupted; the same command resumes"
_SILENT_S = 900.0  # a job on another machine without a record for longer is taken for lost
_Count = Annotated[int, Ge(0), Lt(2**31)]
_UnixSeconds = Annotated[float, Ge(0), Lt(2**40)]
_Line = Annotated[str, AfterValidator(to_one_line)]
_EVERY_S = 2.0
_BAD: tuple[State, ...] = ("failed", "interrupted", "lost", "unreadable")
OPEN: tuple[State, ...] = ("running", "waiting")
SWEEPS = "sweep-*.json"
_NOTES = (SWEEPS, f"{'[0-9a-f]' * 12}.json")
_MAX_BYTES = 2**26  # maximum bytes of a cell read at once


@dataclass(frozen=True)
class WatchedJobSnapshot:
    """State of one job of a sweep."""

    number: _Count  # its place in the sweep
    words: tuple[_Line, ...] = ()  # its choices
    state: State = "waiting"  # its state now
    line: _Line = ""  # why it failed
    host: _Line = ""  # machine that it runs on
    process: _Count = 0  # its id there
    devices: _Line = ""  # the GPUs it sees, "" for none
    cells: tuple[_Line, ...] = ()  # run ids
    prompts: _Count = 0  # prompts of each cell, repeats counted
    began: _UnixSeconds = 0.0  # Unix seconds
    ended: _UnixSeconds = 0.0  # Unix seconds; 0 while it runs
    key: _Line = ""  # its note's name
    again: _Line = ""  # program that restarts it if its process is lost; "" if none
    # Read from its cells:
    done: int = 0  # generations on disk, of `total_generations`
    tokens: int = 0  # of these generations
    wrote: float = 0.0  # when it last wrote, in seconds; 0: it has not begun

    @property
    def total_generations(self) -> int:
        """Number of generations that its cells need."""
        return self.prompts * len(self.cells)


class CellProgress(NamedTuple):
    """Progress of a cell on disk."""

    inode: int = 0
    bytes_read: int = 0
    generations: int = 0
    tokens: int = 0
    wrote: float = 0.0  # when it was last written, in seconds; 0: it has not begun


@dataclass
class RunningJob:
    """Published state of a job while it runs."""

    path: Path | None = None  # its note; None if nobody watches the job
    snapshot: WatchedJobSnapshot = WatchedJobSnapshot(0)
    sweep_job_count: int = 0

    def write_note(self, **changes: Any) -> None:
        """Updates fields of the snapshot and writes the note."""
        self.snapshot = replace(self.snapshot, **changes)
        if self.path is not None and self.path.parent.is_dir():  # else it was removed
            with suppress(OSError):  # no result depends on it
                files.write_redacted_json(self.path, [asdict(self.snapshot)])


class SweepNotes:
    """The notes of one experiment's jobs. Reads only the new lines of their cells."""

    def __init__(self, results: Path, name: str) -> None:
        self._results = results
        self._folder = files.get_jobs_folder(results, name) / "under_way"
        self._progress_by_cell: dict[str, CellProgress] = {}

    def read_clock(self) -> float:
        """Returns the time, in seconds, by the clock of the records' times."""
        return files.read_folder_clock_s(self._folder)

    def get_note_path(self, words: Sequence[str]) -> Path:
        """Returns the path of a job's note, named by a hash of its choices."""
        return self._folder / f"{files.hash_json(sorted(words))}.json"

    def replace_job_list(
        self, jobs: Sequence[tuple[int, Sequence[str]]], restarted_by: str = ""
    ) -> None:
        """Replaces the list of jobs by a sweep's, with the program that restarts lost jobs (Slurm);
        lists and notes of earlier sweeps are deleted if all of these are over.
        """
        if not any(job.wrote and job.state in OPEN for job in self.read_progress()):
            for path in self._folder.glob("*.json"):
                path.unlink(missing_ok=True)
        word_sets = [set(words) for _, words in jobs]
        # the other words tell jobs apart
        common = set.intersection(*word_sets) if len(word_sets) > 1 else set()
        job_entries = [
            {
                "number": n,
                "words": [w for w in words if w not in common],
                "again": restarted_by,
            }
            | {"key": self.get_note_path(words).stem}
            for n, words in jobs
        ]
        name = SWEEPS.replace("*", files.hash_json([job["key"] for job in job_entries]))
        files.write_redacted_json(self._folder / name, job_entries)

    @contextmanager
    def tracked_job(self, number: int, words: Sequence[str]) -> Iterator[RunningJob]:
        """Writes a job's note within the block, and its end; if the snapshot's ``line`` is set, the
        job has failed for that reason.
        """
        path = self.get_note_path(words)
        job_by_key = {job.key: job for job in self.read_jobs(SWEEPS)}
        new_job = WatchedJobSnapshot(number, tuple(words), key=path.stem)
        job = RunningJob(path, job_by_key.get(path.stem, new_job), len(job_by_key))
        process_facts = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "began": self.read_clock(),
        }
        job.write_note(
            state="running", devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""), **process_facts
        )
        try:
            yield job
        except BaseException as error:
            reason = _RESUMES if isinstance(error, KeyboardInterrupt) else to_one_line(error)
            job.write_note(line=job.snapshot.line or reason)
            raise
        finally:
            bad_state = "interrupted" if job.snapshot.line == _RESUMES else "failed"
            job.write_note(
                state=bad_state if job.snapshot.line else "done", ended=self.read_clock()
            )

    def read_jobs(self, *patterns: str) -> list[WatchedJobSnapshot]:
        """Reads all jobs in order, from files of these ``patterns``; an unreadable note gives a job
        in the state ``unreadable``. ``SWEEPS`` alone gives the jobs as they were listed.
        """
        job_by_key = dict[str, WatchedJobSnapshot]()
        folder = self._folder
        for path in (
            path for pattern in patterns or _NOTES for path in sorted(folder.glob(pattern))
        ):
            try:
                job_by_key |= {job.key or path.stem: job for job in self._validate_note_file(path)}
            except (OSError, ValueError) as error:
                unread_job = job_by_key.get(path.stem, WatchedJobSnapshot(0))
                if path.match(SWEEPS):
                    unread_job = WatchedJobSnapshot(-1, ("the list of jobs",))
                reason = f"{path.name} is unreadable: {to_one_line(error, 120)}"
                job_by_key[path.stem] = replace(unread_job, state="unreadable", line=reason)
        return list(job_by_key.values())

    def read_progress(self) -> list[WatchedJobSnapshot]:
        """Reads all jobs with their progress; a job is ``lost`` if its process is gone."""
        watched_jobs = []
        for job in self.read_jobs():
            if not job.began or job.state == "done":
                watched_jobs.append(
                    replace(job, done=job.total_generations if job.state == "done" else 0)
                )
                continue
            cells = [self._update_cell_progress(run_id) for run_id in job.cells]
            wrote = max([job.began, *(cell.wrote for cell in cells)])
            is_lost = job.state in OPEN and self._is_process_gone(job, wrote)
            job = replace(job, state="lost") if is_lost else job
            generation_count = sum(cell.generations for cell in cells)
            tokens = sum(cell.tokens for cell in cells)
            watched_jobs.append(replace(job, done=generation_count, tokens=tokens, wrote=wrote))
        return watched_jobs

    def _validate_note_file(self, path: Path) -> tuple[WatchedJobSnapshot, ...]:
        """Validates every value of a file of notes and returns its jobs. Raises ValueError or
        OSError.
        """
        if path.stat().st_size > 2**30:
            raise UsageError("it is too large")
        notes_adapter = adapter(tuple[WatchedJobSnapshot, ...])
        return notes_adapter.validate_json(checksums.read_regular_file(path), strict=True)

    def _update_cell_progress(self, cell: str) -> CellProgress:
        """Reads the new lines of a cell's generations; returns its progress."""
        path = files.get_run_folder(self._results, cell) / files.GENERATIONS
        previous = self._progress_by_cell.get(cell, CellProgress())
        try:
            file_stat = path.stat()
            if not path.is_file():
                return previous
            offset, generation_count, tokens = (
                previous[1:4] if file_stat.st_ino == previous.inode else (0, 0, 0)
            )
            with path.open("rb") as stream:
                stream.seek(offset)
                new_bytes = stream.read(_MAX_BYTES)
        except (OSError, ValueError):
            return previous
        line_end = new_bytes.rfind(b"\n") + 1
        for line in new_bytes[:line_end].split(b"\n"):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                tokens += len(json.loads(line)["tokens"])
                generation_count += 1
        self._progress_by_cell[cell] = CellProgress(
            file_stat.st_ino, offset + line_end, generation_count, tokens, file_stat.st_mtime
        )
        return self._progress_by_cell[cell]

    def _is_process_gone(self, job: WatchedJobSnapshot, wrote: float) -> bool:
        if job.host != socket.gethostname():
            return self.read_clock() - wrote > _SILENT_S
        try:
            os.kill(job.process, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return False


def estimate_seconds_left(jobs: Sequence[WatchedJobSnapshot], now: float) -> float | None:
    """Estimates the seconds until a sweep's end from its finished jobs, or else from running ones;
    None if unknown.
    """
    begun_jobs = [job for job in jobs if job.began and job.done]
    measured_jobs = [job for job in begun_jobs if job.state == "done"] or begun_jobs
    spent_s = sum((job.ended or now) - job.began for job in measured_jobs)
    rate = spent_s / max(1, sum(job.done for job in measured_jobs))
    left_s = 0.0
    per_job = max((job.total_generations for job in jobs), default=0)
    for job in jobs:
        if job.state in (*OPEN, "lost"):
            total = job.total_generations or per_job
            began = job.began or now
            left_s += max(rate * total - (now - began), rate * (total - job.done))
    running_count = sum(job.state == "running" for job in jobs)
    return left_s / max(running_count, 1) if left_s >= 1 else None


def main(options: Namespace) -> int:
    """Runs the command; returns 2 if there is no such sweep or one of its jobs failed."""
    notes = SweepNotes(options.results, options.name)
    if not (watched_jobs := notes.read_progress()):
        folder = options.results / files.RUNS / "jobs"
        names = sorted(path.parent.name for path in folder.glob("*/under_way"))
        hint = f"; there are {', '.join(names)}" if names else ""
        message = f"spec-bench watch: no sweep {options.name!r} in {options.results}"
        print(f"{message}{hint}", file=sys.stderr)
        return 2
    console = Console()
    if options.once or not console.is_terminal:
        console.print(build_job_table(watched_jobs, notes.read_clock()))
    else:
        with Live(
            build_job_table(watched_jobs, notes.read_clock()),
            console=console,
            auto_refresh=False,
        ) as live:
            while any(job.state in OPEN for job in watched_jobs):
                time.sleep(_EVERY_S)
                watched_jobs = notes.read_progress()
                live.update(build_job_table(watched_jobs, notes.read_clock()), refresh=True)
    lines = summarise_jobs(watched_jobs, notes.read_clock())
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return 2 if len(lines) > 1 else 0


def print_changed_counts(all_notes: Sequence[SweepNotes], is_over: threading.Event) -> None:
    """Prints a line whenever the counts of jobs by state have changed, until ``is_over``."""
    last_counts = ""
    while not is_over.wait(_EVERY_S):
        summary_line = summarise_jobs(
            [job for notes in all_notes for job in notes.read_progress()], all_notes[0].read_clock()
        )[0]
        if summary_line.partition(";")[0] != last_counts:
            last_counts = summary_line.partition(";")[0]
            print(summary_line, file=sys.stderr, flush=True)


def build_job_table(jobs: Sequence[WatchedJobSnapshot], now: float) -> Table:
    """Builds a table with a line for each job."""
    table = Table("job", "state", "prompts", "tokens/s", "where", "wrote", "choices", box=None)
    for job in jobs:
        seconds = (job.ended or now) - job.began
        rate = f"{job.tokens / seconds:.1f}" if job.tokens and seconds > 0 else ""
        place = " ".join(part for part in (job.host, job.devices and f"GPU {job.devices}") if part)
        wrote = f"{_format_duration(now - job.wrote)} ago" if job.done and not job.ended else ""
        progress = f"{job.done} of {job.total_generations}" if job.total_generations else ""
        choices = " ".join(job.words) + (f": {job.line}" if job.line else "")
        cells = (str(job.number + 1), job.state, progress, rate, place, wrote, choices)
        table.add_row(*map(Text, cells))
    return table


def summarise_jobs(jobs: Sequence[WatchedJobSnapshot], now: float) -> list[str]:
    """Summarises a sweep in one line, plus one line per job that did not end well."""
    states = Counter(job.state for job in jobs)
    left_s = estimate_seconds_left(jobs, now)
    state_names = [state for state in ("done", *_BAD, "running", "waiting") if state in states]
    counts = ", ".join(f"{states[state]} {state}" for state in state_names)
    time_left = "" if left_s is None else f"; some {_format_duration(left_s)} left"
    lines = [f"{len(jobs)} job{'s' * (len(jobs) != 1)}: {counts}{time_left}"]
    for job in (job for job in jobs if job.state in _BAD):
        resumes = f"{job.again} starts it again" if job.again else "the same command resumes"
        reason = job.line or f"its process is gone; {resumes}"
        lines.append(f"  job {job.number + 1} ({' '.join(job.words)}): {reason}")
    return lines


def _format_duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{max(seconds, 0):.0f} s"
