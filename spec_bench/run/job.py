"""One job: shared models, interleaved prompts, every cell's records on disk as they come.

For each batch of prompts every cell decodes it before the next batch starts, and the order of the
cells rotates, so that drift of the machine hits all alike and no decoder always goes first. With
repeats the job goes over all prompts again, so that the repeats of a prompt lie apart in time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from spec_bench import files
from spec_bench.decode.config import AnyDecoder, build_decoder
from spec_bench.engine import processes
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.judge.cells import judge_folders
from spec_bench.judge.conversation import ANSWERS
from spec_bench.measure.machine import Machine
from spec_bench.measure.memory import PeakMemory
from spec_bench.measure.provenance import provenance
from spec_bench.records import CellResult, Generation, Request
from spec_bench.run.collect import collect
from spec_bench.run.metering import Metering, ordinals
from spec_bench.run.models import heads_of, models_of, ran_with, tokenizer_of
from spec_bench.run.prompts import Prompts
from spec_bench.run.settings import JobSettings
from spec_bench.run.store import CellRun, CellStore, FollowerStore, run_id
from spec_bench.sinks.console import Progress
from spec_bench.tasks import Task

log = logging.getLogger(__name__)
_QUEUE = 4  # batches' worth of prompts in the queue of a continuous batch
_WARMUP_TOKENS = 4  # an iteration or a few
_CAPTURE_TOKENS = 16  # enough for every kind of forward pass to have been captured


def run_job(settings: JobSettings) -> list[CellResult]:
    """Runs what is not yet complete and collects all of the job's cells.

    Args:
        settings: checked settings.

    Returns:
        One result a cell, the baseline first.

    Raises:
        ValueError: models or prompts that cannot work together, before any decoding.
    """
    settings = settings.pinned()
    with ExitStack() as locks:
        runs = _open(settings, locks)
        pending = [run for run in runs if not run.store.complete(settings.repeats)]
        if pending:
            if settings.threads is not None:
                torch.set_num_threads(settings.threads)
            metering = locks.enter_context(Metering(settings))
            machine = locks.enter_context(Machine(settings.device, ordinals(settings)))
            tokenizer, tokens = tokenizer_of(settings.pair)
            prompts = Prompts.build(settings, tokenizer)
            models = models_of(settings.pair, tokens)
            if processes.rank() == 0:
                for run in pending:
                    run.done = run.store.mend_tokens(models[0].vocab_size)
            _describe(settings, pending)
            _prepare(settings, pending, models, prompts.requests)
            processes.wait_for_all()  # none writes before all have read what there is
            _decode(settings, pending, prompts, metering, machine)
            if processes.rank() == 0:
                ran = ran_with(settings, models[0], tokenizer)
                collect(settings, runs, pending, prompts, metering, ran)
        if processes.rank() == 0:
            _judge(settings, runs)
        processes.wait_for_all()
        results = [run.store.result() for run in runs]
    return [result for result in results if result is not None]


def _open(settings: JobSettings, locks: ExitStack) -> list[CellRun]:
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
    processes.wait_for_all()  # none reads before what is no good is out of the way
    for run in runs:
        if processes.rank():
            run.done = run.store.load_repeats()
        if run.store.complete(settings.repeats):
            log.info("%s is complete: %s", run.cell.title, run.store.folder)
    return runs


def _describe(settings: JobSettings, runs: Sequence[CellRun]) -> None:
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
            run.decoder = build_decoder(
                run.cell.decoder,
                target,
                drafts[: run.cell.drafts],
                settings.sampling,
                settings.batch_size,
                pool,
                heads_of(settings.pair, run.cell.heads, target),
            )
        except Exception as error:
            run.fail(error)
            continue
        run.decoder.preflight(requests)
    for run in runs:
        if any(run.missing(requests, repeat) for repeat in range(settings.repeats)):
            assert run.decoder is not None
            try:
                _warm_up(settings, run.decoder, requests)
            except Exception as error:
                run.fail(error)


def _warm_up(settings: JobSettings, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Allocates for the longest request and decodes a few tokens that nothing records."""
    decoder.reserve(
        max(decoder.slots_needed(len(r.prompt_ids), r.max_new_tokens) for r in requests)
    )
    captured = settings.pair.specs[0].compile != "none"
    most = _CAPTURE_TOKENS if captured else _WARMUP_TOKENS
    for batch in list(_batches(requests, settings.batch_size))[: settings.warmup]:
        short = [replace(r, max_new_tokens=min(r.max_new_tokens, most)) for r in batch]
        decoder.generate(short, settings.seed)


