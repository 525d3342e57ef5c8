"""A roofline: the time that the memory's bandwidth allows for the bytes that decoding must move.

The ratio of bound to measured time is the share of the decoding time that memory traffic alone
explains. Forward passes are timed by two events on the device, which include idle time between
them: if the host launches kernels more slowly than the GPU runs them, the GPU's waiting counts as
time of the pass, and the host's share does not show it. No implementation can save the time of the
bytes that the passes must move, at the nominal bandwidth of the GPU's memory; the rest of the
measured time is launches, arithmetic and everything else.

Knows torch's modules and the records; nothing about decoders.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from spec_bench.records.types import Generation

# Memory bandwidth in bytes per second from the vendor's data sheets, by part of the driver's name:
# A100 80GB, H100 SXM, H200 SXM, and RTX A6000 and L40, on which two papers measured.
NOMINAL = {
    "A100": 2.0e12,
    "H100": 3.35e12,
    "H200": 4.8e12,
    "A6000": 0.768e12,
    "L40": 0.864e12,
}


def look_up_nominal_bytes_per_s(gpu_name: str) -> float | None:
    """Looks up the nominal bandwidth of a GPU, by its driver's name for it; None if unknown."""
    words = gpu_name.replace("-", " ").split()
    return next((rate for name, rate in NOMINAL.items() if name in words), None)


@dataclass(frozen=True)
class ForwardPassByteCounts:
    """Bytes that a forward pass of a model moves: per pass, and per token."""

    weight_bytes: int  # parameters that every pass reads in full: all except looked-up tables
    # A token's rows of embedding tables (tokens, learned positions). A table that is also the lm
    # head is read in full anyway and counts only in ``weight_bytes``.
    lookup_bytes: int
    slot_bytes: int  # a token's keys and values over all layers
    logit_bytes: int  # one position's logits


