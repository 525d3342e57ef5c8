"""One job: shared models, every cell's records on disk as they come, and its results collected.

``turns`` says how the cells take turns. The baseline is among the cells even if it was
complete before (``work.pairing``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter

from spec_bench.decode.config import AnyDecoder
from spec_bench.engine import processes
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.identity import run_id
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.turns import batches, decode_in_turn
from spec_bench.jobs.rows.collect import collect
from spec_bench.jobs.rows.gaps import look_at_nodes
from spec_bench.jobs.store.store import CellStore, FollowerStore
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.metering import Metering, ordinals
from spec_bench.jobs.work.models import (
    heads_of,
    models_of,
    ran_with,
    tokenizer_of,
    warn_of_misreading,
)
from spec_bench.jobs.work.pairing import Timings, timings_of, unpaired
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.jobs.work.threads import use_threads
from spec_bench.judge.cells import judge_folders
from spec_bench.judge.conversation import ANSWERS
from spec_bench.measure.machine import Machine
from spec_bench.measure.memory import PeakMemory
from spec_bench.measure.provenance import provenance
from spec_bench.records.types import CellResult, Request
from spec_bench.system import files
from spec_bench.tasks import Task

log = logging.getLogger(__name__)
_WARMUP_TOKENS = 4  # an iteration or a few
_CAPTURE_TOKENS = 16  # enough for every kind of forward pass to have been captured


def run_job(settings: JobSettings) -> list[CellResult]:
    """Runs what is not yet complete and collects all of the job's cells.

    Args:
        settings: checked settings.

    Returns:
        One result per cell, the baseline first.

    Raises:
        ValueError: models or prompts that cannot work together, before any decoding.
    """
    settings = settings.pinned()
    with ExitStack() as locks:
        runs = open_cells(settings, locks)
        pending = [run for run in runs if not run.store.complete(settings.repeats)]
        if pending:
            metering = locks.enter_context(Metering(settings))
            machine = locks.enter_context(Machine(settings.device, ordinals(settings)))
            tokenizer, tokens = tokenizer_of(settings.pair)
            prompts = Prompts.build(settings, tokenizer)
            models = models_of(settings.pair, tokens)
            use_threads(settings, models[0])
            baseline = runs[0]
            if processes.rank() == 0:
                for run in [baseline, *(each for each in pending if each is not baseline)]:
                    run.done = run.store.mend_tokens(models[0].vocab_size)
            against = timings_of(baseline)
            active = with_baseline(settings, baseline, pending, against, prompts.requests)
            describe(settings, pending)
            start = perf_counter()
            _prepare(settings, active, models, prompts.requests)
            prepared = perf_counter()
            processes.wait_for_all()  # none writes before all have read
            decode_in_turn(settings, active, baseline, against, prompts, metering, machine)
            _weigh_capture(settings, prepared - start, perf_counter() - prepared)
            look_at_nodes(settings, pending, prompts)
            if processes.rank() == 0:
                ran = ran_with(settings, models[0], tokenizer)
                collect(settings, runs, pending, against, prompts, metering, ran)
        if processes.rank() == 0:
            judge(settings, runs)
        processes.wait_for_all()
        results = [run.store.result() for run in runs]
    return [result for result in results if result is not None]


def open_cells(settings: JobSettings, locks: ExitStack) -> list[CellRun]:
    """The job's cells with their stores locked, always in the same order against deadlock."""
    runs = []
    kind = FollowerStore if processes.rank() else CellStore
    for cell in settings.cells:
        store = kind(settings.results, run_id(settings.cell_settings(cell)))
        runs.append(CellRun(cell, store, PeakMemory(settings.device)))
    for run in sorted(runs, key=lambda run: run.store.folder.name):
        run.store.lock()
        locks.callback(run.store.unlock)
    for run in runs:
        if processes.rank() == 0:
            run.done = run.store.mend(settings.cell_settings(run.cell))
    processes.wait_for_all()  # none reads before bad files are set aside
    for run in runs:
        if processes.rank():
            run.done = run.store.load_repeats()
        if run.store.complete(settings.repeats):
            log.info("%s is complete: %s", run.cell.title, run.store.folder)
    return runs