def _judge(settings: JobSettings, runs: Sequence[CellRun]) -> None:
    """Has the answers of a judged task graded; what was asked before is not asked again."""
    if settings.judge.model is None or not isinstance(settings.task, Task):
        return
    folders = [run.store.folder for run in runs if (run.store.folder / ANSWERS).exists()]
    if settings.task.judged and folders:
        judge_folders(folders, settings.judge, files.judgements_folder(settings.results))


def _decode(
    settings: JobSettings,
    runs: Sequence[CellRun],
    prompts: Prompts,
    metering: Metering,
    machine: Machine,
) -> None:
    """Interleaves the cells prompt by prompt; a cell that fails leaves the others going."""
    repeats = range(settings.repeats)
    missing = sum(len(run.missing(prompts.requests, each)) for run in runs for each in repeats)
    shown = settings.sink.progress and processes.rank() == 0
    progress = Progress(missing, enabled=shown)
    try:
        size = _turn(settings)
        waves = [batch for wave in prompts.waves() for batch in _batches(wave, size)]
        turns = ((repeat, batch) for repeat in repeats for batch in waves)
        for turn, (repeat, batch) in enumerate(turns):
            first = turn % len(runs)
            for run in (*runs[first:], *runs[:first]):
                if todo := run.missing(batch, repeat):
                    _decode_batch(settings, run, prompts, todo, repeat, progress, metering, machine)
    finally:
        progress.close()


def _decode_batch(
    settings: JobSettings,
    run: CellRun,
    prompts: Prompts,
    batch: Sequence[Request],
    repeat: int,
    progress: Progress,
    metering: Metering,
    machine: Machine,
) -> None:
    """One batch of one cell, on disk when this returns."""
    assert run.decoder is not None
    progress.start(run.cell.title, run.done[repeat].values())
    try:
        requests = prompts.resolved(batch, run.done[repeat])
        run.memory.begin()
        generations = metering.generate(run.decoder, requests, settings.seed, progress.step)
        run.memory.end()
        state = machine.read()._asdict()
        generations = [replace(each, repeat=repeat, **state) for each in generations]
        if repeat and settings.repeatable:
            check_repeated(generations, run.done[0])
        run.store.append(generations)
    except Exception as error:
        run.fail(error)
        _release_memory(settings.device)
    else:
        run.done[repeat].update({each.prompt_id: each for each in generations})
    progress.finish(len(batch))


def check_repeated(again: Sequence[Generation], first: Mapping[str, Generation]) -> None:
    """Whether prompts decoded once more had the same target calls and tokens as the first time.

    Raises:
        ValueError: naming the first prompt that had not.
    """
    for each in again:
        if not each.repeats(first[each.prompt_id]):
            raise ValueError(
                f"prompt {each.prompt_id!r}: repeat {each.repeat + 1} delivered other tokens than "
                "the first with the same seed, so decoding is not deterministic"
            )


def _turn(settings: JobSettings) -> int:
    """Prompts that a cell decodes before it is the next cell's turn."""
    turns = _QUEUE if settings.batching == "continuous" else 1
    return settings.batch_size * turns


def _release_memory(device: str) -> None:
    """Gives a failed cell's memory back before the next cell allocates."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def _batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    return (requests[start : start + size] for start in range(0, len(requests), size))