def count_model_bytes(module: Any, slot_bytes: int) -> ForwardPassByteCounts:
    """Counts the bytes of a transformers causal LM of one dtype, which may be on ``meta``."""
    head = module.get_output_embeddings().weight
    tables = [
        layer.weight
        for layer in module.modules()
        if isinstance(layer, nn.Embedding) and layer.weight is not head
    ]
    table_ids = {id(table) for table in tables}
    return ForwardPassByteCounts(
        weight_bytes=sum(
            weight.nbytes for weight in module.parameters() if id(weight) not in table_ids
        ),
        lookup_bytes=sum(table.nbytes // table.shape[0] for table in tables),
        slot_bytes=slot_bytes,
        logit_bytes=head.shape[0] * module.dtype.itemsize,
    )


def count_pass_bytes(
    byte_counts: ForwardPassByteCounts,
    new_tokens: float,
    context_tokens: float,
    logit_positions: float,
) -> float:
    """Computes a lower bound of the bytes between memory and chip in a pass over ``new_tokens``
    tokens after ``context_tokens`` tokens that writes the logits of ``logit_positions`` positions.

    Counted: every weight read once (of an embedding table that is not the lm head only the rows
    looked up); keys and values read for the context and written for the tokens; logits written. Not
    counted: activations and masks, which caches can hold, and sampling. Weights that a cache keeps
    between passes are counted, so a model that small can be faster than its bound.
    """
    token_bytes = (
        new_tokens * (byte_counts.lookup_bytes + byte_counts.slot_bytes)
        + context_tokens * byte_counts.slot_bytes
    )
    return byte_counts.weight_bytes + token_bytes + logit_positions * byte_counts.logit_bytes


def count_decode_bytes(
    generation: Generation,
    prompt_tokens: int,
    target: ForwardPassByteCounts,
    drafts: Sequence[ForwardPassByteCounts],
    head_bytes: float = 0.0,
    batch_size: int = 1,
) -> float:
    """Computes a lower bound of the bytes that a prompt's target and draft calls move, without
    prefill.

    Draft models run once per level, draft heads are read once per iteration. ``batch_size`` rows
    share one reading of the weights per pass; rows end at different times, so fewer rows share it
    in fact, and this stays a lower bound.
    """

    def count_row_bytes(byte_counts: ForwardPassByteCounts, tokens: int) -> float:
        return count_pass_bytes(byte_counts, tokens, context, tokens) - byte_counts.weight_bytes * (
            1 - 1 / batch_size
        )

    total = 0.0
    context = float(prompt_tokens - 1)
    for step in generation.steps:
        draft_bytes = sum(step.depth * count_row_bytes(draft, 1) for draft in drafts)
        total += count_row_bytes(target, step.nodes + 1) + draft_bytes + head_bytes / batch_size
        context += step.accepted + 1
    return total


def compute_bound_over_measured_time(
    moved_bytes: float,
    generations: Sequence[Generation],
    bytes_per_s: float,
) -> float | None:
    """Computes the seconds that ``moved_bytes`` take at this bandwidth, divided by the seconds of
    decoding of all generations; None if nothing was decoded.
    """
    seconds = sum(generation.decode_s for generation in generations)
    return moved_bytes / bytes_per_s / seconds if seconds else None


# A job measures its bandwidth on a buffer of its target's size, read repeatedly as decoding reads
# the weights. Caches hold as much of the buffer as of the weights, so the bound is right for small
# models, too.

MAX_BLOCK_BYTES = 2**30  # a kernel's 32-bit indices reach all of such a block
MIN_BUFFER_BYTES = 2**20
MAX_BUFFER_BYTES = 2**30
_REPEATS = 5
_NOISE_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def measure_bytes_per_s(model: nn.Module) -> float | None:
    """Measures the memory bandwidth, bytes per second, of the device of a model's first layers, in
    the model's dtype.

    It is that of the fastest among a sum, a matrix-vector product and a copy, each repeated five
    times; None if the model has no weights or the buffer does not fit. A process measures each
    device, dtype, size and number of threads once.
    """
    weights = list(model.parameters())
    if not weights:
        return None
    weight_bytes = sum(weight.nbytes for weight in weights)
    buffer_bytes = min(max(weight_bytes, MIN_BUFFER_BYTES), MAX_BUFFER_BYTES)
    dtype = weights[0].dtype if weights[0].dtype in _NOISE_DTYPES else torch.float32
    return _measure_bytes_per_s_once(
        weights[0].device, dtype, buffer_bytes, torch.get_num_threads()
    )


@cache
def _measure_bytes_per_s_once(
    device: torch.device,
    dtype: torch.dtype,
    buffer_bytes: int,
    threads: int,
) -> float | None:
    """Measures the bandwidth, bytes per second; None if the buffer does not fit. ``threads`` is
    only a key of the cache.
    """
    if 2 * buffer_bytes > get_free_bytes(device):
        return None

    def now_s() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    with torch.inference_mode():
        moved_bytes, seconds = time_fastest_kernel(device, dtype, buffer_bytes, _REPEATS, now_s)
    return moved_bytes / seconds


def get_free_bytes(device: torch.device) -> int:
    """Returns the bytes that can be allocated on the device now; on a CPU its free pages."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class KernelTime(NamedTuple):
    """Bytes that a kernel streamed, and its time."""

    moved_bytes: int
    seconds: float


def time_fastest_kernel(
    device: torch.device,
    dtype: torch.dtype,
    buffer_bytes: int,
    repeats: int,
    now_s: Callable[[], float],
) -> KernelTime:
    """Times a sum, a matrix-vector product (as in decoding) and a copy of one half over the other,
    on a buffer of normal noise; returns the buffer's bytes and the shortest time.
    """
    columns = 4096
    count = max(2, 2 * round(buffer_bytes / (2 * MAX_BLOCK_BYTES)))
    rows = max(1, min(MAX_BLOCK_BYTES, buffer_bytes // count) // (columns * dtype.itemsize))
    blocks = torch.randn(count, rows, columns, dtype=dtype, device=device)
    vector = torch.randn(columns, dtype=dtype, device=device)
    pairs = list(zip(blocks[: count // 2], blocks[count // 2 :], strict=True))
    kernels: tuple[Callable[[], object], ...] = (
        lambda: [block.sum() for block in blocks],
        lambda: [torch.mv(block, vector) for block in blocks],
        lambda: [half.copy_(source) for half, source in pairs],
    )
    shortest_s = math.inf
    for kernel in kernels:
        kernel()  # not timed
        for _ in range(repeats):
            start_s = now_s()
            kernel()
            shortest_s = min(shortest_s, now_s() - start_s)
    return KernelTime(blocks.numel() * dtype.itemsize, shortest_s)
