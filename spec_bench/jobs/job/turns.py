"""Cells in turn: interleaved prompts, on disk as they come.

For each batch of prompts every cell decodes it before the next batch starts, and the order of the
cells rotates, so that drift of the machine hits all alike and no decoder always goes first. With
repeats the job goes over all prompts again, so that a prompt's repeats are apart in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from spec_bench.core import processes
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.pairing import OtherTokensError, check_retimed, needs_timing, timings
from spec_bench.jobs.work.session import Session
from spec_bench.records.types import Generation, Request
from spec_bench.sinks.console import Progress
from spec_bench.system import signals

_QUEUE = 4  # batches' worth of prompts in the queue of a continuous batch


@dataclass(frozen=True)
class Turn:
    """A cell's turn at a batch of prompts."""

    run: CellRun  # the cell
    batch: Sequence[Request]  # what it decodes
    repeat: int  # for which time

    @property
    def done(self) -> dict[str, Generation]:
        """What the cell has of this repeat, by prompt id."""
        return self.run.done[self.repeat]


def decode_in_turn(session: Session, runs: Sequence[CellRun]) -> None:
    """Interleaves the cells prompt by prompt; a cell that fails leaves the others going."""
    baseline = session.baseline if session.baseline in runs else None
    shown = session.settings.asked.sink.progress and processes.rank() == 0
    progress = Progress(_missing(session, runs, baseline), enabled=shown)
    try:
        for number, (repeat, batch) in enumerate(_batches(session)):
            first = number % len(runs)
            if baseline is None or baseline.decoder is None:
                for run in runs:
                    run.unpaired.clear()  # there is nothing to be in turn with
            timed = [] if baseline is None else needs_timing(baseline, runs, batch, repeat)
            for run in (*runs[first:], *runs[:first]):
                signals.check()
                todo = timed if run is baseline else run.missing(batch, repeat)
                if todo and run.decoder is not None:
                    _decode(session, Turn(run, todo, repeat), progress)
    except OtherTokensError as error:
        for run in runs:
            run.fail(error)
    finally:
        progress.close()


def _batches(session: Session) -> Iterator[tuple[int, Sequence[Request]]]:
    """Repeat and prompts, all prompts of a repeat before the next."""
    size = _prompts_a_turn(session.settings)
    batched = [batch for wave in session.prompts.waves() for batch in batches(wave, size)]
    repeats = range(session.settings.asked.repeats)
    return ((repeat, batch) for repeat in repeats for batch in batched)


def _missing(session: Session, runs: Sequence[CellRun], baseline: CellRun | None) -> int:
    """Prompts that will be decoded, the baseline's new timings included."""
    requests, count = session.requests, 0
    for repeat in range(session.settings.asked.repeats):
        count += sum(len(run.missing(requests, repeat)) for run in runs if run is not baseline)
        count += 0 if baseline is None else len(needs_timing(baseline, runs, requests, repeat))
    return count


def _decode(session: Session, turn: Turn, progress: Progress) -> None:
    """One batch of one cell, on disk when this returns.

    Raises:
        OtherTokensError: the baseline, timed again, gave other tokens than before.
    """
    run, settings = turn.run, session.settings
    assert run.decoder is not None
    progress.start(run.cell.title, (run.run_id, turn.repeat), turn.done.values())
    new: Sequence[Generation] = ()
    requests: Sequence[Request] = ()
    try:
        requests = session.prompts.resolved(turn.batch, turn.done)
        run.decoder.remember(_before(session, turn))
        run.memory.begin()
        run.passes.begin(run.decoder)
        seed = settings.asked.seed
        generations = session.metering.generate(run.decoder, requests, seed, progress.step)
        run.passes.end(run.decoder)
        run.memory.end()
        if any(min(each.prefill_s, each.decode_s) < 0 for each in generations):
            raise ValueError("the clock ran backwards")
        generations = _dated(session, turn, generations, requests)
        if turn.repeat and settings.repeatable:
            check_repeated(generations, run.done[0])
        new = _keep(session, turn, generations)
    except OtherTokensError:
        raise
    except Exception as error:
        if answered := getattr(error, "answered", ()):  # by a server, beside what was not
            _keep(session, turn, _dated(session, turn, answered, requests))
        run.fail(error)
        _release_memory(settings.device)
    else:
        turn.done.update({each.prompt_id: each for each in new})
        run.unpaired -= {(turn.repeat, each.prompt_id) for each in new}
    progress.finish(len(turn.batch), new)


def _before(session: Session, turn: Turn) -> list[Sequence[int]]:
    """The cell's answers to all prompts before a batch's, in order: those of this repeat."""
    before: list[Sequence[int]] = []
    for each in session.requests:
        if each.prompt_id == turn.batch[0].prompt_id:
            break
        if each.prompt_id in turn.done:
            before.append(turn.done[each.prompt_id].tokens)
    return before


def _dated(
    session: Session, turn: Turn, generations: Sequence[Generation], requests: Sequence[Request]
) -> list[Generation]:
    """Generations with what only the job knows: when, on what, of which kind."""
    lengths = {each.prompt_id: len(each.prompt_ids) for each in requests}
    state = session.machine.read()._asdict() | {"repeat": turn.repeat, "sitting": session.sitting}
    kinds = session.prompts.categories
    return [
        replace(
            each,
            category=kinds.get(each.prompt_id, ""),
            prompt_tokens=lengths[each.prompt_id],
            **state,
        )
        for each in generations
    ]


def _keep(session: Session, turn: Turn, generations: Sequence[Generation]) -> Sequence[Generation]:
    """Writes a batch; returns the cell's generations, without new timings of the baseline.

    Raises:
        OtherTokensError: the baseline's tokens are not those of before.
    """
    run, done = turn.run, turn.done
    if run is not session.baseline:
        run.store.append(generations)
        return generations
    again = [each for each in generations if each.prompt_id in done]
    new = [each for each in generations if each.prompt_id not in done]
    check_retimed(again, done, run.run_id, session.settings.repeatable)
    run.store.append(new)
    if again:
        run.store.append_retimed(again, session.sitting)
    session.against.update(timings(generations))
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


def _prompts_a_turn(settings: JobSettings) -> int:
    """Prompts that a cell decodes before the next cell's turn; all of those that arrive."""
    if settings.served is not None and settings.served.rate is not None:
        return len(settings.examples)
    turns = _QUEUE if settings.engine.batching == "continuous" else 1
    return settings.engine.batch_size * turns


def _release_memory(device: str) -> None:
    """Gives a failed cell's memory back before the next cell allocates."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    """The requests in batches, the last one perhaps smaller."""
    return (requests[start : start + size] for start in range(0, len(requests), size))
