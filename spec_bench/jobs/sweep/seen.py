"""A sweep's jobs as others see them: each says where it is, and its lines bear its number."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spec_bench.core import processes
from spec_bench.jobs.config.settings import JobSettings, run_id
from spec_bench.jobs.store.experiment import Experiment
from spec_bench.jobs.store.under_way import RunningJob, UnderWay, summary
from spec_bench.jobs.sweep.ahead import over, swept
from spec_bench.jobs.sweep.launch import place_in_sweep
from spec_bench.jobs.sweep.watch import ending
from spec_bench.records.types import CellResult

log = logging.getLogger(__name__)
_now: list[RunningJob] = []  # the job of this process
_ran_here: list[bool] = []  # whether one ran in the user's process


class _Numbered(logging.Filter):
    """Puts a job's number and choices before its lines, among those of others."""

    label = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = f"[{self.label}] {record.getMessage()}", ()
        return True


_numbered = _Numbered()


@contextmanager
def seen(results: Path, name: str, *, here: bool) -> Iterator[None]:
    """Whoever watches a sweep sees its job within the block.

    Args:
        results: the folder of results.
        name: of the experiment.
        here: whether it runs in the user's process, one job after the other.
    """
    number = place_in_sweep()
    if number is None or processes.rank():
        yield
        return
    under_way = UnderWay(results, name)
    listed = {job.number: " ".join(job.words) for job in under_way.jobs()}
    label = f"job {number + 1} of {len(listed)}"
    if here:
        _ran_here.append(True)
        log.info("%s: %s", label, listed.get(number, ""))
    else:
        _numbered.label = label
        for handler in logging.getLogger().handlers:
            handler.addFilter(_numbered)  # once, however often
    with under_way.running(number) as running:
        _now.append(running)
        try:
            yield
        finally:
            _now.clear()


def decodes(settings: JobSettings) -> None:
    """The job comes to these cells."""
    for running in _now:
        cells = [run_id(settings.cell_settings(cell)) for cell in settings.cells]
        running.decodes(cells, len(settings.examples) * settings.asked.repeats)


def came_to(results: Sequence[CellResult]) -> None:
    """What the job's cells came to."""
    failed = [result for result in results if result.status == "failed"]
    for running in _now if failed else ():
        running.problem(f"{len(failed)} of {len(results)} cells failed: {failed[0].reason}")


def end_sweep() -> None:
    """Makes the tables of jobs that ran elsewhere, and says what the sweep came to."""
    over.set()
    for (results, name), under_way in swept.items():
        if not _ran_here:
            Experiment(results, name).rebuild()
        found = summary(under_way.progress(), time.time())
        for line in ending(found):
            print(line, file=sys.stderr)
        if set(found.counts) != {"done"}:
            print("  the same command does what is missing", file=sys.stderr)
    swept.clear()
