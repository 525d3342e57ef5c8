"""How near a decoder comes to its device's limits: two measured ceilings and the shares attained.

The ceilings are memory bandwidth and matmul throughput. A pass takes at least the longer of the
times that they give for its bytes and its operations, the roofline's bound
(Williams, Waterman and Patterson, CACM 52(4), 2009). Bound over measured time is what was attained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from spec_bench.measure.bandwidth import fastest_stream, shortest_s
from spec_bench.measure.pass_cost import ModelCost, Pass, bytes_moved
from spec_bench.records.types import Generation


@dataclass(frozen=True)
class Ceilings:
    """What the device can do at best, in one dtype.

    Attributes:
        bytes_per_s: memory bandwidth.
        flop_per_s: throughput of a large matmul.
        bandwidth_from, matmul_from: how each was measured, in words.
    """

    bytes_per_s: float
    flop_per_s: float
    bandwidth_from: str
    matmul_from: str

    def roofline_s(self, moved_bytes: float, flop: float) -> float:
        """The fewest seconds of a pass that moves and computes this much."""
        return max(moved_bytes / self.bytes_per_s, flop / self.flop_per_s)

    def bound_by(self, moved_bytes: float, flop: float) -> str:
        """``memory`` or ``matmul``: which of the two terms is the larger."""
        moved_s = moved_bytes / self.bytes_per_s
        return "memory" if moved_s >= flop / self.flop_per_s else "matmul"

    def columns(self) -> dict[str, float | str]:
        """As in a table; giga and tera are powers of ten."""
        return {
            "bandwidth_gb_s": self.bytes_per_s / 1e9,
            "bandwidth_from": self.bandwidth_from,
            "matmul_tflop_s": self.flop_per_s / 1e12,
            "matmul_from": self.matmul_from,
        }


@torch.inference_mode()
def measure_ceilings(
    device: torch.device,
    dtype: torch.dtype,
    buffer_bytes: int,
    matmul_size: int,
    repeats: int,
    now_s: Callable[[], float],
) -> Ceilings:
    """Measures both ceilings; everything it allocates is dropped before it returns.

    Args:
        device: where.
        dtype: of all operands.
        buffer_bytes: about how much is streamed; should be many times the largest cache.
        matmul_size: n of the square matmul, n x n by n x n.
        repeats: how often each is timed; the shortest time counts.
        now_s: reads the clock, the device synchronised.
    """
    name, moved, seconds = fastest_stream(device, dtype, buffer_bytes, repeats, now_s)
    a, b = (torch.randn(matmul_size, matmul_size, dtype=dtype, device=device) for _ in range(2))
    matmul_s = shortest_s(lambda: a @ b, repeats, now_s)
    return Ceilings(
        moved / seconds,
        2 * matmul_size**3 / matmul_s,
        f"{name} over {moved / 1e9:.3g} GB, best of {repeats}",
        f"{matmul_size} x {matmul_size}, best of {repeats}",
    )


def floating_point_operations(cost: ModelCost, one: Pass) -> float:
    """Operations of a pass: a multiplication and an addition for every matmul parameter and token,
    the lm head's for positions with logits only, and attention's over what the mask shows.
    """
    matmul = cost.matmul_parameters * one.tokens + cost.head_parameters * one.logits
    return 2 * matmul + cost.pair_flop * one.visible


def target_pass(levels: Sequence[int], context: float) -> Pass:
    """The target over a root and its tree.

    Args:
        levels: nodes per level below the root.
        context: committed tokens before the root.
    """
    counts = (1, *levels)
    nodes = sum(counts)
    on_paths = sum(count * (depth + 1) for depth, count in enumerate(counts))
    return Pass(nodes, context, nodes * context + on_paths, nodes)


def draft_passes(levels: Sequence[int], context: float, pending: float) -> list[Pass]:
    """A draft model's L passes of one iteration: pending tokens, then every level but the last.

    Args:
        levels: nodes per level below the root.
        context: committed tokens before the root.
        pending: tokens that the draft has not seen, the root included: 1, or 2 after an iteration
            whose whole path was accepted. Only the root's logits are wanted.
    """
    if not levels:
        return []
    passes, drawn = [Pass(pending, context + 1 - pending, pending * context + 1, 1)], 1
    for depth, count in enumerate(levels[:-1], 1):
        passes.append(Pass(count, context + drawn, count * (context + depth + 1), count))
        drawn += count
    return passes


def mean_context(generations: Sequence[Generation], prompt_tokens: int) -> float:
    """Committed tokens before the root, averaged over target calls of prompts of one length."""
    lengths = []
    for generation in generations:
        length = prompt_tokens - 1
        for step in generation.steps:
            lengths.append(length)
            length += step.accepted + 1
    return sum(lengths) / len(lengths)


def mean_pending(generations: Sequence[Generation]) -> float:
    """Tokens that a draft model runs before it drafts, averaged over iterations."""
    steps = [generation.steps for generation in generations]
    twice = sum(step.accepted == step.depth for each in steps for step in each[:-1])
    return 1 + twice / sum(len(each) for each in steps)


def attainment(
    ceilings: Ceilings,
    target: ModelCost,
    draft: ModelCost,
    levels: Sequence[int],
    generations: Sequence[Generation],
    prompt_tokens: int,
) -> dict[str, float | str]:
    """A table row's columns about the limits; those about drafting are empty if nothing drafts.

    Columns ``_ms`` are milliseconds: ``target_call_ms`` and ``memory_bound_ms`` of one target call,
    ``draft_ms`` and ``draft_memory_bound_ms`` of an iteration's draft calls together,
    ``iteration_ms`` and ``iteration_memory_bound_ms`` of all of it. Every bound is the roofline's;
    ``bound_by`` says which term it is for the target. Measured iterations are wall time, host work,
    sampling and commits included; ``attained``, bound over measured, is for autoregressive decoding
    the share of the memory-bound token rate.

    Args:
        ceilings: of the device and dtype.
        target: the target's cost.
        draft: the draft model's.
        levels: nodes per level of the tree below the root; empty if nothing is drafted.
        generations: of one decoder, decoded one at a time.
        prompt_tokens: of every prompt.
    """
    calls = sum(len(generation.steps) for generation in generations)
    target_ms, draft_ms, iteration_ms = (
        1e3 * sum(getattr(generation, part) for generation in generations) / calls
        for part in ("target_s", "draft_s", "decode_s")
    )
    context = mean_context(generations, prompt_tokens)
    verified = target_pass(levels, context)
    moved, flop = bytes_moved(target, verified), floating_point_operations(target, verified)
    bound_ms = 1e3 * ceilings.roofline_s(moved, flop)
    drafted = [
        (bytes_moved(draft, one), floating_point_operations(draft, one))
        for one in draft_passes(levels, context, mean_pending(generations))
    ]
    draft_bound_ms = 1e3 * sum(ceilings.roofline_s(*each) for each in drafted)
    return {
        "mean_context": context,
        "bytes_per_target_call": round(moved),
        "flop_per_target_call": round(flop),
        "memory_bound_ms": bound_ms,
        "bound_by": ceilings.bound_by(moved, flop),
        "target_call_ms": target_ms,
        "target_attained": bound_ms / target_ms,
        "draft_calls": len(drafted),
        "bytes_per_draft_call": round(sum(b for b, _ in drafted) / len(drafted)) if drafted else "",
        "draft_memory_bound_ms": draft_bound_ms if drafted else "",
        "draft_ms": draft_ms if drafted else "",
        "draft_attained": draft_bound_ms / draft_ms if drafted else "",
        "iteration_memory_bound_ms": bound_ms + draft_bound_ms,
        "iteration_ms": iteration_ms,
        "attained": (bound_ms + draft_bound_ms) / iteration_ms,
    }
