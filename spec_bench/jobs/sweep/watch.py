"""``spec-bench watch NAME``: how far a sweep is, from wherever its folder is seen.

In ``runs/jobs/<experiment>/under_way`` a ``sweep-<id>.json`` lists each sweep's jobs, and a note a
job, named by its choices, says where it runs and what became of it; the cells' records say how far
it is. Nothing else reads the notes: rows and tables do not hang on them.
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
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spec_bench.records import seals
from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import Ge, Lt, adapter
from spec_bench.system import files
from spec_bench.system.errors import UsageError

State = Literal["waiting", "running", "done", "failed", "interrupted", "lost", "unreadable"]
_RESUMES = "interrupted; the same command resumes"
_SILENT_S = 900.0  # of a job on another machine: longer without a record, and it is taken for lost
_Count = Annotated[int, Ge(0), Lt(2**31)]
_When = Annotated[float, Ge(0), Lt(2**40)]
_Line = Annotated[str, AfterValidator(one_line)]
_EVERY_S = 2.0
_BAD: tuple[State, ...] = ("failed", "interrupted", "lost", "unreadable")
OPEN: tuple[State, ...] = ("running", "waiting")
SWEEPS = "sweep-*.json"
_NOTES = (SWEEPS, f"{'[0-9a-f]' * 12}.json")
_MOST = 2**26  # bytes of a cell that a look reads


@dataclass(frozen=True)
class WatchedJob:
    """One job of a sweep."""

    number: _Count  # its place in the sweep
    words: tuple[_Line, ...] = ()  # its choices
    state: State = "waiting"  # what became of it
    line: _Line = ""  # why it failed
    host: _Line = ""  # where it runs
    process: _Count = 0  # its id there
    devices: _Line = ""  # the GPUs it sees, "" for none
    cells: tuple[_Line, ...] = ()  # run ids
    prompts: _Count = 0  # that each cell decodes, repeats counted
    began: _When = 0.0  # when, in seconds
    ended: _When = 0.0  # likewise; 0 while it runs
    key: _Line = ""  # its note's name
    again: _Line = ""  # who starts it again if its process is lost; "": nobody
    # What a look at its cells finds:
    done: int = 0  # generations on disk, of `total`
    tokens: int = 0  # of these
    wrote: float = 0.0  # when it last wrote, in seconds; 0: it has not begun

    @property
    def total(self) -> int:
        """Generations that its cells need."""
        return self.prompts * len(self.cells)


@dataclass
class RunningJob:
    """What a job says of itself as it runs."""

    path: Path | None = None  # its note; None of a job that nobody watches
    state: WatchedJob = WatchedJob(0)
    listed: int = 0  # jobs of its sweep

    def say(self, **changed: Any) -> None:
        """Writes its note with other values."""
        self.state = replace(self.state, **changed)
        if self.path is not None and self.path.parent.is_dir():  # a folder that is gone may return
            with suppress(OSError):  # nobody's numbers hang on it
                files.write_json(self.path, [asdict(self.state)])


class SweepNotes:
    """The notes of one experiment's jobs. Of their cells a look reads what is new."""

    def __init__(self, results: Path, name: str) -> None:
        self._results = results
        self._folder = files.jobs_folder(results, name) / "under_way"
        # cells by run id: inode, bytes read, generations, tokens, when it was last written
        self._cells: dict[str, tuple[int, int, int, int, float]] = {}

    def now(self) -> float:
        """Returns the time, in seconds, by the clock that the records' times are of."""
        return files.read_clock(self._folder)

    def note(self, words: Sequence[str]) -> Path:
        """Returns the file of a job's note, by all its choices."""
        return self._folder / f"{files.digest(sorted(words))}.json"

    def begin(self, jobs: Sequence[tuple[int, Sequence[str]]], again: str = "") -> None:
        """A sweep begins: lists its jobs, and who starts them ``again``; drops idle notes."""
        if not any(each.wrote and each.state in OPEN for each in self.look()):
            for path in self._folder.glob("*.json"):
                path.unlink(missing_ok=True)
        every = [set(words) for _, words in jobs]
        common = set.intersection(*every) if len(every) > 1 else set()  # the rest tells them apart
        listed = [
            {"number": n, "words": [w for w in words if w not in common], "again": again}
            | {"key": self.note(words).stem}
            for n, words in jobs
        ]
        name = SWEEPS.replace("*", files.digest([each["key"] for each in listed]))
        files.write_json(self._folder / name, listed)

    @contextmanager
    def track(self, number: int, words: Sequence[str]) -> Iterator[RunningJob]:
        """A job runs within the block; a line that was said of it by then is why it failed."""
        path = self.note(words)
        known = {each.key: each for each in self.jobs(SWEEPS)}
        unlisted = WatchedJob(number, tuple(words), key=path.stem)
        job = RunningJob(path, known.get(path.stem, unlisted), len(known))
        where = {"host": socket.gethostname(), "process": os.getpid(), "began": self.now()}
        job.say(state="running", devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""), **where)
        try:
            yield job
        except BaseException as error:
            why = _RESUMES if isinstance(error, KeyboardInterrupt) else one_line(error)
            job.say(line=job.state.line or why)
            raise
        finally:
            bad = "interrupted" if job.state.line == _RESUMES else "failed"
            job.say(state=bad if job.state.line else "done", ended=self.now())

    def jobs(self, *kinds: str) -> list[WatchedJob]:
        """All jobs in order; an unreadable note is one. ``SWEEPS`` alone: as they were listed."""
        found = dict[str, WatchedJob]()
        folder = self._folder
        for path in (path for kind in kinds or _NOTES for path in sorted(folder.glob(kind))):
            try:
                found |= {each.key or path.stem: each for each in self._read(path)}
            except (OSError, ValueError) as error:
                unread = found.get(path.stem, WatchedJob(0))
                if path.match(SWEEPS):
                    unread = WatchedJob(-1, ("the list of jobs",))
                why = f"{path.name} is unreadable: {one_line(error, 120)}"
                found[path.stem] = replace(unread, state="unreadable", line=why)
        return list(found.values())

    def look(self) -> list[WatchedJob]:
        """Returns all jobs with how far they are."""
        found = []
        for job in self.jobs():
            if not job.began or job.state == "done":
                found.append(replace(job, done=job.total if job.state == "done" else 0))
                continue
            cells = [self._cell(each) for each in job.cells]
            wrote = max([job.began, *(each[4] for each in cells)])
            lost = job.state in OPEN and self._gone(job, wrote)
            job = replace(job, state="lost") if lost else job
            done = sum(each[2] for each in cells)
            tokens = sum(each[3] for each in cells)
            found.append(replace(job, done=done, tokens=tokens, wrote=wrote))
        return found

    def _read(self, path: Path) -> tuple[WatchedJob, ...]:
        """Returns what a file of notes holds, every value held to its type."""
        if path.stat().st_size > 2**30:
            raise UsageError("it is too large")
        every = adapter(tuple[WatchedJob, ...])
        return every.validate_json(seals.read_regular_file(path), strict=True)

    def _cell(self, cell: str) -> tuple[int, int, int, int, float]:
        """What is known of a cell, once it has read what is new of its generations."""
        path = files.run_folder(self._results, cell) / files.GENERATIONS
        before = self._cells.get(cell, (0, 0, 0, 0, 0.0))
        try:
            state = path.stat()
            if not path.is_file():
                return before
            at, done, tokens = before[1:4] if state.st_ino == before[0] else (0, 0, 0)
            with path.open("rb") as stream:
                stream.seek(at)
                data = stream.read(_MOST)
        except (OSError, ValueError):
            return before
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].split(b"\n"):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                tokens += len(json.loads(line)["tokens"])
                done += 1
        self._cells[cell] = state.st_ino, at + whole, done, tokens, state.st_mtime
        return self._cells[cell]

    def _gone(self, job: WatchedJob, wrote: float) -> bool:
        if job.host != socket.gethostname():
            return self.now() - wrote > _SILENT_S
        try:
            os.kill(job.process, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return False


def seconds_left(jobs: Sequence[WatchedJob], now: float) -> float | None:
    """Returns seconds until a sweep's end by what its whole jobs took; None if unknown."""
    begun = [each for each in jobs if each.began and each.done]
    ran = [each for each in begun if each.state == "done"] or begun
    spent = sum((each.ended or now) - each.began for each in ran)
    rate = spent / max(1, sum(each.done for each in ran))
    left = 0.0
    per_job = max((each.total for each in jobs), default=0)
    for each in jobs:
        if each.state in (*OPEN, "lost"):
            total = each.total or per_job
            began = each.began or now
            left += max(rate * total - (now - began), rate * (total - each.done))
    running = sum(each.state == "running" for each in jobs)
    return left / max(running, 1) if left >= 1 else None


def main(options: Namespace) -> int:
    """Returns the command's status: 2 if there is no such sweep or one of its jobs failed."""
    watched = SweepNotes(options.results, options.name)
    if not (found := watched.look()):
        folder = options.results / files.RUNS / "jobs"
        names = sorted(path.parent.name for path in folder.glob("*/under_way"))
        known = f"; there are {', '.join(names)}" if names else ""
        none = f"spec-bench watch: no sweep {options.name!r} in {options.results}"
        print(f"{none}{known}", file=sys.stderr)
        return 2
    console = Console()
    if options.once or not console.is_terminal:
        console.print(make_table(found, watched.now()))
    else:
        with Live(make_table(found, watched.now()), console=console, auto_refresh=False) as live:
            while any(each.state in OPEN for each in found):
                time.sleep(_EVERY_S)
                found = watched.look()
                live.update(make_table(found, watched.now()), refresh=True)
    lines = summarise(found, watched.now())
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return 2 if len(lines) > 1 else 0


def print_progress(watched: Sequence[SweepNotes], over: threading.Event) -> None:
    """Prints a line whenever the count of jobs by state has changed, until it is over."""
    said = ""
    while not over.wait(_EVERY_S):
        counted = summarise([each for part in watched for each in part.look()], watched[0].now())[0]
        if counted.partition(";")[0] != said:
            said = counted.partition(";")[0]
            print(counted, file=sys.stderr, flush=True)


def make_table(jobs: Sequence[WatchedJob], now: float) -> Table:
    """Returns a line a job."""
    table = Table("job", "state", "prompts", "tokens/s", "where", "wrote", "choices", box=None)
    for job in jobs:
        seconds = (job.ended or now) - job.began
        rate = f"{job.tokens / seconds:.1f}" if job.tokens and seconds > 0 else ""
        where = " ".join(part for part in (job.host, job.devices and f"GPU {job.devices}") if part)
        wrote = f"{_format_duration(now - job.wrote)} ago" if job.done and not job.ended else ""
        done = f"{job.done} of {job.total}" if job.total else ""
        told = " ".join(job.words) + (f": {job.line}" if job.line else "")
        cells = (str(job.number + 1), job.state, done, rate, where, wrote, told)
        table.add_row(*map(Text, cells))
    return table


def summarise(jobs: Sequence[WatchedJob], now: float) -> list[str]:
    """Returns a sweep in a line, and a line for every job that did not end well."""
    states = Counter(each.state for each in jobs)
    left = seconds_left(jobs, now)
    known = [state for state in ("done", *_BAD, "running", "waiting") if state in states]
    counts = ", ".join(f"{states[state]} {state}" for state in known)
    more = "" if left is None else f"; some {_format_duration(left)} left"
    lines = [f"{len(jobs)} job{'s' * (len(jobs) != 1)}: {counts}{more}"]
    for job in (each for each in jobs if each.state in _BAD):
        resumes = f"{job.again} starts it again" if job.again else "the same command resumes"
        why = job.line or f"its process is gone; {resumes}"
        lines.append(f"  job {job.number + 1} ({' '.join(job.words)}): {why}")
    return lines


def _format_duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{max(seconds, 0):.0f} s"
