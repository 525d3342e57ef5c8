"""Whether a cell fits the pair's drafts and heads and the job's batch; what to do if not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.model_files import EMBEDDED, model_path
from spec_bench.jobs.config.pair import Pair
from spec_bench.system.files import training_command, training_of


class Batch(NamedTuple):
    """How a job's prompts decode together."""

    size: int  # most prompts at a time
    batching: str  # `static` or `continuous`
    sampling: SamplingSettings  # the job's


def fitting(
    cells: Sequence[Cell], pair: Pair, batch: Batch, left_out: Sequence[str] = ()
) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """The cells that fit the pair and the batch, the baseline first, and why each of the others is
    left out, after the reasons in ``left_out``. Raises ValueError: none but the baseline is left.
    """
    fit, why = [], list(left_out)
    for cell in cells:
        try:
            check_fit(cell, pair)
            check_batch(cell, batch)
            fit.append(cell)
        except ValueError as error:
            why.append(str(error))
    if why and len(fit) <= 1:
        raise ValueError(why[0])
    return tuple(fit), tuple(why)


def check_fit(cell: Cell, pair: Pair) -> None:
    """Checks that a pair has the drafts and heads that a cell uses."""
    if cell.library == "server":
        raise ValueError(f"{cell.title}: a server decodes it: engine=server server.url=...")
    if cell.drafts > len(pair.drafts):
        raise ValueError(
            f"{cell.title} uses {cell.drafts} drafts, pair.draft names {len(pair.drafts)}"
        )
    kind = cell.heads
    if kind is None:
        return
    if kind not in pair.heads:
        raise ValueError(
            f"{cell.title} uses {kind} heads, pair {pair.name!r} names "
            f"{', '.join(pair.heads) or 'none'}: set pair.heads.{kind} to a folder or hub id"
        )
    name = training_of(Path(pair.heads[kind]))
    if name is not None and not Path(pair.heads[kind]).is_dir():
        raise ValueError(
            f"{cell.title} uses {kind} heads, which nobody published for {pair.name}; train them: "
            f"{training_command(kind, pair.name, name, not pair.target.startswith(EMBEDDED))}"
        )
    if pair.heads[kind].startswith(EMBEDDED) and not pair.target.startswith(EMBEDDED):
        raise ValueError(
            f"{cell.title} uses {kind} heads; {pair.heads[kind]!r} were trained on the embedded "
            f"target, not on {pair.target!r}: set pair.heads.{kind} to a folder or hub id"
        )
    model_path(pair.heads[kind])


def check_batch(cell: Cell, batch: Batch) -> None:
    """Checks that a library gives a batch the answers that it would give one by one."""
    if not cell.library or batch.size == 1:
        return
    if cell.spec != "-":
        why = "decodes one prompt at a time with a draft or lookup"
    elif batch.sampling.temperature > 0:
        why = "draws for all rows from one generator, so that a row would hang on its neighbours"
    elif batch.batching != "static":
        why = "has no continuous batches"
    else:
        return
    raise ValueError(
        f"{cell.title}: {cell.library} {why}; engine.batch_size must be 1, got {batch.size}"
        f" (engine.batching={batch.batching})"
    )
