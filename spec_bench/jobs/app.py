"""The Hydra application: a composed config in, result files and an exit status out.

Exit status: 0 all cells complete, 1 some cell or prompt failed, 2 invalid settings (explained in
one line, nothing was loaded or decoded), 130 interrupted. A rerun resumes.
"""

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
from spec_bench.jobs.config.compose import list_config_folders, parse_request
from spec_bench.jobs.config.config import RunSettings
from spec_bench.jobs.config.confirmation import build_confirmation_job
from spec_bench.jobs.config.flags import iter_paper_folders
from spec_bench.jobs.config.pair import require_models_exist
from spec_bench.jobs.config.settings import JobSettings, build_settings
from spec_bench.jobs.store.experiment import Experiment, JobRecord
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep import launch
from spec_bench.jobs.sweep.launch import get_sweep_job_number
from spec_bench.jobs.sweep.plan import Planner, print_plan
from spec_bench.jobs.sweep.sweep import Sweep, tracked_sweep_job
from spec_bench.jobs.sweep.watch import RunningJob
from spec_bench.metrics import CellRecords, check_references, needs_references, summarise
from spec_bench.metrics.quality import score_each_answer
from spec_bench.metrics.stalls import describe_disturbance
from spec_bench.records import cell_folder
from spec_bench.records.types import CellResult, Reason
from spec_bench.sinks.console import print_results
from spec_bench.sinks.sink import LoggedCell, Sink, build_sinks
from spec_bench.system import files, signals
from spec_bench.system.errors import UsageError, note_records_in_errors
from spec_bench.system.redaction import RedactedLogRecord

log = logging.getLogger(__name__)
RESUMES = "the same command resumes"


def main(options: Namespace) -> int:
    """Runs the application and returns its exit status."""
    sweep = Sweep()
    job = partial(_run_or_plan_composed_job, sweep=sweep)
    launch.export_gpu_environment()
    finish = partial(_finish_and_print_sweep, sweep)
    return run_application(
        job,
        "config",
        options,
        RESUMES,
        should_start_sweep=sweep.check_and_list_or_plan_jobs,
        finish=finish,
    )


def _run_or_plan_composed_job(config: DictConfig, sweep: Sweep | None) -> None:
    """Runs one job, or prints its plan, in the process of the ``sweep`` or (without it) in one that
    a launcher started.
    Raises JobError if not all cells are complete; in a launcher's process, other errors become
    JobErrors too.
    """
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    is_own_process = sweep is not None
    try:
        hydra = HydraConfig.get()
        os.chdir(hydra.runtime.cwd)  # the user's folder, whatever hydra.job.chdir says
        launcher = hydra.runtime.choices["hydra/launcher"]
        if hydra.mode != RunMode.MULTIRUN and launcher != "basic":
            raise UsageError(f"hydra/launcher={launcher} goes with -m: one job alone runs here")
        request = parse_request(config)
        if request.plan:
            return print_plan(Planner(list_config_folders()).plan_all_stages(request))
        if not is_own_process:
            logging.setLogRecordFactory(RedactedLogRecord)
            launch.claim_gpus_of_local_worker(request.pair, request.engine)
            # Bars of several processes would overwrite each other.
            request = replace(request, sink=replace(request.sink, progress=False))
        with (
            note_records_in_errors(Path(request.results), RESUMES),
            tracked_sweep_job(Path(request.results), request.name, sweep) as running_job,
        ):
            settings = build_pinned_settings(request)
            results = run_stages(settings, _build_first_process_sinks(request), running_job, sweep)
            incomplete = [result for result in results if result.status != "complete"]
            if incomplete:
                count = f"{len(incomplete)} of {len(results)}"
                line = f"{count} cells are not whole: {incomplete[0].reason}"
                running_job.write_note(line=line)
        if incomplete:
            raise JobError(1, "" if is_own_process else line)
    except Exception as error:
        if is_own_process or (job_error := to_job_error(error, RESUMES)) is None:
            raise
        raise job_error from error  # can be pickled, which other errors may not


