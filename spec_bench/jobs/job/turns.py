"""Cells in turn: interleaved prompts, on disk as they come.

For each batch of prompts every cell decodes it before the next batch starts, and the order of the
cells rotates, so that drift of the machine hits all alike and no decoder always goes first. With
repeats the job goes over all prompts again, so that a prompt's repeats are apart in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import torch

from spec_bench.engine import processes
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.metering import Metering
from spec_bench.jobs.work.pairing import (
    OtherTokensError,
    Timings,
    check_retimed,
    timings,
    to_time,
)
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.measure.machine import Machine
from spec_bench.records.types import Generation, Request
from spec_bench.sinks.console import Progress
from spec_bench.system import signals

_QUEUE = 4  # batches' worth of prompts in the queue of a continuous batch


@dataclass(frozen=True)
class Sitting:
    """What a batch is decoded in.

    Attributes:
        name: tells it from the job's other sittings.
        against: for the baseline: its timings, which the batch adds to.
    """

    name: str
    against: Timings | None = None


def decode_in_turn(
    settings: JobSettings,
    runs: Sequence[CellRun],
    baseline: CellRun | None,
    against: Timings,
    prompts: Prompts,
    metering: Metering,
    machine: Machine,
) -> None:
    """Interleaves the cells prompt by prompt; a cell that fails leaves the others going.

    Args:
        settings: the job's.
        runs: the cells to work on.
        baseline: one of them; None if nothing decodes plainly.
        against: every timing of the baseline.
        prompts: what is asked.
        metering: the job's energy meter.
        machine: what it runs on.
    """
    repeats, sitting = range(settings.repeats), uuid4().hex[:12]
    missing = sum(len(run.missing(prompts.requests, each)) for run in runs for each in repeats)
    if baseline is not None:
        missing += sum(
            len(to_time(baseline, runs, prompts.requests, each))
            - len(baseline.missing(prompts.requests, each))
            for each in repeats
        )
    shown = settings.sink.progress and processes.rank() == 0
    progress = Progress(missing, enabled=shown)
    try:
        size = _turn(settings)
        waves = [batch for wave in prompts.waves() for batch in batches(wave, size)]
        turns = ((repeat, batch) for repeat in repeats for batch in waves)
        for turn, (repeat, batch) in enumerate(turns):
            first = turn % len(runs)
            if baseline is None or baseline.decoder is None:
                for run in runs:
                    run.unpaired.clear()  # there is nothing to be in turn with
            timed = [] if baseline is None else to_time(baseline, runs, batch, repeat)
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
        OtherTokensError: the baseline, timed again, gave other tokens than before.
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
        generations = _dated(prompts, generations, repeat, sitting, machine)
        if repeat and settings.repeatable:
            check_repeated(generations, run.done[0])
        new = _keep(settings, run, generations, run.done[repeat], sitting)
    except OtherTokensError:
        raise
    except Exception as error:
        if answered := getattr(error, "answered", ()):  # by a server, beside what was not
            kept = _dated(prompts, answered, repeat, sitting, machine)
            _keep(settings, run, kept, run.done[repeat], sitting)
        run.fail(error)
        _release_memory(settings.device)
    else:
        run.done[repeat].update({each.prompt_id: each for each in new})
        run.unpaired -= {(repeat, each.prompt_id) for each in new}
    progress.finish(len(batch), new)


def _dated(
    prompts: Prompts,
    generations: Sequence[Generation],
    repeat: int,
    sitting: Sitting,
    machine: Machine,
) -> list[Generation]:
    """Generations with what only the job knows: when, on what, of which kind."""
    state = machine.read()._asdict() | {"repeat": repeat, "sitting": sitting.name}
    kinds = prompts.categories
    return [replace(each, category=kinds.get(each.prompt_id, ""), **state) for each in generations]


def _keep(
    settings: JobSettings,
    run: CellRun,
    generations: Sequence[Generation],
    done: Mapping[str, Generation],
    sitting: Sitting,
) -> Sequence[Generation]:
    """Writes a batch; returns the cell's own generations, without new timings of the baseline.

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
    """Checks that prompts decoded again had the same target calls and tokens as the first time.

    Raises:
        ValueError: naming the first prompt that did not.
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


def batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    """The requests in batches, the last one perhaps smaller."""
    return (requests[start : start + size] for start in range(0, len(requests), size))
