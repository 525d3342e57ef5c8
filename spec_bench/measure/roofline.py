"""A roofline: the bytes that decoding must move, and the bandwidth that the memory gives.

Bound over measured says how much of the decoding time the memory alone explains. Forward passes are
timed by events on the device, and two events span whatever lies between them: where the host
launches kernels more slowly than the GPU runs them, the GPU's waiting counts as time inside the
pass, and the host's share does not show it. The bytes that the passes must move, over the nominal
bandwidth of the GPU's memory, are time that no implementation can save; the rest of the measured
time is launches, arithmetic and all else.

Knows torch's modules and the records; nothing about decoders.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from spec_bench.records.types import Generation

# Bytes per second of the memory in the vendor's data sheets, by part of the driver's name: A100
# 80GB, H100 SXM and H200 SXM; RTX A6000 and L40 are those that two papers measured on.
NOMINAL = {"A100": 2.0e12, "H100": 3.35e12, "H200": 4.8e12, "A6000": 0.768e12, "L40": 0.864e12}


def nominal_bandwidth(device_name: str) -> float | None:
    """Bytes per second of ``NVIDIA H200`` or ``NVIDIA A100-SXM4-80GB``; None: an unknown GPU."""
    words = device_name.replace("-", " ").split()
    return next((rate for name, rate in NOMINAL.items() if name in words), None)


@dataclass(frozen=True)
class ModelCost:
    """Bytes that one forward pass of a model moves, by what they depend on."""

    weight_bytes: int  # parameters that every pass reads in full: all but looked-up tables
    # A token's rows of embedding tables (tokens, learned positions). A table that is the lm head
    # too is read in full anyway and counts in ``weight_bytes`` alone.
    lookup_bytes: int
    slot_bytes: int  # a token's keys and values over all layers
    logit_bytes: int  # one position's logits


def model_cost(module: Any, slot_bytes: int) -> ModelCost:
    """Counts a transformers causal LM, all of one dtype; one on the ``meta`` device will do."""
    head = module.get_output_embeddings().weight
    tables = [
        part.weight
        for part in module.modules()
        if isinstance(part, nn.Embedding) and part.weight is not head
    ]
    looked_up = {id(table) for table in tables}
    return ModelCost(
        weight_bytes=sum(each.nbytes for each in module.parameters() if id(each) not in looked_up),
        lookup_bytes=sum(table.nbytes // table.shape[0] for table in tables),
        slot_bytes=slot_bytes,
        logit_bytes=head.shape[0] * module.dtype.itemsize,
    )


def count_bytes_of_pass(cost: ModelCost, tokens: float, context: float, logits: float) -> float:
    """Returns bytes between memory and the chip that a pass over so many tokens behind a context
    cannot do without, if so many positions' logits are written.

    Counted: every weight read once, but only the rows looked up of an embedding table that is not
    the lm head; keys and values of the context read once; those of the tokens run, written; logits
    written. Not counted: activations between layers and masks, which caches can hold, and whatever
    sampling does with the logits. Weights that a cache holds from one pass to the next are still
    counted, so a model that small can be faster than its bound.
    """
    looked_up = tokens * (cost.lookup_bytes + cost.slot_bytes) + context * cost.slot_bytes
    return cost.weight_bytes + looked_up + logits * cost.logit_bytes


def count_bytes_of_prompt(
    generation: Generation,
    prompt_tokens: int,
    target: ModelCost,
    drafts: Sequence[ModelCost],
    head_bytes: float = 0.0,
    batch: int = 1,
) -> float:
    """Returns bytes that a prompt's target and draft calls cannot do without, prefill excluded.

    Draft models run once per level, draft heads are read once per iteration. ``batch`` rows share a
    pass, and its reading of the weights; there are fewer when rows end at different times, so this
    is a lower bound.
    """

    def moved(cost: ModelCost, tokens: int) -> float:
        return count_bytes_of_pass(cost, tokens, context, tokens) - cost.weight_bytes * (
            1 - 1 / batch
        )

    total = 0.0
    context = float(prompt_tokens - 1)
    for step in generation.steps:
        levels = sum(step.depth * moved(draft, 1) for draft in drafts)
        total += moved(target, step.nodes + 1) + levels + head_bytes / batch
        context += step.accepted + 1
    return total


def bound_over_measured(
    moved: float, generations: Sequence[Generation], bytes_per_s: float
) -> float | None:
    """Seconds that all generations' bytes take, over seconds of decoding; None: none decoded."""
    seconds = sum(generation.decode_s for generation in generations)
    return moved / bytes_per_s / seconds if seconds else None


# The bandwidth as a job finds it: a buffer of its target's size, read again and again. Decoding
# reads the target's weights call after call. A buffer of their size stays in caches as far as they
# do, so bytes over this bandwidth also bound the passes of small models.

BLOCK_BYTES = 2**30  # of the streamed buffer: a kernel's 32-bit indices reach all of it
LEAST_BYTES = 2**20
MOST_BYTES = 2**30
_REPEATS = 5
_DRAWN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # dtypes that noise has


def measure_bandwidth(model: nn.Module) -> float | None:
    """Bytes per second of the device that holds a model, in the model's dtype and torch's threads.

    A process measures each device, dtype and size once. The fastest of a sum, a matrix-vector
    product and a copy, best of five, on the device of the first layers; None if the buffer does not
    fit.
    """
    weights = list(model.parameters())
    if not weights:
        return None
    size = sum(each.nbytes for each in weights)
    buffer_bytes = min(max(size, LEAST_BYTES), MOST_BYTES)
    dtype = weights[0].dtype if weights[0].dtype in _DRAWN else torch.float32
    return _measure_bandwidth_once(weights[0].device, dtype, buffer_bytes, torch.get_num_threads())


@cache
def _measure_bandwidth_once(
    device: torch.device, dtype: torch.dtype, buffer_bytes: int, threads: int
) -> float | None:
    """``threads`` tells measurements apart and is not set here."""
    if 2 * buffer_bytes > free_bytes(device):
        return None

    def now_s() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    with torch.inference_mode():
        moved_bytes, seconds = fastest_stream(device, dtype, buffer_bytes, _REPEATS, now_s)
    return moved_bytes / seconds


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated on the device now; on a CPU, pages that nothing holds."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fastest_stream(
    device: torch.device,
    dtype: torch.dtype,
    buffer_bytes: int,
    repeats: int,
    now_s: Callable[[], float],
) -> tuple[int, float]:
    """Returns bytes that a buffer of normal noise has, and seconds of the fastest way through it.

    Two ways read it, a sum and a matrix-vector product (what decoding does); a copy of one half
    over the other moves as many bytes.
    """
    columns = 4096
    count = max(2, 2 * round(buffer_bytes / (2 * BLOCK_BYTES)))
    rows = max(1, min(BLOCK_BYTES, buffer_bytes // count) // (columns * dtype.itemsize))
    blocks = torch.randn(count, rows, columns, dtype=dtype, device=device)
    vector = torch.randn(columns, dtype=dtype, device=device)
    pairs = list(zip(blocks[: count // 2], blocks[count // 2 :], strict=True))
    ways: tuple[Callable[[], object], ...] = (
        lambda: [block.sum() for block in blocks],
        lambda: [torch.mv(block, vector) for block in blocks],
        lambda: [to.copy_(source) for to, source in pairs],
    )
    shortest_s = math.inf
    for work in ways:
        work()  # not timed
        for _ in range(repeats):
            start_s = now_s()
            work()
            shortest_s = min(shortest_s, now_s() - start_s)
    return blocks.numel() * dtype.itemsize, shortest_s
