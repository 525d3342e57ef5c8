"""How long an iteration should take on a GPU, from what it launches and what it reads.

The model: the host takes ``HOST_S`` to launch a kernel; the GPU takes ``KERNEL_S`` for a small one,
and reads weights, keys and values at its memory's nominal bandwidth. An iteration is a row of
stretches (drafting, sampling, the target's pass, the walk). Within one, host and GPU work at the
same time, and the GPU is done when all its bytes are read and its small kernels have run, but
not before the host has launched the last of them. A replayed graph is one launch for the host and
all its kernels for the GPU. Left out: copies between host and device, clocks that drop under load,
arithmetic (small batches are bound by memory), and all overlap of small kernels with large ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spec_bench.measure.bound import Gpu

HOST_S = 6e-6
"""Seconds of the host for each launch."""
KERNEL_S = 2.2e-6
"""Seconds of the GPU for each small kernel: norms, rotations, sums, copies."""


@dataclass(frozen=True)
class Stretch:
    """A part of an iteration.

    Attributes:
        launches: of the host.
        kernels: small ones, on the GPU.
        moved_bytes: what large kernels read and write.
    """

    launches: float
    kernels: float
    moved_bytes: float = 0.0


def iteration_s(stretches: Iterable[Stretch], gpu: Gpu) -> float:
    """Seconds from an iteration's begin until the host has its result.

    Args:
        stretches: one after the other.
        gpu: what they run on.
    """
    host_s = device_s = 0.0
    for each in stretches:
        begun_s = max(device_s, host_s)
        host_s += each.launches * HOST_S
        busy_s = each.moved_bytes / gpu.bytes_per_s + each.kernels * KERNEL_S
        device_s = max(begun_s + busy_s, host_s)
    return device_s


def bound_s(stretches: Iterable[Stretch], gpu: Gpu) -> float:
    """Seconds that the bytes alone take."""
    return sum(each.moved_bytes for each in stretches) / gpu.bytes_per_s
