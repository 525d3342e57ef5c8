"""``spec-bench watch NAME``: how far a sweep is, from wherever its folder is seen.

Its jobs leave a small file each while they run: in ``runs/jobs/<experiment>/under_way``
``sweep.json`` lists the jobs, ``<number>.json`` says where one runs and what became of it. Nothing
else reads them: rows and tables do not hang on them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spec_bench.records import seals
from spec_bench.settings.arguments import Parser
from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import Ge, Lt, adapter
from spec_bench.system import files

State = Literal["waiting", "running", "done", "failed", "interrupted", "lost", "unreadable"]
_RESUMES = "interrupted; the same command resumes"
_SILENT_S = 900.0  # of a job on another machine: longer without a record, and it is taken for lost
_Count = Annotated[int, Ge(0), Lt(2**31)]
_When = Annotated[float, Ge(0), Lt(2**40)]
_Line = Annotated[str, AfterValidator(lambda text: re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text))]
_EVERY_S = 2.0
_BAD: tuple[State, ...] = ("failed", "interrupted", "lost", "unreadable")


@dataclass(frozen=True)
class JobState:
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


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    job: JobState
    done: int = 0  # generations on disk, of `total`
    tokens: int = 0  # of these
    wrote: float = 0.0  # when the last of them came, in seconds; 0: none has

    @property
    def total(self) -> int:
        """Generations that its cells need."""
        return self.job.prompts * len(self.job.cells)


class SweepNotes:
    """The notes of one experiment's jobs."""

    def __init__(self, results: Path, name: str) -> None:
        self._results = results
        self._folder = files.jobs_folder(results, name) / "under_way"
        self._sweep = self._folder / "sweep.json"

    @property
    def known(self) -> bool:
        """Whether a sweep of that name has begun."""
        return os.path.lexists(self._sweep)

    def begin(self, jobs: Sequence[tuple[int, Sequence[str]]]) -> None:
        """A sweep begins: its jobs, by number, with their choices; nothing is left of the last."""
        for old in self._folder.glob("*.json"):
            old.unlink(missing_ok=True)
        listed = [{"number": number, "words": list(words)} for number, words in jobs]
        files.write_json(self._sweep, listed)

    @contextmanager
    def running(self, number: int) -> Iterator[RunningJob]:
        """A job runs within the block; a line that was said of it by then is why it failed."""
        job = RunningJob(self._folder / f"{number}.json", JobState(number))
        job.say(
            state="running",
            host=socket.gethostname(),
            process=os.getpid(),
            devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            began=time.time(),
        )
        try:
            yield job
        except BaseException as error:
            why = _RESUMES if isinstance(error, KeyboardInterrupt) else one_line(error)
            job.say(line=job.state.line or why)
            raise
        finally:
            bad = "interrupted" if job.state.line == _RESUMES else "failed"
            job.say(state=bad if job.state.line else "done", ended=time.time())

    def jobs(self) -> list[JobState]:
        """All jobs in their order, those that have not begun too; an unreadable note is a job."""
        try:
            found = {each.number: each for each in _read(tuple[JobState, ...], self._sweep)}
        except ValueError as error:
            found = {-1: JobState(-1, ("the list of jobs",), "unreadable", str(error))}
        for path in (each for each in self._folder.glob("*.json") if each.stem.isdecimal()):
            number = int(path.stem)
            try:
                job = _read(JobState, path)
            except ValueError as error:
                job = JobState(number, state="unreadable", line=str(error))
            words = job.words or found.get(number, job).words
            found[number] = replace(job, number=number, words=words)
        return [found[number] for number in sorted(found)]

    def progress(self) -> list[Progress]:
        """Returns all jobs with how far they are."""
        return [self._progress(job) for job in self.jobs()]

    def _progress(self, job: JobState) -> Progress:
        if job.state in ("waiting", "done"):
            return Progress(job, job.prompts * len(job.cells) if job.state == "done" else 0)
        done = tokens = 0
        wrote = 0.0
        for cell in job.cells:
            path = files.run_folder(self._results, cell) / files.GENERATIONS
            try:
                lines, wrote_here = seals.bytes_of(path).splitlines(), path.stat().st_mtime
            except (OSError, ValueError):
                continue
            wrote = max(wrote, wrote_here)
            for line in lines:
                try:
                    tokens += len(json.loads(line)["tokens"])
                    done += 1
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue
        state = self._alive(job, wrote) if job.state == "running" else job.state
        return Progress(replace(job, state=state), done, tokens, wrote)

    @staticmethod
    def _alive(job: JobState, wrote: float) -> State:
        if job.host == socket.gethostname():
            try:
                os.kill(job.process, 0)
            except OSError as error:
                return "lost" if isinstance(error, ProcessLookupError) else "running"
            return "running"
        return "lost" if time.time() - max(job.began, wrote) > _SILENT_S else "running"


