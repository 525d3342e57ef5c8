"""A sweep's jobs: checked before the first job runs, and watched while they run.

Each swept value is checked in one job, not in every combination, so that a wrong last value costs
no time. If jobs run on other machines, this machine's devices and folders do not matter, and only
settings are checked. With ``plan=true`` the sweep is only planned, and no job starts.
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
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from spec_bench.core import processes
from spec_bench.jobs.config.application import SweepConfigs, to_job_error
from spec_bench.jobs.config.compose import LISTS, list_config_folders, parse_request
from spec_bench.jobs.config.config import RunSettings, check_before_torch
from spec_bench.jobs.config.settings import (
    build_settings,
    reads_rows_from_hub,
    reserve_confirmation_prompts,
)
from spec_bench.jobs.store.experiment import Experiment
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.launch import (
    describe_launch,
    get_sweep_job_number,
    register_launcher_resolvers,
)
from spec_bench.jobs.sweep.plan import PlannedCell, Planner, format_longest_job_minutes, print_plan
from spec_bench.jobs.sweep.watch import (
    OPEN,
    RunningJob,
    SweepNotes,
    print_changed_counts,
    summarise_jobs,
)
from spec_bench.records.types import CellResult
from spec_bench.sinks.sink import SinkSettings, build_sinks
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.tasks import build_task

log = logging.getLogger(__name__)
_RESTARTED_BY = {"SlurmLauncher": "Slurm", "RayLauncher": "Ray"}  # programs that restart a lost job
_MAX_QUICK_S = 5.0
_INVALID_SETTINGS_STATUS = 2  # the exit status of invalid settings


class Sweep:
    """The jobs of a sweep, in the user's process; None in a process that a launcher started."""

    def __init__(self) -> None:
        # (results, name) -> notes of the experiment's jobs, settings of its sinks
        self._notes_and_sinks = dict[tuple[str, str], tuple[SweepNotes, SinkSettings]]()
        self.has_run_here = False  # whether a job has run in this process
        # submitit's folder (its jobs go on without this process); "" for other launchers
        self._submitit_folder = ""
        self._is_over = threading.Event()
        self._slow_tables = set[Path]()  # tables that take longer than ``_MAX_QUICK_S`` to build

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickles as None, because other processes have no sweep."""
        return type(None), ()

    def check_and_list_or_plan_jobs(self, config: DictConfig, configs: SweepConfigs) -> bool:
        """Checks a sweep's jobs before anything is launched, and lists them or prints their plan;
        returns whether to launch them. Raises UsageError if a job's settings are invalid.
        """
        register_launcher_resolvers(configs)
        launcher = config.hydra.launcher
        target = launcher.get("_target_", "").rpartition(".")[2]
        runs_here = target == "BasicLauncher"
        folders = list_config_folders(config.hydra)
        checked_words = set[str]()
        requests = []
        plan_requests = []
        jobs: dict[tuple[str, str], list[tuple[int, Sequence[str]]]] = {}
        planner = Planner(folders)
        cells = list[list[PlannedCell]]()
        for number, (words, job) in enumerate(configs.compose_jobs(config)):
            jobs.setdefault((str(job.results), str(job.name)), []).append((number, words))
            is_new = not checked_words.issuperset(words)
            if is_new or job.plan:
                with _errors_with_words(words):
                    settings = parse_request(job)
                plan_requests += [(words, settings)] * settings.plan
                requests += [(words, settings)] * is_new
                checked_words.update(words)
        if target == "SlurmLauncher" and not plan_requests and which("srun") is None:
            raise UsageError(
                "no srun on this machine, so no Slurm: start this on a login node; plan=true "
                "plans it anywhere, hydra/launcher=workers runs it here"
            )
        for check in (
            (_check_cells_and_local_rows, *([] if plan_requests else [_check_all_settings]))
            if runs_here
            else ()
        ):
            for words, settings in requests:
                with _errors_with_words(words):
                    check(settings, folders)
        for words, settings in plan_requests:
            with _errors_with_words(words):
                job_cells = planner.plan_all_stages(settings)
            cells.append([replace(cell, words=tuple(words)) for cell in job_cells])
        _print_list_syntax_hint(checked_words)
        if plan_requests:
            _print_sweep_plan(config, cells, on_cluster=target in _RESTARTED_BY)
            return False
        sinks = {(request.results, request.name): request.sink for _, request in reversed(requests)}
        for key, job_words in jobs.items():
            notes = SweepNotes(Path(key[0]), key[1])
            self._notes_and_sinks[key] = notes, sinks[key]
            notes.replace_job_list(job_words, _RESTARTED_BY.get(target, ""))
        if folder := launcher.get("submitit_folder"):
            self._submitit_folder = folder
            print(f"logs: {Path(folder).parent}", file=sys.stderr)
        if not runs_here:
            watch_arguments = [notes for notes, _ in self._notes_and_sinks.values()], self._is_over
            threading.Thread(target=print_changed_counts, args=watch_arguments, daemon=True).start()
        return True

    def rebuild_tables_if_quick(self, experiment: Experiment) -> bool:
        """Rebuilds the tables after a job that ran here, unless they are slow to build or another
        process is rebuilding them; returns whether they were rebuilt.
        """
        began = time.monotonic()
        is_complete = experiment.csv not in self._slow_tables and experiment.rebuild_tables(
            wait_s=0
        )
        if time.monotonic() - began > _MAX_QUICK_S:
            self._slow_tables.add(experiment.csv)
        return is_complete

    def finish_and_print_experiments(self) -> Iterator[tuple[Path, str, list[CellResult]]]:
        """Rebuilds all tables, gives their rows to the sinks, and prints the jobs' outcomes; yields
        each experiment's results folder, name and results.
        """
        self._is_over.set()
        with suppress(OSError):  # submitit also makes a folder of the unreplaced pattern
            Path(self._submitit_folder).rmdir()
        for (folder, name), (notes, sink) in self._notes_and_sinks.items():
            results = Path(folder)
            watched_jobs = notes.read_progress()
            if not self.has_run_here or any(job.cells for job in watched_jobs):
                Experiment(results, name).rebuild_and_publish(build_sinks(sink, results / name))
            for line in summarise_jobs(watched_jobs, notes.read_clock()):
                print(line, file=sys.stderr)
            if any(job.state != "done" for job in watched_jobs):
                print("  the same command does what is missing", file=sys.stderr)
            if self._submitit_folder and (
                running_count := sum(job.state in OPEN for job in watched_jobs)
            ):
                watch = files.format_own_command("watch", name, results=results)
                message = f"{running_count} go on without this process: {watch}"
                print(f"  {message}; every reader of the table sees their rows", file=sys.stderr)
            if not sink.table:
                continue
            cells = dict.fromkeys(cell for job in watched_jobs for cell in job.cells)
            cell_results = (CellStore(results, cell).load_result() for cell in cells)
            yield results, name, [result for result in cell_results if result is not None]


def _print_sweep_plan(
    config: DictConfig, cells: Sequence[Sequence[PlannedCell]], *, on_cluster: bool
) -> None:
    """Prints the cells of each job, how the jobs are launched, and the longest job's minutes."""
    launch_text = describe_launch(config, len(cells))
    print_plan([cell for job in cells for cell in job])
    note = " (measured rates are this machine's, not the cluster's)" if on_cluster else ""
    print(f"{launch_text}\nthe longest job: {format_longest_job_minutes(cells)}{note}")


