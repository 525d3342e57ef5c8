"""A sweep's jobs: checked before the first of them runs, and seen by others while they do.

Each swept value is checked in one job, and not in every combination, so that a wrong last value
costs no time. Where jobs run on other machines, what this one has (devices, folders) says nothing,
and settings are checked alone. A sweep that is to be planned is planned here, and none of its jobs
starts.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import ClassVar

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from spec_bench.core import processes
from spec_bench.jobs.config.application import SweepConfigs, to_job_error
from spec_bench.jobs.config.compose import LISTS, config_folders, parse_request
from spec_bench.jobs.config.config import RunSettings, check_early
from spec_bench.jobs.config.settings import build_settings, reads_hub, split_prompts
from spec_bench.jobs.store.experiment import Experiment
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.launch import describe_launch, register_resolvers, sweep_index
from spec_bench.jobs.sweep.plan import PlannedCell, Planner, max_minutes, print_plan
from spec_bench.jobs.sweep.watch import OPEN, RunningJob, SweepNotes, print_progress, summarise
from spec_bench.records.types import CellResult
from spec_bench.sinks.sink import SinkSettings, build_sinks
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.tasks import build_task

log = logging.getLogger(__name__)
_AGAIN = {"SlurmLauncher": "Slurm", "RayLauncher": "Ray"}  # who starts a lost job again
_QUICK_S = 5.0
_WRONG = 2  # the status of a request that cannot be right


class Sweep:
    """What the user's process knows of its jobs."""

    mine: ClassVar[Sweep | None] = None  # this process's; None in one that a launcher started

    def __init__(self) -> None:
        # its notes and where its rows go, by results and name
        self._parts = dict[tuple[str, str], tuple[SweepNotes, SinkSettings]]()
        self.ran_here = False  # whether a job did, in this process
        # submitit's, whose jobs go on without this process; "" of another launcher
        self._logs = ""
        self._over = threading.Event()
        self._slow = set[Path]()  # tables that take longer than this to make

    def begin(self, config: DictConfig, configs: SweepConfigs) -> bool:
        """Checks a sweep's jobs before anything is launched, and lists them or prints their plan;
        whether they are to run. Raises UsageError: a job cannot be right.
        """
        register_resolvers(configs)
        launcher = config.hydra.launcher
        target = launcher.get("_target_", "").rpartition(".")[2]
        here = target == "BasicLauncher"
        folders = config_folders(config.hydra)
        checked = set[str]()
        asked = []
        planned = []
        jobs: dict[tuple[str, str], list[tuple[int, Sequence[str]]]] = {}
        planner = Planner(folders)
        cells = list[list[PlannedCell]]()
        for number, (words, job) in enumerate(configs.compose_jobs(config)):
            jobs.setdefault((str(job.results), str(job.name)), []).append((number, words))
            new = not checked.issuperset(words)
            if new or job.plan:
                with _add_words_to_errors(words):
                    settings = parse_request(job)
                planned += [(words, settings)] * settings.plan
                asked += [(words, settings)] * new
                checked.update(words)
        if target == "SlurmLauncher" and not planned and which("srun") is None:
            raise UsageError(
                "no srun on this machine, so no Slurm: start this on a login node; plan=true "
                "plans it anywhere, hydra/launcher=workers runs it here"
            )
        for check in (_names_and_files, *([] if planned else [_whole])) if here else ():
            for words, settings in asked:
                with _add_words_to_errors(words):
                    check(settings, folders)
        for words, settings in planned:
            with _add_words_to_errors(words):
                found = planner.plan(settings)
            cells.append([replace(cell, words=tuple(words)) for cell in found])
        _hint_at_lists(checked)
        launched = describe_launch(config, len(cells)) if planned else ""
        if planned:
            print_plan([cell for job in cells for cell in job])
            note = " (measured rates are this machine's, not the cluster's)" * (target in _AGAIN)
            print(f"{launched}\nthe longest job: {max_minutes(cells)}{note}")
            return False
        sinks = {(each.results, each.name): each.sink for _, each in reversed(asked)}
        for key, listed in jobs.items():
            notes = SweepNotes(Path(key[0]), key[1])
            self._parts[key] = notes, sinks[key]
            notes.begin(listed, _AGAIN.get(target, ""))
        if folder := launcher.get("submitit_folder"):
            self._logs = folder
            print(f"logs: {Path(folder).parent}", file=sys.stderr)
        if not here:
            told = [notes for notes, _ in self._parts.values()], self._over
            threading.Thread(target=print_progress, args=told, daemon=True).start()
        return True

    def rebuild(self, experiment: Experiment) -> bool:
        """Makes the tables of a job that ran here, unless that takes long; whether it did."""
        began = time.monotonic()
        made = experiment.csv not in self._slow and experiment.rebuild(wait_s=0)
        if time.monotonic() - began > _QUICK_S:
            self._slow.add(experiment.csv)
        return made

    def end(self) -> Iterator[tuple[Path, str, list[CellResult]]]:
        """Completes the tables and says what the sweep came to; results, name and all cells."""
        self._over.set()
        with suppress(OSError):  # that submitit makes by a name of which it replaces a part
            Path(self._logs).rmdir()
        for (folder, name), (notes, sink) in self._parts.items():
            results = Path(folder)
            found = notes.look()
            if not self.ran_here or any(each.cells for each in found):
                Experiment(results, name).finish(build_sinks(sink, results / name))
            for line in summarise(found, notes.now()):
                print(line, file=sys.stderr)
            if any(each.state != "done" for each in found):
                print("  the same command does what is missing", file=sys.stderr)
            if self._logs and (running := sum(each.state in OPEN for each in found)):
                watch = files.command_line("watch", name, results=results)
                told = f"{running} go on without this process: {watch}"
                print(f"  {told}; every reader of the table sees their rows", file=sys.stderr)
            if not sink.table:
                continue
            cells = dict.fromkeys(cell for each in found for cell in each.cells)
            ended = (CellStore(results, cell).result() for cell in cells)
            yield results, name, [result for result in ended if result is not None]


