"""Memory bandwidth as a job finds it: a buffer of its target's size, read again and again.

Decoding reads the target's weights call after call. A buffer of their size stays in caches as far
as they do, so bytes over this bandwidth also bound the passes of small models.

Knows torch; nothing about decoders.
"""

from __future__ import annotations

import time
from functools import cache

import torch
from torch import nn

from spec_bench.measure.ceilings import fastest_stream, free_bytes

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
        _, moved_bytes, seconds = fastest_stream(device, dtype, buffer_bytes, _REPEATS, now_s)
    return moved_bytes / seconds
