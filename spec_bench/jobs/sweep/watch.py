"""``spec-bench watch NAME``: how far a sweep is, from wherever its folder is seen."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spec_bench.jobs.store.progress import Progress, State, SweepNotes, seconds_left
from spec_bench.settings.arguments import Parser
from spec_bench.system import files

_EVERY_S = 2.0
_ORDER: tuple[State, ...] = (
    "done",
    "failed",
    "interrupted",
    "lost",
    "unreadable",
    "running",
    "waiting",
)


def main(arguments: Sequence[str]) -> int:
    """The command's status: 2 if there is no such sweep or one of its jobs failed."""
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
        print(
            f"spec_bench watch: no sweep {options.name!r} in {options.results}{known}",
            file=sys.stderr,
        )
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
    """A line a job."""
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
    """A sweep in a line, and a line for every job that did not end well."""
    states, left = Counter(each.job.state for each in progress), seconds_left(progress, now)
    counts = ", ".join(f"{states[state]} {state}" for state in _ORDER if state in states)
    more = "" if left is None else f"; some {_spoken(left)} left"
    lines = [f"{len(progress)} jobs: {counts}{more}"]
    for job in (each.job for each in progress):
        if job.state not in ("done", "running", "waiting"):
            why = job.line or "its process is gone; the same command resumes"
            lines.append(f"  job {job.number + 1} ({' '.join(job.words)}): {why}")
    return lines


def _spoken(seconds: float) -> str:
    """Seconds as people say them."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{max(seconds, 0):.0f} s"
