"""The Hydra application: a composed config in, result files and an exit status out.

Exit status: 0 all cells complete, 1 some cell failed, 2 the settings cannot be right (one line
says why, nothing was loaded or decoded), 130 interrupted; a rerun resumes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.core import processes
from spec_bench.engine.model_spec import AUTO
from spec_bench.jobs.config import compose
from spec_bench.jobs.config.cells import DecoderLoader
from spec_bench.jobs.config.compose import one_line
from spec_bench.jobs.config.config import RunSettings, check_settings
from spec_bench.jobs.config.pair import placed, with_own_name
from spec_bench.jobs.config.settings import JobSettings, build_settings
from spec_bench.jobs.store.experiment import Experiment, JobNote
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep import launch
from spec_bench.jobs.sweep.confirm import confirming
from spec_bench.jobs.sweep.launch import JobError, place_in_sweep
from spec_bench.jobs.sweep.plan import PlannedCell, plan, print_plan
from spec_bench.jobs.sweep.sweep import decodes, end_sweep, says, seen
from spec_bench.metrics import check_references, check_score
from spec_bench.records import cell_folder
from spec_bench.records.types import CellResult
from spec_bench.settings.configs import conf_dir, experiments_dirs
from spec_bench.sinks.console import print_outcome
from spec_bench.sinks.rows import labels_of
from spec_bench.sinks.sink import LoggedCell, Sink, build_sinks
from spec_bench.system import files, signals
from spec_bench.vocabulary.decoders import load_decoder

log = logging.getLogger(__name__)
FULL_ERROR = "HYDRA_FULL_ERROR"
_wants_trace = os.environ.get(FULL_ERROR) == "1"
_statuses: list[int] = []  # of this process's jobs: Hydra hands no value back to main
_tables: dict[Path, tuple[Experiment, Sequence[Sink]]] = {}  # of a sweep in this process
_slow: set[Path] = set()  # those that take longer than this to make
_QUICK_S = 0.5
_planned: list[PlannedCell] = []  # with plan=true, of all jobs of the sweep
_MOST = 60  # rows that a sweep shows: more of them are to be read in its table
_in_main = False  # whether this is the user's process, and not one that a launcher started


def main() -> None:
    """Runs the application and exits with its status."""
    global _in_main
    _in_main = True
    _statuses.clear()
    _planned.clear()
    _tables.clear()
    try:
        sys.argv = compose.job_arguments(sys.argv)
    except ValueError as error:
        sys.exit(_complain(error))
    compose.register()
    launch.register_resolvers()
    launch.offer_devices()
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
        if not _wants_trace and compose.comes_from_hydra(error):
            _complain(ValueError(f"{one_line(error)} (in {' '.join(sys.argv[1:])})"))
            sys.exit(2)
        if _wants_trace or not launch.lost_worker(error):
            raise
        print(f"spec_bench: a worker was lost: {one_line(error)}", file=sys.stderr)
        print("the cells that had ended are kept; the same command resumes", file=sys.stderr)
        _statuses.append(1)
    sys.exit(max(_statuses, default=0))


def _job(config: DictConfig) -> int:
    """Returns one job; its status is kept for ``main``."""
    for chatty in compose.CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        if not _in_main:
            launch.enter_folder()
        asked = _asked(config)
        if asked.plan:
            words = tuple(HydraConfig.get().overrides.task)
            _planned.extend(replace(cell, words=words) for cell in plan(asked, *_configs()))
            return 0
        if not _in_main:
            launch.claim_gpus(with_own_name(asked.pair, launch.folders_here()), asked.engine)
            device = placed(asked.engine, asked.pair.target).device
            if place_in_sweep() == 0 and device == "cpu" and (why := launch.disturbing()):
                log.warning("%s", why)
            # Bars of several processes would overwrite each other.
            asked = replace(asked, sink=replace(asked.sink, progress=False))
        with seen(Path(asked.results), asked.name, here=_in_main):
            results = run(asked)
            failed = [result for result in results if result.status == "failed"]
            why = (
                f"{len(failed)} of {len(results)} cells failed: {failed[0].reason}"
                if failed
                else ""
            )
            says(line=why)
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
    if failed and not _in_main:
        raise JobError(1, why)
    _statuses.append(int(bool(failed)))
    return _statuses[-1]


def run_config(config: DictConfig) -> list[CellResult]:
    """Checks a composed config and runs its job; see ``run``."""
    return run(_asked(config))


def settings_of(config: DictConfig) -> JobSettings:
    """Returns a composed config's job, checked."""
    return build_settings(_asked(config), *_configs())