def _names_and_files(asked: RunSettings, folders: list[Path]) -> None:
    """Checks what a job names here, its rows included."""
    check_early(asked, folders)
    task = build_task(asked.task)
    if not reads_hub(task):
        task.examples(split_prompts(asked, task).prompts)


def _whole(asked: RunSettings, folders: list[Path]) -> None:
    """Checks all that is known before models are loaded; imports torch."""
    build_settings(asked, folders, unread=True)


@contextmanager
def _add_words_to_errors(words: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        told = to_job_error(error, "nothing was decoded")
        if told is None or told.status != _WRONG:
            raise
        raise UsageError(f"{told.message} (in {' '.join(words)})") from error


@contextmanager
def publish_state(results: Path, name: str) -> Iterator[RunningJob]:
    """Whoever watches the sweep sees its job within the block, in the user's process or not."""
    number = sweep_index()
    if number is None or processes.rank():
        yield RunningJob()
        return
    with SweepNotes(results, name).track(number, HydraConfig.get().overrides.task) as running:
        label = f"job {number + 1} of {running.listed}"

        def numbered(record: logging.LogRecord) -> bool:
            record.msg = f"[{label}] {record.getMessage()}"
            record.args = ()
            return True

        handlers = [] if Sweep.mine else logging.getLogger().handlers  # of lines among others'
        if Sweep.mine:
            Sweep.mine.ran_here = True
            log.info("%s: %s", label, " ".join(running.state.words))
        for handler in handlers:
            handler.addFilter(numbered)
        try:
            yield running
        finally:
            for handler in handlers:
                handler.removeFilter(numbered)


def _hint_at_lists(words: Iterable[str]) -> None:
    """Says of budgets and lengths that are jobs of their own how they are compared in one."""
    pairs = (word.partition("=")[::2] for word in words)
    values = group_by_key((group, value.strip("'\"")) for group, value in pairs if group in LISTS)
    for group, found in values.items():
        if len(found) > 1:
            several = ",".join(sorted(found, key=lambda value: (len(value), value)))
            print(
                f"{group}={several}: times of jobs are apart and not compared; "
                f"'{group}=[{several}]' is one job",
                file=sys.stderr,
            )
