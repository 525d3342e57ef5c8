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
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from spec_bench.core import processes
from spec_bench.engine.model_spec import AUTO
from spec_bench.jobs.config import compose
from spec_bench.jobs.config.compose import asked_of, one_line
from spec_bench.jobs.config.config import RunSettings
from spec_bench.jobs.config.pair import placed, with_own_name
from spec_bench.jobs.config.settings import JobSettings, build_settings
from spec_bench.jobs.store.experiment import Experiment, JobNote
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep import launch
from spec_bench.jobs.sweep.confirm import confirming
from spec_bench.jobs.sweep.launch import JobError, place_in_sweep
from spec_bench.jobs.sweep.plan import Planner, print_plan
from spec_bench.jobs.sweep.sweep import Sweep, seen
from spec_bench.jobs.sweep.watch import RunningJob
from spec_bench.metrics import check_references, check_score
from spec_bench.records import cell_folder
from spec_bench.records.types import CellResult
from spec_bench.settings.configs import conf_dir, experiments_dirs
from spec_bench.sinks.console import print_outcome
from spec_bench.sinks.rows import labels_of
from spec_bench.sinks.sink import LoggedCell, Sink, build_sinks
from spec_bench.system import files, signals

log = logging.getLogger(__name__)
FULL_ERROR = "HYDRA_FULL_ERROR"
_wants_trace = os.environ.get(FULL_ERROR) == "1"
_MOST = 60  # rows that a sweep shows: more of them are to be read in its table


def main() -> None:
    """Runs the application and exits with its status."""
    sweep = Sweep.mine = Sweep()
    try:
        sys.argv = compose.job_arguments(sys.argv)
    except ValueError as error:
        sys.exit(_complain(2, one_line(error)))
    compose.register()
    launch.register_resolvers()
    launch.offer_devices()
    # Hydra would print its errors over several lines and exit with 1; we want them raised.
    os.environ[FULL_ERROR] = "1"
    status = 0
    application = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    try:
        with signals.raising():
            try:
                application(_job)()
            finally:
                status = _finish(sweep)
    except (HydraException, OmegaConfBaseException) as error:
        if _wants_trace:
            raise
        status = _complain(2, one_line(error))
    except JobError as error:
        status = _complain(error.status, error.message)
    except KeyboardInterrupt:
        if not signals.came():
            print("interrupted; the same command resumes", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if signals.came():  # turned the interrupt into another error
            sys.exit(130)
        if _wants_trace:
            raise
        if compose.comes_from_hydra(error):
            status = _complain(2, f"{one_line(error)} (in {' '.join(sys.argv[1:])})")
        elif launch.lost_worker(error):
            kept = "the cells that had ended are kept; the same command resumes"
            status = _complain(1, f"a worker was lost: {one_line(error)}\n{kept}")
        else:
            raise
    sys.exit(status)


def _job(config: DictConfig) -> None:
    """Runs one job. Raises JobError: it did not end well."""
    for chatty in compose.CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    here = Sweep.mine is not None  # and not in a process that a launcher started
    try:
        if not here:
            launch.enter_folder()
        asked = asked_of(config)
        if asked.plan:
            return print_plan(Planner(launch.folders_here()).plan(asked))
        if not here:
            launch.claim_gpus(with_own_name(asked.pair, launch.folders_here()), asked.engine)
            device = placed(asked.engine, asked.pair.target).device
            if place_in_sweep() == 0 and device == "cpu" and (why := launch.disturbing()):
                log.warning("%s", why)
            # Bars of several processes would overwrite each other.
            asked = replace(asked, sink=replace(asked.sink, progress=False))
        with seen(Path(asked.results), asked.name) as running:
            results = run(asked, running)
            failed = [result for result in results if result.status == "failed"]
            if failed:
                why = f"{len(failed)} of {len(results)} cells failed: {failed[0].reason}"
                running.say(line=why)
    except OSError as error:
        if (here and _wants_trace) or (refused := files.refused(error)) is None:
            raise
        kept = "what was decoded is kept, the same command resumes"
        raise JobError(1, f"{refused}; {kept}") from error
    except (ValueError, OmegaConfBaseException) as error:
        if here and _wants_trace:
            raise
        raise JobError(2, one_line(error)) from error
    if failed:
        raise JobError(1, "" if here else running.state.line)


def run_config(config: DictConfig) -> list[CellResult]:
    """Checks a composed config and runs its job; see ``run``."""
    return run(asked_of(config))


def settings_of(config: DictConfig) -> JobSettings:
    """Returns a composed config's job, checked."""
    return build_settings(asked_of(config), launch.folders_here())


def run(asked: RunSettings, running: RunningJob | None = None) -> list[CellResult]:
    """Runs a job, which tells those who watch how far it is, and hands the results to the sinks."""
    # The ids of a search's second stage, and of what is watched, hang on the hub's commits too.
    settings = build_settings(asked, launch.folders_here()).pinned()
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
    results = run_stage(settings, sinks, running)
    if second := confirming(settings, results):
        results += run_stage(second, sinks, running)
    return results


def run_stage(
    settings: JobSettings, sinks: Sequence[Sink], running: RunningJob | None = None
) -> list[CellResult]:
    """Runs one job and hands its results over: the CSV always; table and sinks as configured."""
    log.info("%s, %s: %d cells", settings.pair.name, settings.task.name, len(settings.cells))
    experiment = Experiment(settings.results, settings.asked.name)
    if processes.rank() == 0:
        experiment.check_places()
    running = running or RunningJob()
    both = dict.fromkeys((*running.state.cells, *map(settings.run_id, settings.cells)))
    running.say(cells=tuple(both), prompts=len(settings.examples) * settings.asked.repeats)
    with signals.raising(False):  # torch, late so that no refusal waits for it
        from spec_bench.jobs.job.job import run_job
    results = [
        result.at_stage(settings.stage)
        for result in run_job(settings, lambda state: running.say(state=state))
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
    elif Sweep.mine:
        made = Sweep.mine.rebuild(experiment)
    elif not experiment.csv.exists():  # readers find experiments by their tables
        experiment.rebuild(wait=False)
    if sink.table and (number is None or Sweep.mine):  # last: there may be nobody who reads it
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


def _finish(sweep: Sweep) -> int:
    """Completes the tables of a sweep's jobs; returns 1 where a disk takes no more."""
    try:
        for results, name, ended in sweep.end():
            answers = _answers(files.results_file(results, name), ended) if ended else ()
            print_outcome(ended[:_MOST], answers, _where_more_is(results, name))
    except OSError as error:
        if _wants_trace or (refused := files.refused(error)) is None:
            raise
        return _complain(1, f"{refused}; the same command resumes")
    return 0


def _complain(status: int, line: str) -> int:
    """Says what was wrong, if a table does not, and returns the status."""
    if line:
        print(f"spec_bench: {line}", file=sys.stderr)
    return status
