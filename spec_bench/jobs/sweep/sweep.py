"""A sweep's jobs: checked before the first of them runs, and seen by others while they do.

Each swept value is checked in one job, and not in every combination, so that a wrong last value
costs no time. Where jobs run on other machines, what this one has (devices, folders) says nothing,
and settings are checked alone.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from spec_bench.core import processes
from spec_bench.jobs.config.compose import one_line
from spec_bench.jobs.config.config import RunSettings, check_early, check_settings
from spec_bench.jobs.config.settings import JobSettings, build_settings, on_hub, shared
from spec_bench.jobs.store.experiment import Experiment
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.launch import config_folders, jobs_of, place_in_sweep
from spec_bench.jobs.sweep.watch import RunningJob, SweepNotes, ending, tell
from spec_bench.records.types import CellResult
from spec_bench.sinks.sink import SinkSettings, build_sinks
from spec_bench.tasks import build_task
from spec_bench.vocabulary.decoders import load_decoder

log = logging.getLogger(__name__)
Checked = TypeVar("Checked")
_AGAIN = {"SlurmLauncher": "Slurm", "RayLauncher": "Ray"}  # who starts a lost job again
_swept: dict[tuple[Path, str], SweepNotes] = {}  # this process's sweep, by results and name
_sinks: dict[tuple[Path, str], SinkSettings] = {}  # where its rows go
_over = threading.Event()  # once the sweep is
_now: list[RunningJob] = []  # the job of this process
_ran_here: list[bool] = []  # whether one ran in the user's process


class CheckJobs(Callback):
    """Ends the process with status 2 and one line where a job of a sweep cannot be right."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Called in the user's process before anything is launched."""
        launcher = config.hydra.launcher
        target = launcher.get("_target_", "").rpartition(".")[2]
        here = target == "BasicLauncher"
        folders, checked, asked = config_folders(config.hydra), set[str](), []
        jobs: dict[tuple[str, str], list[tuple[int, Sequence[str]]]] = {}
        try:
            for number, (words, job) in enumerate(jobs_of(config)):
                if not job.plan:
                    jobs.setdefault((str(job.results), str(job.name)), []).append((number, words))
                if not checked.issuperset(words):
                    checked.update(words)
                    asked.append((words, _told(words, _asked, job)))
                    settings = asked[-1][1]
                    _sinks.setdefault((Path(settings.results), settings.name), settings.sink)
            for check in (_names_and_files, _whole) if here else ():
                for words, settings in asked:
                    _told(words, check, settings, folders)
        except Exception as error:  # Hydra would make a warning of it and go on
            print(f"spec_bench: {one_line(error)}", file=sys.stderr)
            sys.exit(2)
        for (results, name), listed in jobs.items():
            _swept[Path(results), name] = notes = SweepNotes(Path(results), name)
            notes.begin(listed, _AGAIN.get(target, ""))
        if folder := launcher.get("submitit_folder"):
            print(f"logs: {Path(folder).parent}", file=sys.stderr)
        if not here:
            told = list(_swept.values()), _over
            threading.Thread(target=tell, args=told, daemon=True).start()


def _asked(job: DictConfig) -> RunSettings:
    """Returns a job's settings, checked by themselves."""
    # Without Hydra's part, some of which is known only once the job runs.
    parts = {key: job[key] for key in job if key != "hydra"}
    asked = check_settings(OmegaConf.to_container(OmegaConf.create(parts), resolve=True))
    if not asked.plan:
        return asked
    return replace(asked, engine=replace(asked.engine, device="cpu"))  # it will run elsewhere


def _names_and_files(asked: RunSettings, folders: list[Path]) -> None:
    """Checks what a job names here, its rows included."""
    check_early(asked, partial(load_decoder, folders))
    task = build_task(asked.task)
    if not on_hub(task):
        task.examples(shared(asked, task).prompts)


def _whole(asked: RunSettings, folders: list[Path]) -> None:
    """Checks all that is known before models are loaded; imports torch."""
    build_settings(asked, partial(load_decoder, folders), folders, unread=True)


def _told(words: Sequence[str], check: Callable[..., Checked], *given: Any) -> Checked:
    """Makes a check; what it refuses names the job."""
    try:
        return check(*given)
    except Exception as error:
        raise ValueError(f"{one_line(error)} (in {' '.join(words)})") from error


class _Numbered(logging.Filter):
    """Puts a job's number before its lines, among those of others."""

    label = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = f"[{self.label}] {record.getMessage()}", ()
        return True


_numbered = _Numbered()


@contextmanager
def seen(results: Path, name: str, *, here: bool) -> Iterator[None]:
    """Whoever watches the sweep sees its job within the block, in the user's process or not."""
    number = place_in_sweep()
    if number is None or processes.rank():
        yield
        return
    notes, words = SweepNotes(results, name), HydraConfig.get().overrides.task
    listed = {job.key: job for job in notes.jobs() if job.number >= 0}
    job = listed.get(notes.note(words).stem)
    label = f"job {number + 1} of {sum(each.number >= 0 for each in listed.values())}"
    if here:
        _ran_here.append(True)
        log.info("%s: %s", label, " ".join(job.words if job else words))
    else:
        _numbered.label = label
        for handler in logging.getLogger().handlers:
            handler.addFilter(_numbered)  # once, however often
    with notes.running(number, words) as running:
        _now.append(running)
        try:
            yield
        finally:
            _now.clear()


def says(**changed: Any) -> None:
    """What whoever watches is told of this process's job."""
    for running in _now:
        running.say(**changed)


def decodes(settings: JobSettings) -> None:
    """The job comes to these cells, each of so many prompts, repeats counted."""
    for running in _now:
        cells = (*running.state.cells, *map(settings.run_id, settings.cells))
        prompts = len(settings.examples) * settings.asked.repeats
        running.say(cells=tuple(dict.fromkeys(cells)), prompts=prompts)


def end_sweep() -> Iterator[tuple[Path, str, list[CellResult]]]:
    """Says what the sweep came to, and makes the tables of jobs that ran elsewhere; results, name
    and those jobs' cells.
    """
    _over.set()
    while _swept:
        (results, name), notes = _swept.popitem()
        sink = _sinks.get((results, name), SinkSettings())
        if not _ran_here:
            Experiment(results, name).finish(build_sinks(sink, results / name))
        found = notes.progress()
        for line in ending(found, time.time()):
            print(line, file=sys.stderr)
        if any(each.job.state != "done" for each in found):
            print("  the same command does what is missing", file=sys.stderr)
        if not sink.table:
            continue
        cells = [] if _ran_here else dict.fromkeys(c for each in found for c in each.job.cells)
        ended = (CellStore(results, cell).result() for cell in cells)
        yield results, name, [result for result in ended if result is not None]
    _sinks.clear()
