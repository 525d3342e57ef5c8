"""Memory bandwidth: a GPU's nominal one, and the one that a job measures.

A job measures it on a buffer of its target's size, read repeatedly as decoding reads the weights.
Caches hold as much of the buffer as of the weights, so the roofline's bound is right for small
models, too.
"""

import math
import os
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import nn

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