def with_baseline(
    settings: JobSettings,
    baseline: CellRun | None,
    pending: Sequence[CellRun],
    against: Timings,
    requests: Sequence[Request],
) -> list[CellRun]:
    """The cells to work on; the baseline among them where one of them decodes anything."""
    if baseline is None:
        return list(pending)
    cells = [run for run in pending if run is not baseline]
    for run in cells:
        run.unpaired = unpaired(run.done, against)
    decoding = any(run.lacking(requests, each) for run in cells for each in range(settings.repeats))
    return [baseline, *cells] if decoding or baseline in pending else cells


def describe(settings: JobSettings, runs: Sequence[CellRun]) -> None:
    """Writes what each cell is and where it runs."""
    origin = provenance()
    for run in runs:
        run.store.describe(settings.cell_settings(run.cell), origin)


def _prepare(
    settings: JobSettings,
    runs: Sequence[CellRun],
    models: Sequence[LanguageModel],
    requests: Sequence[Request],
) -> None:
    """Builds each cell's decoder, checks that every prompt fits, allocates, warms up."""
    target, drafts, pool = models[0], models[1:], CachePool()
    for run in runs:
        try:
            run.decoder = run.cell.config.build(
                target,
                drafts[: run.cell.drafts],
                settings.sampling,
                settings.batch_size,
                pool,
                heads_of(settings.pair, run.cell.heads, target),
            )
            if requests:
                warn_of_misreading(run.decoder, requests[0].prompt_ids)
        except Exception as error:
            run.fail(error)
            continue
        run.decoder.preflight(requests)
    repeats = range(settings.repeats)
    decoding = any(run.missing(requests, repeat) for run in runs for repeat in repeats)
    needed = [
        run
        for run in runs
        if (run.cell.name == BASELINE and decoding)  # it is timed beside whatever is decoded
        or any(run.missing(requests, each) for each in repeats)
    ]
    # All make room before any warms up: what is made to run over a cache is lost when it grows.
    for step in (_make_room, _warm_up):
        for run in needed:
            if run.decoder:
                try:
                    step(settings, run.decoder, requests)
                except Exception as error:
                    run.fail(error)
    pool.prepare(settings.batch_size)


def _make_room(settings: JobSettings, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Allocates for the longest request."""
    decoder.reserve(
        max(decoder.slots_needed(len(r.prompt_ids), r.max_new_tokens) for r in requests)
    )


def _warm_up(settings: JobSettings, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Decodes a few tokens that nothing records."""
    captured = settings.pair.specs[0].compile != "none"
    most = _CAPTURE_TOKENS if captured else _WARMUP_TOKENS
    for batch in list(batches(requests, settings.batch_size))[: settings.warmup]:
        short = [replace(r, max_new_tokens=min(r.max_new_tokens, most)) for r in batch]
        decoder.generate(short, settings.seed)


def _weigh_capture(settings: JobSettings, preparing: float, decoding: float) -> None:
    """Says so if capturing the passes took more seconds than all decoding with them."""
    how = settings.pair.specs[0].compile
    if how != "none" and preparing > decoding:
        log.warning(
            "engine.compile=%s took %.0f s before the first prompt, the prompts %.0f s: "
            "a job of this size is done sooner with engine.compile=none",
            *(how, preparing, decoding),
        )


def judge(settings: JobSettings, runs: Sequence[CellRun]) -> None:
    """Gets the answers of a judged task graded; what was asked before is not asked again."""
    if settings.judge.model is None or not isinstance(settings.task, Task):
        return
    folders = [run.store.folder for run in runs if (run.store.folder / ANSWERS).exists()]
    if settings.task.judged and folders:
        judge_folders(folders, settings.judge, files.judgements_folder(settings.results))
