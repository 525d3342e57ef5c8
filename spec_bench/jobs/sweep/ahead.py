"""Checks a sweep's jobs before the first of them runs, so that a wrong last value costs no time.

Each swept value is checked in one job, and not in every combination. Where jobs run on other
machines, what this one has (devices, folders) says nothing, and settings are checked alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from spec_bench.jobs.config.cells import load_decoder
from spec_bench.jobs.config.compose import one_line
from spec_bench.jobs.config.config import RunSettings, check_settings
from spec_bench.jobs.config.early import check_early
from spec_bench.jobs.config.settings import build_settings, on_hub, shared
from spec_bench.jobs.store.under_way import UnderWay
from spec_bench.jobs.sweep.launch import config_folders, jobs_of
from spec_bench.jobs.sweep.watch import tell
from spec_bench.tasks import build_task

Checked = TypeVar("Checked")
swept: dict[tuple[Path, str], UnderWay] = {}
"""The experiments of this process's sweep, by folder of results and name."""
over = threading.Event()  # once the sweep is


class CheckJobs(Callback):
    """Ends the process with status 2 and one line where a job of a sweep cannot be right."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Called in the user's process before anything is launched."""
        here = "BasicLauncher" in config.hydra.launcher.get("_target_", "")
        folders, checked, asked = config_folders(config.hydra), set[str](), []
        jobs: dict[tuple[str, str], list[tuple[int, Sequence[str]]]] = {}
        try:
            for number, (words, job) in enumerate(jobs_of(config)):
                if not job.plan:
                    jobs.setdefault((str(job.results), str(job.name)), []).append((number, words))
                if not checked.issuperset(words):
                    checked.update(words)
                    asked.append((words, _told(words, _asked, job)))
            for check in (_names_and_files, _whole) if here else ():
                for words, settings in asked:
                    _told(words, check, settings, folders)
        except Exception as error:  # Hydra would make a warning of it and go on
            print(f"spec_bench: {one_line(error)}", file=sys.stderr)
            sys.exit(2)
        for (results, name), listed in jobs.items():
            swept[Path(results), name] = under_way = UnderWay(Path(results), name)
            under_way.begin(_choices(listed))
        if not here:
            told = list(swept.values()), over
            threading.Thread(target=tell, args=told, daemon=True).start()


def _choices(jobs: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, list[str]]]:
    """Jobs with what tells them apart; one alone keeps all its words."""
    common = set.intersection(*(set(words) for _, words in jobs)) if len(jobs) > 1 else set()
    return [(number, [word for word in words if word not in common]) for number, words in jobs]


def _asked(job: DictConfig) -> RunSettings:
    """A job's settings, checked by themselves."""
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
