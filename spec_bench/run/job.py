"""One job: shared models, interleaved prompts, every cell's records on disk as they come.

For each batch of prompts every cell decodes it before the next batch starts, and the order of the
cells rotates, so that drift of the machine hits all alike and no decoder always goes first. With
repeats the job goes over all prompts again, so that the repeats of a prompt lie apart in time. The
baseline is among the cells even where it was complete before (``run.pairing``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from uuid import uuid4

import torch

from spec_bench import files, signals
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
from spec_bench.run.cell_run import CellRun
from spec_bench.run.cells import BASELINE
from spec_bench.run.collect import collect
from spec_bench.run.identity import run_id
from spec_bench.run.metering import Metering, ordinals
from spec_bench.run.models import heads_of, models_of, ran_with, tokenizer_of
from spec_bench.run.pairing import (
    OtherTokensError,
    Timings,
    check_retimed,
    timings,
    timings_of,
    to_time,
    unpaired,
)
from spec_bench.run.prompts import Prompts
from spec_bench.run.settings import JobSettings
from spec_bench.run.store import CellStore, FollowerStore
from spec_bench.sinks.console import Progress
from spec_bench.tasks import Task

log = logging.getLogger(__name__)
_QUEUE = 4  # batches' worth of prompts in the queue of a continuous batch
_WARMUP_TOKENS = 4  # an iteration or a few
_CAPTURE_TOKENS = 16  # enough for every kind of forward pass to have been captured


@dataclass(frozen=True)
class Sitting:
    """What a batch is decoded in.

    Attributes:
        name: tells it from the job's other sittings.
        against: for the baseline: its timings, which the batch adds to.
    """

    name: str
    against: Timings | None = None


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
            baseline = runs[0]
            if processes.rank() == 0:
                for run in [baseline, *(each for each in pending if each is not baseline)]:
                    run.done = run.store.mend_tokens(models[0].vocab_size)
            against = timings_of(baseline)
            active = _with_baseline(settings, baseline, pending, against, prompts.requests)
            _describe(settings, pending)
            _prepare(settings, active, models, prompts.requests)
            processes.wait_for_all()  # none writes before all have read what there is
            _decode(settings, active, baseline, against, prompts, metering, machine)
            if processes.rank() == 0:
                ran = ran_with(settings, models[0], tokenizer)
                collect(settings, runs, pending, against, prompts, metering, ran)
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


def _with_baseline(
    settings: JobSettings,
    baseline: CellRun,
    pending: Sequence[CellRun],
    against: Timings,
    requests: Sequence[Request],
) -> list[CellRun]:
    """The cells to work on; the baseline among them where one of them decodes anything."""
    cells = [run for run in pending if run is not baseline]
    for run in cells:
        run.unpaired = unpaired(run.done, against)
    decoding = any(run.lacking(requests, each) for run in cells for each in range(settings.repeats))
    return [baseline, *cells] if decoding or baseline in pending else cells


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
    repeats = range(settings.repeats)
    decoding = any(run.missing(requests, repeat) for run in runs for repeat in repeats)
    needed = [
        run
        for run in runs
        if (run.cell.name == BASELINE and decoding)  # it is timed beside whatever is decoded
        or any(run.missing(requests, each) for each in repeats)
    ]
    # All make room before any warms up: what is made to run over a cache ends where it grows.
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
    baseline: CellRun,
    against: Timings,
    prompts: Prompts,
    metering: Metering,
    machine: Machine,
) -> None:
    """Interleaves the cells prompt by prompt; a cell that fails leaves the others going."""
    repeats, sitting = range(settings.repeats), uuid4().hex[:12]
    missing = sum(len(run.missing(prompts.requests, each)) for run in runs for each in repeats)
    missing += sum(
        len(to_time(baseline, runs, prompts.requests, each))
        - len(baseline.missing(prompts.requests, each))
        for each in repeats
    )
    shown = settings.sink.progress and processes.rank() == 0
    progress = Progress(missing, enabled=shown)
    try:
        size = _turn(settings)
        waves = [batch for wave in prompts.waves() for batch in _batches(wave, size)]
        turns = ((repeat, batch) for repeat in repeats for batch in waves)
        for turn, (repeat, batch) in enumerate(turns):
            first = turn % len(runs)
            if baseline.decoder is None:
                for run in runs:
                    run.unpaired.clear()  # there is nothing to be in turn with
            timed = to_time(baseline, runs, batch, repeat)
            for run in (*runs[first:], *runs[:first]):
                signals.check()
                todo = timed if run is baseline else run.missing(batch, repeat)
                if todo and run.decoder is not None:
                    sit = Sitting(sitting, against if run is baseline else None)
                    _decode_batch(
                        settings, run, prompts, todo, repeat, sit, progress, metering, machine
                    )
    except OtherTokensError as error:
        for run in runs:
            run.fail(error)
    finally:
        progress.close()


def _decode_batch(
    settings: JobSettings,
    run: CellRun,
    prompts: Prompts,
    batch: Sequence[Request],
    repeat: int,
    sitting: Sitting,
    progress: Progress,
    metering: Metering,
    machine: Machine,
) -> None:
    """One batch of one cell, on disk when this returns.

    Raises:
        OtherTokensError: it is the baseline's, timed again, with other tokens than before.
    """
    assert run.decoder is not None
    progress.start(run.cell.title, (run.run_id, repeat), run.done[repeat].values())
    new: Sequence[Generation] = ()
    try:
        requests = prompts.resolved(batch, run.done[repeat])
        run.memory.begin()
        run.passes.begin(run.decoder)
        generations = metering.generate(run.decoder, requests, settings.seed, progress.step)
        run.passes.end(run.decoder)
        run.memory.end()
        state = machine.read()._asdict() | {"repeat": repeat, "sitting": sitting.name}
        generations = [
            replace(each, category=prompts.categories.get(each.prompt_id, ""), **state)
            for each in generations
        ]
        if repeat and settings.repeatable:
            check_repeated(generations, run.done[0])
        new = _keep(settings, run, generations, run.done[repeat], sitting)
    except OtherTokensError:
        raise
    except Exception as error:
        run.fail(error)
        _release_memory(settings.device)
    else:
        run.done[repeat].update({each.prompt_id: each for each in new})
        run.unpaired -= {(repeat, each.prompt_id) for each in new}
    progress.finish(len(batch), new)


def _keep(
    settings: JobSettings,
    run: CellRun,
    generations: Sequence[Generation],
    done: Mapping[str, Generation],
    sitting: Sitting,
) -> Sequence[Generation]:
    """Writes a batch; the generations that are the cell's own and no new timings of the baseline.

    Raises:
        OtherTokensError: the baseline's tokens are not those of before.
    """
    if sitting.against is None:
        run.store.append(generations)
        return generations
    again = [each for each in generations if each.prompt_id in done]
    new = [each for each in generations if each.prompt_id not in done]
    check_retimed(again, done, run.run_id, settings.repeatable)
    run.store.append(new)
    if again:
        run.store.append_retimed(again, sitting.name)
    sitting.against.update(timings(generations))
    return new


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
