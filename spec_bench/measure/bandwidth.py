"""Memory bandwidth as a job finds it: a buffer of its target's size, read again and again.

Decoding reads the target's weights call after call. A buffer of their size stays in caches as far
as they do, so bytes over this bandwidth also bound the passes of small models.

Knows torch; nothing about decoders.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import nn

BLOCK_BYTES = 2**30  # of the streamed buffer: a kernel's 32-bit indices reach all of it
LEAST_BYTES, MOST_BYTES = 2**20, 2**30
_REPEATS = 5
_DRAWN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # dtypes that noise has


def measured_bandwidth(model: nn.Module) -> float | None:
    """Bytes per second of the device that holds a model, in the model's dtype and torch's threads.

    A process measures each device, dtype and size once.

    Args:
        model: on one device, or its first layers on the first of several.

    Returns:
        The fastest of a sum, a matrix-vector product and a copy, best of five; None if the buffer
        does not fit.
    """
    weights = list(model.parameters())
    if not weights:
        return None
    size = sum(each.numel() * each.element_size() for each in weights)
    buffer_bytes = min(max(size, LEAST_BYTES), MOST_BYTES)
    dtype = weights[0].dtype if weights[0].dtype in _DRAWN else torch.float32
    return _measured(weights[0].device, dtype, buffer_bytes, torch.get_num_threads())


@cache
def _measured(
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
    """Bytes that a buffer of normal noise has, and seconds of the fastest way through it.

    Two ways read it, a sum and a matrix-vector product (what decoding does); a copy of one half
    over the other moves as many bytes.
    """
    rows, columns, count = _blocks(buffer_bytes, dtype)
    blocks = torch.randn(count, rows, columns, dtype=dtype, device=device)
    vector = torch.randn(columns, dtype=dtype, device=device)
    pairs = list(zip(blocks[: count // 2], blocks[count // 2 :], strict=True))
    ways: tuple[Callable[[], object], ...] = (
        lambda: [block.sum() for block in blocks],
        lambda: [torch.mv(block, vector) for block in blocks],
        lambda: [to.copy_(source) for to, source in pairs],
    )
    seconds = min(shortest_s(work, repeats, now_s) for work in ways)
    return blocks.numel() * dtype.itemsize, seconds


def _blocks(buffer_bytes: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """(rows, columns, an even number of blocks) of a buffer of about that many bytes."""
    columns, count = 4096, max(2, 2 * round(buffer_bytes / (2 * BLOCK_BYTES)))
    block = min(BLOCK_BYTES, buffer_bytes // count)
    return max(1, block // (columns * dtype.itemsize)), columns, count


def shortest_s(work: Callable[[], object], repeats: int, now_s: Callable[[], float]) -> float:
    """Wall seconds of the fastest run, after one that is not timed."""
    work()
    shortest_s = math.inf
    for _ in range(repeats):
        start_s = now_s()
        work()
        shortest_s = min(shortest_s, now_s() - start_s)
    return shortest_s
