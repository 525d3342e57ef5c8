"""The Hydra application: a composed config in, result files and an exit status out.

Exit status: 0 all cells complete, 1 some cell failed, 2 the settings cannot be right (one line
says why, nothing was loaded or decoded), 130 interrupted; a rerun resumes.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.core import processes
from spec_bench.engine.model_spec import AUTO
from spec_bench.jobs.config.cells import DecoderLoader, load_decoder
from spec_bench.jobs.config.compose import (
    CHATTY,
    comes_from_hydra,
    job_arguments,
    one_line,
    register,
)
from spec_bench.jobs.config.config import RunSettings, check_settings
from spec_bench.jobs.config.engine_settings import placed
from spec_bench.jobs.config.pair import with_own_name
from spec_bench.jobs.config.settings import JobSettings, build_settings
from spec_bench.jobs.config.simulation import LISTS
from spec_bench.jobs.rows.outcome import feed, note_of
from spec_bench.jobs.store.experiment import Experiment, Tables
from spec_bench.jobs.sweep import seen
from spec_bench.jobs.sweep.confirm import confirming
from spec_bench.jobs.sweep.launch import (
    JobError,
    claim_gpus,
    disturbing,
    enter_folder,
    folders_here,
    lost_worker,
    offer_devices,
    place_in_sweep,
    register_resolvers,
)
from spec_bench.jobs.sweep.plan import PlannedCell, plan, print_plan
from spec_bench.metrics import check_references, check_score
from spec_bench.records.types import CellResult
from spec_bench.settings.configs import conf_dir
from spec_bench.sinks.console import print_table
from spec_bench.sinks.settings import build_sinks
from spec_bench.sinks.sink import Sink
from spec_bench.system import files, signals

log = logging.getLogger(__name__)
FULL_ERROR = "HYDRA_FULL_ERROR"
_wants_trace = os.environ.get(FULL_ERROR) == "1"
_statuses: list[int] = []  # of this process's jobs: Hydra hands no value back to main
_tables = Tables()  # that this process's jobs add to
_planned: list[PlannedCell] = []  # with plan=true, of all jobs of the sweep
_in_main = False  # whether this is the user's process, and not one that a launcher started


def main() -> None:
    """Runs the application and exits with its status."""
    global _in_main
    _in_main = True
    _statuses.clear()
    _planned.clear()
    try:
        sys.argv = job_arguments(sys.argv)
    except ValueError as error:
        sys.exit(_complain(error))
    register()
    register_resolvers()
    offer_devices()
    # Hydra would print its errors over several lines and exit with 1; we want them raised.
    os.environ[FULL_ERROR] = "1"
    application = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    try:
        with signals.raising():
            try:
                application(_job)()
            finally:
                _finish_tables()
        if _planned:
            print_plan(_planned)
    except (HydraException, OmegaConfBaseException) as error:
        if _wants_trace:
            raise
        _complain(error)
    except JobError as error:
        print(f"spec_bench: {error.message}", file=sys.stderr)
        _statuses.append(error.status)
    except KeyboardInterrupt:
        if not signals.came():
            print("interrupted; the same command resumes", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if signals.came():  # turned the interrupt into another error
            sys.exit(130)
        if not _wants_trace and comes_from_hydra(error):
            _complain(ValueError(f"{one_line(error)} (in {' '.join(sys.argv[1:])})"))
            sys.exit(2)
        if _wants_trace or not lost_worker(error):
            raise
        print(f"spec_bench: a worker was lost: {one_line(error)}", file=sys.stderr)
        print("the cells that had ended are kept; the same command resumes", file=sys.stderr)
        _statuses.append(1)
    sys.exit(max(_statuses, default=0))


def _job(config: DictConfig) -> int:
    """One job; its status is kept for ``main``."""
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        if not _in_main:
            enter_folder()
        asked = _asked(config)
        if asked.plan:
            words = tuple(HydraConfig.get().overrides.task)
            _planned.extend(replace(cell, words=words) for cell in plan(asked, *_configs()))
            return 0
        if not _in_main:
            claim_gpus(with_own_name(asked.pair, folders_here()), asked.engine)
            device = placed(asked.engine, asked.pair.target).device
            if place_in_sweep() == 0 and device == "cpu" and (why := disturbing()):
                log.warning("%s", why)
            # Bars of several processes would overwrite each other.
            asked = replace(asked, sink=replace(asked.sink, progress=False))
        with seen.seen(Path(asked.results), asked.name, here=_in_main):
            results = run(asked)
            seen.came_to(results)
    except OSError as error:
        refused = files.refused(error)
        if _wants_trace or refused is None:
            raise
        message = f"{refused}; what was decoded is kept, the same command resumes"
        if not _in_main:
            raise JobError(1, message) from error
        print(f"spec_bench: {message}", file=sys.stderr)  # Hydra would add lines to what is raised
        _statuses.append(1)
        return 1
    except (ValueError, OmegaConfBaseException) as error:
        if not _in_main:
            raise JobError(2, one_line(error)) from error
        if _wants_trace:
            raise
        return _complain(error)
    failed = [result for result in results if result.status == "failed"]
    if failed and not _in_main:
        raise JobError(1, f"{len(failed)} of {len(results)} cells failed: {failed[0].reason}")
    _statuses.append(int(bool(failed)))
    return _statuses[-1]


def run_config(config: DictConfig) -> list[CellResult]:
    """Checks a composed config and runs its job; see ``run``."""
    return run(_asked(config))


def settings_of(config: DictConfig) -> JobSettings:
    """A composed config's job, checked."""
    return build_settings(_asked(config), *_configs())