def run_config(config: DictConfig) -> list[CellResult]:
    """Checks a composed config and runs its job; see ``run_stages``."""
    request = parse_request(config)
    return run_stages(build_pinned_settings(request), _build_first_process_sinks(request))


def build_unpinned_settings(config: DictConfig) -> JobSettings:
    """Builds and checks a composed config's job, without pinning its models to commits."""
    return build_settings(parse_request(config), list_config_folders())


def _build_first_process_sinks(request: RunSettings) -> Sequence[Sink]:
    """Builds the sinks of a job's results in its first process, which writes; () in other
    processes.
    """
    if processes.process_rank():
        return ()
    return build_sinks(request.sink, Path(request.results) / request.name)


def build_pinned_settings(request: RunSettings) -> JobSettings:
    """Builds a job's settings at the hub's current commits, and logs warnings about them. Raises
    UsageError if they are invalid.
    """
    require_models_exist(request.pair, request.engine.is_served)
    # Run ids depend on the hub's commits, also in a search's second stage and in the job's note.
    settings = build_settings(request, list_config_folders()).pin_revisions_and_stop_rule()
    task = settings.task
    examples = (*settings.examples, *settings.confirmation_examples)
    for score in task.scores:
        reference_need = needs_references(score)
        if reference_need and (
            warning_text := settings.describe_missing_references(
                score, may_be_empty=reference_need == "field"
            )
        ):
            log.warning(warning_text)
        references = [
            references for example in examples for references in example.references if references
        ]
        check_references(score, references, task.tokenize)
    field = getattr(task, "reference", None)  # jsonl's default may be missing
    if field not in (None, "reference") and not any(
        any(example.references) for example in examples
    ):
        log.warning("no row has an answer in task.reference=%s", field)
    if request.engine.device == AUTO and request.pair.paper and settings.device == "cpu":
        log.warning("no GPU is seen: %s is decoded on the CPU", settings.pair.name)
    if request.prompts and len(settings.examples) < request.prompts:
        count = len(settings.examples)
        log.warning("prompts=%d takes all %d of task %s", request.prompts, count, task.name)
    if settings.text_depends_on_batch:
        log.warning(
            "%s in batches of %d: a text may differ from that of other batches, by rounding",
            settings.pair.specs[0].dtype,
            settings.engine.batch_size,
        )
    for reason in settings.left_out_reasons:
        log.warning("left out: %s", reason)
    return settings


def run_stages(
    settings: JobSettings,
    sinks: Sequence[Sink] = (),
    running_job: RunningJob | None = None,
    sweep: Sweep | None = None,
) -> list[CellResult]:
    """Runs a job, and the second stage of a search; writes its state to its note, and the results
    to the CSV, the table and the sinks as configured. Returns the results of all stages.
    """
    running_job = running_job or RunningJob()
    is_first = processes.process_rank() == 0
    experiment = Experiment(settings.results_folder, settings.request.name)
    results = list[CellResult]()
    stage: JobSettings | None = settings
    while stage is not None:
        log.info("%s, %s: %d cells", stage.pair.name, stage.task.name, len(stage.cells))
        if is_first:
            experiment.require_writable_tables()
        run_ids = dict.fromkeys(
            (*running_job.snapshot.cells, *map(stage.compute_run_id, stage.cells))
        )
        running_job.write_note(
            cells=tuple(run_ids), prompts=len(stage.examples) * stage.request.repeats
        )
        with signals.signals_as_interrupts(False):  # torch; late, so that refusals are fast
            from spec_bench.jobs.job.job import run_job
        stage_results = [
            result.with_stage(stage.stage)
            for result in run_job(stage, lambda state: running_job.write_note(state=state))
        ]
        if is_first:
            _write_and_publish_results(stage, stage_results, experiment, sinks, sweep)
        results += stage_results
        stage = build_confirmation_job(stage, stage_results)
    return results