def _check_cells_and_local_rows(settings: RunSettings, folders: list[Path]) -> None:
    """Checks the files, cells and local rows that a job names, without importing torch."""
    check_before_torch(settings, folders)
    task = build_task(settings.task)
    if not reads_rows_from_hub(task):
        task.read_examples(reserve_confirmation_prompts(settings, task).prompts)


def _check_all_settings(settings: RunSettings, folders: list[Path]) -> None:
    """Checks everything that is known before models are loaded; imports torch."""
    build_settings(settings, folders, skip_data=True)


@contextmanager
def _errors_with_words(words: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        job_error = to_job_error(error, "nothing was decoded")
        if job_error is None or job_error.status != _INVALID_SETTINGS_STATUS:
            raise
        raise UsageError(f"{job_error.message} (in {' '.join(words)})") from error


@contextmanager
def tracked_sweep_job(results: Path, name: str, sweep: Sweep | None) -> Iterator[RunningJob]:
    """Publishes the state of a sweep's job that runs within the block, in the user's process (with
    its ``sweep``) or in a launcher's. Outside a sweep it yields a job without a note.
    """
    number = get_sweep_job_number()
    if number is None or processes.process_rank():
        yield RunningJob()
        return
    with SweepNotes(results, name).tracked_job(number, HydraConfig.get().overrides.task) as job:
        label = f"job {number + 1} of {job.sweep_job_count}"
        make_record = logging.getLogRecordFactory()

        def make_labelled_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make_record(*args, **kwargs)
            record.msg = f"[{label}] {record.msg}"
            return record

        if sweep is not None:
            sweep.has_run_here = True
            log.info("%s: %s", label, " ".join(job.snapshot.words))
        else:  # its log lines mix with other jobs'
            logging.setLogRecordFactory(make_labelled_record)
        try:
            yield job
        finally:
            logging.setLogRecordFactory(make_record)


def _print_list_syntax_hint(words: Iterable[str]) -> None:
    """Prints how to compare swept budgets or lengths in one job."""
    pairs = (word.partition("=")[::2] for word in words)
    values = group_by_key((group, value.strip("'\"")) for group, value in pairs if group in LISTS)
    for group, group_values in values.items():
        if len(group_values) > 1:
            value_list = ",".join(sorted(group_values, key=lambda value: (len(value), value)))
            print(
                f"{group}={value_list}: times of jobs are apart and not compared; "
                f"'{group}=[{value_list}]' is one job",
                file=sys.stderr,
            )