def run(asked: RunSettings) -> list[CellResult]:
    """Runs a job and hands the results to the sinks."""
    settings = build_settings(asked, *_configs())
    for score in settings.task.scores:
        check_score(score)
        examples = (*settings.examples, *settings.fresh)
        check_references(score, [g for each in examples for g in each.references])
    first = processes.rank() == 0
    sinks = build_sinks(asked.sink, settings.results / asked.name) if first else []
    if asked.engine.device == AUTO and asked.pair.paper and settings.device == "cpu":
        log.warning("no GPU is seen: %s is decoded on the CPU", settings.pair.name)
    if asked.prompts and len(settings.examples) < asked.prompts:
        known = (settings.task.name, len(settings.examples), asked.prompts)
        log.warning("task %s has %d examples, %d were asked for", *known)
    for why in settings.left_out:
        log.warning("left out: %s", why)
    results = run_stage(settings, sinks)
    if second := confirming(settings, results):
        results += run_stage(second, sinks)
    return results


def run_stage(settings: JobSettings, sinks: Sequence[Sink]) -> list[CellResult]:
    """Runs one job and hands its results over."""
    where = (settings.pair.name, settings.task.name, len(settings.cells))
    log.info("%s, %s: %d cells", *where)
    if processes.rank() == 0:
        Experiment(settings.results, settings.asked.name).check_places()
    seen.decodes(settings)
    results = [result.at_stage(settings.stage) for result in run_job_of(settings)]
    if processes.rank() == 0:
        _hand_over(settings, results, sinks)
    return results


def run_job_of(settings: JobSettings) -> list[CellResult]:
    """Imports torch, late so that no refusal waits for it, and runs the job."""
    with signals.raising(False):
        from spec_bench.jobs.job.job import run_job

    return run_job(settings)


def _asked(config: DictConfig) -> RunSettings:
    """The composed config, checked, before anything is read, loaded or written."""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    for group, choice in choices.items():
        if OmegaConf.is_list(choice) and group not in LISTS:
            raise ValueError(f"{group} must be one choice, got {list(choice)}")
    return check_settings(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def _configs() -> tuple[DecoderLoader, list[Path]]:
    """Where decoders are read from, and pairs."""
    folders = folders_here()
    return partial(load_decoder, folders), folders


def _hand_over(settings: JobSettings, results: list[CellResult], sinks: Sequence[Sink]) -> None:
    """CSV always; table and sinks as configured."""
    # The jobs of a sweep that run in the user's process are all over before ``main`` is.
    more = _in_main and place_in_sweep() is not None and not sinks
    number = place_in_sweep() or 0
    rows = _tables.add(
        Experiment(settings.results, settings.asked.name), note_of(settings, results, number), more,
        wait=_in_main,
    )  # fmt: skip
    if sinks:
        feed(sinks, settings, results, rows)
    if settings.asked.sink.table:  # last: there may be nobody who reads it
        table = files.results_file(settings.results, settings.asked.name)
        print_table(results)
        print(f"results: {table}", *(_answers(table, results) if rows else ()), sep="\n")


def _answers(table: Path, results: Sequence[CellResult]) -> list[str]:
    """What to use on the job's task, as the report on the table says it."""
    from spec_bench.report.page.headline import sentences  # loads pandas

    return sentences(table, {each.run_id for each in results})


def _finish_tables() -> None:
    """Completes the tables that a sweep's last jobs left to others."""
    try:
        _tables.finish()
        seen.end_sweep()
    except OSError as error:
        refused = files.refused(error)
        if _wants_trace or refused is None:
            raise
        print(f"spec_bench: {refused}; the same command resumes", file=sys.stderr)
        _statuses.append(1)


def _complain(error: Exception) -> int:
    """Says what cannot be right."""
    print(f"spec_bench: {one_line(error)}", file=sys.stderr)
    _statuses.append(2)
    return 2
