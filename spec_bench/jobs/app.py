"""The Hydra application: a composed config in, result files and an exit status out.

Exit status: 0 all cells complete, 1 some cell or prompt failed, 2 the settings cannot be right (one
line says why, nothing was loaded or decoded), 130 interrupted; a rerun resumes.
"""

import json
import logging
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from spec_bench.core import processes
from spec_bench.engine.model_spec import AUTO
from spec_bench.jobs.config.application import (
    CHATTY,
    JobError,
    run_application,
    to_job_error,
)
from spec_bench.jobs.config.compose import config_folders, parse_request
from spec_bench.jobs.config.config import RunSettings
from spec_bench.jobs.config.flags import papers
from spec_bench.jobs.config.pair import check_models_exist
from spec_bench.jobs.config.settings import JobSettings, build_settings, confirmation_job
from spec_bench.jobs.store.experiment import Experiment, JobRecord
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep import launch
from spec_bench.jobs.sweep.launch import sweep_index
from spec_bench.jobs.sweep.plan import Planner, print_plan
from spec_bench.jobs.sweep.sweep import Sweep, publish_state
from spec_bench.jobs.sweep.watch import RunningJob
from spec_bench.metrics import CellRecords, check_references, needs_references, summarise
from spec_bench.metrics.efficiency import disturbance_note
from spec_bench.metrics.quality import score_alone
from spec_bench.records import cell_folder
from spec_bench.records.types import CellResult, Reason
from spec_bench.sinks.console import print_results
from spec_bench.sinks.rows import flatten_facts
from spec_bench.sinks.sink import LoggedCell, Sink, build_sinks
from spec_bench.system import files, signals
from spec_bench.system.errors import UsageError, note_records_in_errors
from spec_bench.system.redaction import RedactedRecord

log = logging.getLogger(__name__)
RESUMES = "the same command resumes"


def main(request: Namespace) -> int:
    """Runs the application; returns its status."""
    sweep = Sweep.mine = Sweep()
    launch.publish_devices()
    finish = partial(_finish_sweep, sweep)
    return run_application(_job, "config", request, RESUMES, begin=sweep.begin, finish=finish)


def _job(config: DictConfig) -> None:
    """Runs one job. Raises JobError: it did not end well, in a launcher's process."""
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    here = Sweep.mine is not None  # and not in a process that a launcher started
    try:
        hydra = HydraConfig.get()
        os.chdir(hydra.runtime.cwd)  # the user's folder, whatever hydra.job.chdir says
        launcher = hydra.runtime.choices["hydra/launcher"]
        if hydra.mode != RunMode.MULTIRUN and launcher != "basic":
            raise UsageError(f"hydra/launcher={launcher} goes with -m: one job alone runs here")
        asked = parse_request(config)
        if asked.plan:
            return print_plan(Planner(config_folders()).plan(asked))
        if not here:
            logging.setLogRecordFactory(RedactedRecord)
            launch.claim_gpus(asked.pair, asked.engine)
            # Bars of several processes would overwrite each other.
            asked = replace(asked, sink=replace(asked.sink, progress=False))
        with (
            note_records_in_errors(Path(asked.results), RESUMES),
            publish_state(Path(asked.results), asked.name) as running,
        ):
            results = run(asked, running)
            failed = [result for result in results if result.status != "complete"]
            if failed:
                line = f"{len(failed)} of {len(results)} cells are not whole: {failed[0].reason}"
                running.say(line=line)
        if failed:
            raise JobError(1, "" if here else line)
    except Exception as error:
        if here or (told := to_job_error(error, RESUMES)) is None:
            raise
        raise told from error  # which travels, as another may not


def run_config(config: DictConfig) -> list[CellResult]:
    """Checks a composed config and runs its job; see ``run``."""
    return run(parse_request(config))


def build_job_settings(config: DictConfig) -> JobSettings:
    """Returns a composed config's job, checked."""
    return build_settings(parse_request(config), config_folders())


