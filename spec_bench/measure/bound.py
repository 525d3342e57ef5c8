"""Bound over measured: how much of the decoding time the memory alone explains.

Forward passes are timed by events on the device, and two events span whatever lies between them:
where the host launches kernels more slowly than the GPU runs them, the GPU's waiting counts as time
inside the pass, and the host's share does not show it. The bytes that the passes must move, over
the nominal bandwidth of the GPU's memory, are time that no implementation can save; the rest of the
measured time is launches, arithmetic and all else.

Knows torch's modules and the records; nothing about decoders.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_bench.measure.pass_cost import ModelCost, Pass, bytes_moved
from spec_bench.records.types import Generation


def moved_bytes(
    generation: Generation,
    prompt_tokens: int,
    target: ModelCost,
    drafts: Sequence[ModelCost],
    head_bytes: float = 0.0,
    batch: int = 1,
) -> float:
    """Bytes that a prompt's target and draft calls cannot do without, prefill excluded.

    Args:
        generation: what was decoded.
        prompt_tokens: of its prompt.
        target: the target's cost.
        drafts: of each draft model, which runs once per level.
        head_bytes: of draft heads, read once per iteration.
        batch: rows that share a pass, and its reading of the weights; there are fewer when rows end
            at different times, so this is a lower bound.
    """
    total, context = 0.0, float(prompt_tokens - 1)
    for step in generation.steps:
        nodes = step.nodes + 1
        one = Pass(nodes, context, 0.0, nodes)
        total += bytes_moved(target, one) - target.weight_bytes * (1 - 1 / batch)
        a_level = Pass(1, context, 0.0, 1)
        for draft in drafts:
            moved = bytes_moved(draft, a_level) - draft.weight_bytes * (1 - 1 / batch)
            total += step.depth * moved
        total += head_bytes / batch
        context += step.accepted + 1
    return total


def bound_over_measured(
    moved: float, generations: Sequence[Generation], bytes_per_s: float
) -> float | None:
    """Seconds that the bytes take, over seconds of decoding; None if nothing was decoded.

    Args:
        moved: bytes, of all generations.
        generations: all of them.
        bytes_per_s: of the memory.
    """
    seconds = sum(generation.decode_s for generation in generations)
    return moved / bytes_per_s / seconds if seconds else None