def _read(kind: Any, path: Path) -> Any:
    """A note, every value held to its type; a ``ValueError`` names one that is unreadable."""
    try:
        if path.stat().st_size > 2**30:
            raise ValueError("it is too large")
        return adapter(kind).validate_json(seals.bytes_of(path), strict=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} is unreadable: {one_line(error, 120)}") from error


@dataclass
class RunningJob:
    """What a job says of itself as it runs."""

    path: Path  # its note
    state: JobState

    def say(self, **changed: Any) -> None:
        """Writes its note with other values."""
        self.state = replace(self.state, **changed)
        try:
            files.write_json(self.path, asdict(self.state))
        except OSError as error:  # nobody's numbers hang on it
            if files.refused(error) is None:
                raise


def seconds_left(progress: Sequence[Progress], now: float) -> float | None:
    """Returns seconds until a sweep's end, by what generations took so far; None if unknown."""
    states = Counter(each.job.state for each in progress)
    ran = [each for each in progress if each.job.began and each.done]
    spent = sum((each.job.ended or now) - each.job.began for each in ran)
    finished = sum(each.done for each in ran)
    if not finished or not {"running", "waiting"} & set(states):
        return None
    per_job = max(each.total for each in progress)
    open_jobs = [each for each in progress if each.job.state in ("waiting", "running", "lost")]
    missing = sum((each.total or per_job) - each.done for each in open_jobs)
    return spent / finished * missing / max(states["running"], 1)


def main(arguments: Sequence[str]) -> int:
    """Returns the command's status: 2 if there is no such sweep or one of its jobs failed."""
    parser = Parser(prog="spec-bench watch", description=str(__doc__).replace("``", ""))
    parser.add_argument("name", help="of the experiment")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER")
    parser.add_argument("--once", action="store_true", help="print it once, for scripts")
    options = parser.parse_args(list(arguments))
    watched = SweepNotes(options.results, options.name)
    if not watched.known:
        folder = options.results / files.RUNS / "jobs"
        names = sorted(path.parent.name for path in folder.glob("*/under_way"))
        known = f"; there are {', '.join(names)}" if names else ""
        none = f"spec_bench watch: no sweep {options.name!r} in {options.results}"
        print(f"{none}{known}", file=sys.stderr)
        return 2
    console = Console()
    if options.once or not console.is_terminal:
        found = watched.progress()
        console.print(table_of(found, time.time()))
    else:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                found = watched.progress()
                live.update(table_of(found, time.time()), refresh=True)
                if not any(each.job.state in ("running", "waiting") for each in found):
                    break
                time.sleep(_EVERY_S)
    lines = ending(found, time.time())
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return 2 if len(lines) > 1 else 0


def tell(watched: Sequence[SweepNotes], over: threading.Event) -> None:
    """Prints a line whenever the count of jobs by state has changed, until it is over."""
    said = ""
    while not over.wait(_EVERY_S):
        found = [each for part in watched for each in part.progress()]
        counted = ending(found, time.time())[0]
        if counted.partition(";")[0] != said:
            said = counted.partition(";")[0]
            print(counted, file=sys.stderr, flush=True)


def table_of(progress: Sequence[Progress], now: float) -> Table:
    """Returns a line a job."""
    table = Table("job", "state", "prompts", "tokens/s", "where", "wrote", "choices", box=None)
    for each in progress:
        job = each.job
        seconds = (job.ended or now) - job.began
        rate = f"{each.tokens / seconds:.1f}" if each.tokens and seconds > 0 else ""
        where = " ".join(part for part in (job.host, job.devices and f"GPU {job.devices}") if part)
        wrote = f"{_spoken(now - each.wrote)} ago" if each.wrote and not job.ended else ""
        done = f"{each.done} of {each.total}" if each.total else ""
        told = " ".join(job.words) + (f": {job.line}" if job.line else "")
        cells = (str(job.number + 1), job.state, done, rate, where, wrote, told)
        table.add_row(*map(Text, cells))
    return table


def ending(progress: Sequence[Progress], now: float) -> list[str]:
    """Returns a sweep in a line, and a line for every job that did not end well."""
    states, left = Counter(each.job.state for each in progress), seconds_left(progress, now)
    counts = ", ".join(
        f"{states[state]} {state}"
        for state in ("done", *_BAD, "running", "waiting")
        if state in states
    )
    more = "" if left is None else f"; some {_spoken(left)} left"
    lines = [f"{len(progress)} job{'s' * (len(progress) != 1)}: {counts}{more}"]
    for job in (each.job for each in progress):
        if job.state in _BAD:
            why = job.line or "its process is gone; the same command resumes"
            lines.append(f"  job {job.number + 1} ({' '.join(job.words)}): {why}")
    return lines


def _spoken(seconds: float) -> str:
    """Returns seconds as people say them."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{max(seconds, 0):.0f} s"