def run(asked: RunSettings, running: RunningJob | None = None) -> list[CellResult]:
    """Runs a job, which tells those who watch how far it is, and hands the results to the sinks."""
    check_models_exist(asked.pair, asked.engine.served)
    # The ids of a search's second stage, and of what is watched, hang on the hub's commits too.
    settings = build_settings(asked, config_folders()).pin_revisions()
    task = settings.task
    examples = (*settings.examples, *settings.fresh)
    for score in task.scores:
        needed = needs_references(score)
        if needed and (told := settings.check_references(score, empty=needed == "field")):
            log.warning(told)
        golds = [golds for each in examples for golds in each.references if golds]
        check_references(score, golds, task.tokenize)
    field = getattr(task, "reference", None)  # jsonl's own name for it need not be there
    if field not in (None, "reference") and not any(any(each.references) for each in examples):
        log.warning("no row has an answer in task.reference=%s", field)
    first = processes.rank() == 0
    sinks = build_sinks(asked.sink, settings.results / asked.name) if first else []
    if asked.engine.device == AUTO and asked.pair.paper and settings.device == "cpu":
        log.warning("no GPU is seen: %s is decoded on the CPU", settings.pair.name)
    if asked.prompts and len(settings.examples) < asked.prompts:
        count = len(settings.examples)
        log.warning("prompts=%d takes all %d of task %s", asked.prompts, count, task.name)
    if settings.rounds_by_batch:
        log.warning(
            "%s in batches of %d: a text may differ from that of other batches, by rounding",
            *(settings.pair.specs[0].dtype, settings.engine.batch_size),
        )
    for why in settings.left_out:
        log.warning("left out: %s", why)
    results = run_stage(settings, sinks, running)
    if second := confirmation_job(settings, results):
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
    with signals.raise_on_signals(False):  # torch, late so that no refusal waits for it
        from spec_bench.jobs.job.job import run_job
    results = [
        result.replace_stage(settings.stage)
        for result in run_job(settings, lambda state: running.say(state=state))
    ]
    if processes.rank():
        return results
    number = sweep_index()
    sink = settings.asked.sink
    labels = json.dumps(flatten_facts(settings.facts(settings.cells[0])), sort_keys=True)
    note = JobRecord(number or 0, labels, tuple(each.run_id for each in results), settings.stage)
    experiment.note(note)
    if sinks:
        stores = [CellStore(settings.results, result.run_id) for result in results]
        logged = [_logged(*cell) for cell in zip(results, stores, strict=True)]
        for each in sinks:
            each.take(logged, ())
    made = False
    if number is None:
        made = experiment.finish(sinks, wait_s=1)  # of many processes at once one makes the tables
    elif Sweep.mine:
        made = Sweep.mine.rebuild(experiment)
    if sink.table and (number is None or Sweep.mine):  # last: there may be nobody who reads it
        last = _next_steps(settings.results, settings.asked.name) if number is None else ""
        print_results(results, _recommendations(experiment.csv, results) if made else (), last)
    return results


def _logged(result: CellResult, store: CellStore) -> LoggedCell:
    """Reads what there is to log of a finished cell."""
    cell = cell_folder.read_cell(store.folder)
    scores = cell.get("scores") or {}
    return LoggedCell(
        result,
        cell.get("settings", {}),
        tuple(store.load().values()),
        store.folder,
        origin=(cell.get("starts") or [{}])[-1],
        scores={name: score_alone(name, by_prompt) for name, by_prompt in scores.items()},
    )


def read_so_far(settings: JobSettings) -> Iterator[CellResult]:
    """Yields what a job that was interrupted has measured, of each cell on the prompts that plain
    decoding has answered beside it; no numbers where there are none yet.
    """
    from spec_bench.jobs.job.session import index_timings  # torch

    stores = [CellStore(settings.results, settings.run_id(cell)) for cell in settings.cells]
    plain = index_timings([*stores[0].load_retimed(), *stores[0].load().values()])
    for cell, store in zip(settings.cells, stores, strict=True):
        ours = index_timings(store.load().values())
        keys = [key for key in ours if key in plain]
        both = CellRecords([ours[key] for key in keys], [plain[key] for key in keys])
        numbers = summarise(both, ends=False).row if keys else {}
        doubt = disturbance_note(both, 1.0)
        why = (Reason("speedup", doubt),) * bool(doubt)
        facts = settings.facts(cell)
        # of the prompts so far it is whole
        yield CellResult(store.folder.name, facts, "complete", None, why, numbers)


def _recommendations(table: Path, results: Sequence[CellResult]) -> list[str]:
    from spec_bench.report.page.headline import sentences  # loads pandas

    return sentences(table, {each.run_id for each in results})


def _next_steps(results: Path, name: str) -> str:
    """Returns the last lines of a job: its table, its page, the claims of the recipe's paper."""
    table = files.results_file(results, name)
    if not table.is_file():
        return ""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    recipes = sorted(path.name for path in papers() if choices.get(path.name))
    asked = [
        ("its page", "page", name),
        *(("the paper's claims", "check", "claims", p) for p in recipes),
    ]
    told = (f"{what}: {files.command_line(*words, results=results)}" for what, *words in asked)
    return "\n".join([f"all columns: {table}", *told])


def _finish_sweep(sweep: Sweep) -> None:
    for results, name, ended in sweep.end():
        answers = _recommendations(files.results_file(results, name), ended) if ended else ()
        shown = () if sweep.ran_here else ended  # each job showed its own
        print_results(shown, answers, _next_steps(results, name))
