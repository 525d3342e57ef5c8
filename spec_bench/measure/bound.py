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
from dataclasses import dataclass

from spec_bench.measure.pass_cost import ModelCost, Pass, bytes_moved
from spec_bench.records.types import Generation


@dataclass(frozen=True)
class Gpu:
    """A GPU as in its data sheet.

    Attributes:
        name: part of the driver's name for it.
        bytes_per_s: of its memory.
        memory_bytes: how much there is.
    """

    name: str
    bytes_per_s: float
    memory_bytes: float


# Data sheets of the vendor: A100 80GB, H100 SXM and H200 SXM; RTX A6000 and L40 are those that two
# papers measured on.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", 2.0e12, 80e9),
        Gpu("H100", 3.35e12, 80e9),
        Gpu("H200", 4.8e12, 141e9),
        Gpu("A6000", 0.768e12, 48e9),
        Gpu("L40", 0.864e12, 48e9),
    )
}


def known_gpu(device_name: str) -> Gpu | None:
    """The GPU of that name, such as ``NVIDIA H200`` or ``NVIDIA A100-SXM4-80GB``; None: unknown."""
    words = device_name.replace("-", " ").split()
    return next((gpu for name, gpu in GPUS.items() if name in words), None)


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
