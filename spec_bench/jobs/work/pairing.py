"""A speed-up is against a baseline that was timed in turn with the cell, prompt by prompt.

A sitting is one process that works on a job. It decodes interleaved, and what two sittings decoded,
hours apart or with other work on the machine, is never compared. If a sitting decodes a prompt for
a cell and the baseline has it from an earlier one (cells were added to a finished job), the
baseline is timed again beside it. Its tokens must be the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from spec_bench.jobs.store.store import Repeats
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.records.types import Generation, Request

log = logging.getLogger(__name__)
Timings = dict[tuple[str, int, str], Generation]
"""A baseline's generations by sitting, repeat and prompt id."""


class OtherTokensError(ValueError):
    """The baseline delivers other tokens than its records hold."""


def timings(generations: Iterable[Generation]) -> Timings:
    """Generations of a baseline, those that were timed again included."""
    return {(each.sitting, each.repeat, each.prompt_id): each for each in generations}


def timings_of(baseline: CellRun) -> Timings:
    """Everything that a baseline's folder holds."""
    stored = [each for repeat in baseline.done.values() for each in repeat.values()]
    return timings([*baseline.store.load_retimed(), *stored])


def unpaired(done: Repeats, against: Timings) -> set[tuple[int, str]]:
    """Repeat and prompt id of a cell's generations that no baseline was timed in turn with."""
    return {
        (each.repeat, each.prompt_id)
        for repeat in done.values()
        for each in repeat.values()
        if (each.sitting, each.repeat, each.prompt_id) not in against
    }


def paired(
    repeats: Sequence[Sequence[Generation]], against: Timings
) -> list[list[Generation]] | None:
    """The baseline's generations that were timed in turn with a cell's, in the same order; None if
    one is missing.
    """
    keys = [[(one.sitting, one.repeat, one.prompt_id) for one in each] for each in repeats]
    if any(key not in against for each in keys for key in each):
        return None
    return [[against[key] for key in each] for each in keys]


def needs_timing(
    baseline: CellRun, cells: Iterable[CellRun], batch: Sequence[Request], repeat: int
) -> list[Request]:
    """What the baseline decodes in a batch: what it lacks, and what a cell is about to decode."""
    if baseline.decoder is None:
        return []
    wanted = {each.prompt_id for run in cells for each in run.missing(batch, repeat)}
    wanted |= {each.prompt_id for each in baseline.missing(batch, repeat)}
    return [each for each in batch if each.prompt_id in wanted]


def check_retimed(
    again: Iterable[Generation], stored: Mapping[str, Generation], run_id: str, repeatable: bool
) -> None:
    """Checks that a baseline that is timed again delivers what its records hold.

    Args:
        again: its generations now.
        stored: the earlier ones, by prompt id.
        run_id: the baseline's.
        repeatable: whether the device gives the same tokens every time; if not, it only warns.

    Raises:
        OtherTokensError: naming the first prompt with other tokens.
    """
    for each in again:
        if each.tokens != stored[each.prompt_id].tokens:
            text = (
                f"prompt {each.prompt_id!r}: the baseline delivers other tokens than its records "
                f"in runs/{run_id} hold"
            )
            if repeatable:
                raise OtherTokensError(f"{text}; remove that folder to decode it anew")
            log.warning("%s, as this device may", text)