def run(asked: RunSettings) -> list[CellResult]:
    """Runs a job and hands the results to the sinks."""
    # The ids of a search's second stage, and of what is watched, hang on the hub's commits too.
    settings = build_settings(asked, *_configs()).pinned()
    task, examples = settings.task, (*settings.examples, *settings.fresh)
    for score in task.scores:
        check_score(score)
        check_references(score, [g for each in examples for g in each.references])
    first = processes.rank() == 0
    sinks = build_sinks(asked.sink, settings.results / asked.name) if first else []
    if asked.engine.device == AUTO and asked.pair.paper and settings.device == "cpu":
        log.warning("no GPU is seen: %s is decoded on the CPU", settings.pair.name)
    if asked.prompts and len(settings.examples) < asked.prompts:
        count = len(settings.examples)
        log.warning(
            "task %s has %d examples: prompts=%d takes all", task.name, count, asked.prompts
        )
    for why in settings.left_out:
        log.warning("left out: %s", why)
    results = run_stage(settings, sinks)
    if second := confirming(settings, results):
        results += run_stage(second, sinks)
    return results


def run_stage(settings: JobSettings, sinks: Sequence[Sink]) -> list[CellResult]:
    """Runs one job and hands its results over: the CSV always; table and sinks as configured."""
    log.info("%s, %s: %d cells", settings.pair.name, settings.task.name, len(settings.cells))
    experiment = Experiment(settings.results, settings.asked.name)
    if processes.rank() == 0:
        experiment.check_places()
    decodes(settings)
    with signals.raising(False):  # torch, late so that no refusal waits for it
        from spec_bench.jobs.job.job import run_job
    results = [
        result.at_stage(settings.stage)
        for result in run_job(settings, lambda state: says(state=state))
    ]
    if processes.rank():
        return results
    number, sink = place_in_sweep(), settings.asked.sink
    labels = json.dumps(labels_of(settings.facts(settings.cells[0])), sort_keys=True)
    note = JobNote(number or 0, labels, tuple(each.run_id for each in results), settings.stage)
    experiment.note(note)
    if sinks:
        stores = [CellStore(settings.results, result.run_id) for result in results]
        cells = [cell_folder.read_cell(each.folder).get("settings", {}) for each in stores]
        logged = [
            LoggedCell(result, config, tuple(store.load().values()), store.folder)
            for result, config, store in zip(results, cells, stores, strict=True)
        ]
        for each in sinks:
            each.take(logged, ())
    made = number is None
    if made:
        experiment.finish(sinks)
    elif _in_main:  # the jobs of a sweep that run here are all over before ``main`` is
        _tables[experiment.csv] = experiment, sinks
        began = monotonic()
        made = experiment.csv not in _slow and experiment.rebuild(wait=False)
        if monotonic() - began > _QUICK_S:
            _slow.add(experiment.csv)
    elif not experiment.csv.exists():  # readers find experiments by their tables
        experiment.rebuild(wait=False)
    if sink.table and (number is None or _in_main):  # last: there may be nobody who reads it
        last = _where_more_is(settings.results, settings.asked.name) if number is None else ""
        print_outcome(results, _answers(experiment.csv, results) if made else (), last)
    return results


def _answers(table: Path, results: Sequence[CellResult]) -> list[str]:
    from spec_bench.report.page.headline import sentences  # loads pandas

    return sentences(table, {each.run_id for each in results})


def _where_more_is(results: Path, name: str) -> str:
    """Returns the last lines of a job: its table, its page, the claims of the recipe's paper."""
    table = files.results_file(results, name)
    where = "" if str(results) == "results" else f" --results {results}"
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    papers = {path.name for top in experiments_dirs() for path in top.iterdir() if path.is_dir()}
    told = [f"all columns: {table}; its page: spec-bench page {name}{where}"]
    recipes = sorted(paper for paper in papers if choices.get(paper))
    told += [f"the paper's claims: spec-bench checks {paper}{where}" for paper in recipes]
    return "\n".join(told)


def _asked(config: DictConfig) -> RunSettings:
    """Returns the composed config, checked, before anything is read, loaded or written."""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    for group, choice in choices.items():
        if OmegaConf.is_list(choice) and group not in compose.LISTS:
            raise ValueError(f"{group} must be one choice, got {list(choice)}")
    return check_settings(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def _configs() -> tuple[DecoderLoader, list[Path]]:
    """Returns where decoders are read from, and pairs."""
    folders = launch.folders_here()
    return partial(load_decoder, folders), folders


def _finish_tables() -> None:
    """Completes the tables of a sweep's jobs."""
    try:
        while _tables:
            experiment, sinks = _tables.popitem()[1]
            experiment.finish(sinks)
        for results, name, ended in end_sweep():
            answers = _answers(files.results_file(results, name), ended) if ended else ()
            print_outcome(ended[:_MOST], answers, _where_more_is(results, name))
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