def _write_and_publish_results(
    settings: JobSettings,
    results: Sequence[CellResult],
    experiment: Experiment,
    sinks: Sequence[Sink],
    sweep: Sweep | None,
) -> None:
    """Records a finished stage, and gives its results to tables, sinks and the user."""
    number = get_sweep_job_number()
    sink = settings.request.sink
    run_ids = tuple(result.run_id for result in results)
    experiment.write_job_record(JobRecord(number or 0, run_ids, settings.stage))
    if sinks:
        stores = [CellStore(settings.results_folder, result.run_id) for result in results]
        logged_cells = [_read_logged_cell(*cell) for cell in zip(results, stores, strict=True)]
        for log_sink in sinks:
            log_sink.take(logged_cells, ())
    is_complete = False
    if number is None:
        # If several processes finish at once, one of them makes the tables.
        is_complete = experiment.rebuild_and_publish(sinks, wait_s=1)
    elif sweep is not None:
        is_complete = sweep.rebuild_tables_if_quick(experiment)
    if sink.table and (number is None or sweep is not None):
        # Last, because standard output may be closed.
        next_steps = (
            _format_next_commands(settings.results_folder, settings.request.name)
            if number is None
            else ""
        )
        print_results(
            results,
            _recommend_from_table(experiment.csv, results) if is_complete else (),
            next_steps,
        )


def _read_logged_cell(result: CellResult, store: CellStore) -> LoggedCell:
    """Reads a finished cell for the sinks."""
    cell = cell_folder.read_cell_json(store.folder)
    scores = cell.get("scores") or {}
    return LoggedCell(
        result,
        cell.get("settings", {}),
        tuple(store.load_first_repeat().values()),
        store.folder,
        origin=(cell.get("starts") or [{}])[-1],
        scores={name: score_each_answer(name, by_prompt) for name, by_prompt in scores.items()},
    )


def iter_partial_results(settings: JobSettings) -> Iterator[CellResult]:
    """Yields each cell's results of an interrupted job so far, on the prompts that plain decoding
    has also answered; no numbers if there are no such prompts.
    """
    from spec_bench.jobs.job.session import index_timings  # torch

    stores = [
        CellStore(settings.results_folder, settings.compute_run_id(cell)) for cell in settings.cells
    ]
    baseline_timings = index_timings(
        [*stores[0].load_retimed(), *stores[0].load_first_repeat().values()]
    )
    for cell, store in zip(settings.cells, stores, strict=True):
        timings = index_timings(store.load_first_repeat().values())
        keys = [key for key in timings if key in baseline_timings]
        records = CellRecords(
            [timings[key] for key in keys], [baseline_timings[key] for key in keys]
        )
        numbers = summarise(records, ends=False).row if keys else {}
        disturbance_text = describe_disturbance(records, 1.0)
        reasons = (Reason("speedup", disturbance_text),) * bool(disturbance_text)
        facts = settings.build_facts(cell)
        # complete for the prompts so far
        yield CellResult(store.folder.name, facts, "complete", None, reasons, numbers)


def _recommend_from_table(table: Path, results: Sequence[CellResult]) -> list[str]:
    from spec_bench.report.page.headline import list_headline_sentences  # loads pandas

    return list_headline_sentences(table, {result.run_id for result in results})


def _format_next_commands(results: Path, name: str) -> str:
    """Formats the last lines of a job: the path of its table, and the commands for its page and for
    the claims of the recipe's paper.
    """
    table = files.get_results_file(results, name)
    if not table.is_file():
        return ""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    recipes = sorted(path.name for path in iter_paper_folders() if choices.get(path.name))
    commands = [
        ("its page", "page", name),
        *(("the paper's claims", "check", "claims", p) for p in recipes),
    ]
    lines = (
        f"{purpose}: {files.format_own_command(*words, results=results)}"
        for purpose, *words in commands
    )
    return "\n".join([f"all columns: {table}", *lines])


def _finish_and_print_sweep(sweep: Sweep) -> None:
    """Finishes the sweep's experiments, and prints their results and next commands."""
    for results, name, finished_results in sweep.finish_and_print_experiments():
        answers = (
            _recommend_from_table(files.get_results_file(results, name), finished_results)
            if finished_results
            else ()
        )
        shown_results = () if sweep.has_run_here else finished_results  # each job printed its own
        print_results(shown_results, answers, _format_next_commands(results, name))
