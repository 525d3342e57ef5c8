"""Moves numbers from the host to the device: constants once, an iteration's numbers in one copy.

Every ``torch.tensor(..., device="cuda")`` copies from pageable memory, and the host waits until the
device gets there. So constants are kept on the device, and the numbers of an iteration are packed,
pinned and copied in one transfer while the host goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from spec_bench.settings.former import FormerMembers

_ALIGNMENT = 8  # bytes, the size of the largest item


def cached_constant(
    values: tuple[Any, ...], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Returns a constant tensor of numbers, or of tuples of equal length, cached per device and
    type. Callers must not write to it.
    """
    element: Any = values
    while isinstance(element, tuple) and element:
        element = element[0]
    return register_constant(_make_constant(values, type(element).__name__, device, dtype))


@functools.lru_cache(maxsize=1024)  # the type tells (0, 1) from (False, True), which are equal
def _make_constant(
    values: tuple[Any, ...], kind: str, device: torch.device, dtype: torch.dtype | None
) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def cached_arange(count: int, device: torch.device) -> Tensor:
    """Returns the constant 0, 1, ..., count - 1."""
    return register_constant(_make_arange(1 << max(count - 1, 255).bit_length(), device)[:count])


@functools.lru_cache(maxsize=64)
def _make_arange(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(count).to(device)


@contextmanager
def collect_constants(tensors: list[Tensor]) -> Iterator[None]:
    """Appends every constant that this block uses to ``tensors``, because a recorded graph goes on
    reading their memory.
    """
    _keepers.append(tensors)
    try:
        yield
    finally:
        _keepers.pop()


_keepers: list[list[Tensor]] = []


def register_constant(tensor: Tensor) -> Tensor:
    """Returns a constant tensor, after registering it with ``collect_constants``."""
    if _keepers:
        _keepers[-1].append(tensor)
    return tensor


def clear_cached_constants() -> None:
    """Frees the memory of all constants."""
    _make_constant.cache_clear()
    _make_arange.cache_clear()


class HostDeviceInts(FormerMembers, list[Any]):
    """Integers held on both host and device: a list, or a list of lists of equal length."""

    former_members: ClassVar = {"on": "get_tensor"}
    _device_tensor: Tensor | None = None
    exact = True  # whether the list holds the numbers; if not, upper bounds

    def read_from_buffer(self, buffer: Tensor, maximum: int) -> None:
        """Makes the device read from ``buffer``, which is refilled before each replay. On the host,
        a flat list keeps only the upper bound ``maximum``.
        """
        self._device_tensor = buffer
        self.exact = False
        if not isinstance(self[0], list):
            self[:] = [maximum] * len(self)

    @classmethod
    def wrap(cls, numbers: Sequence[Any]) -> HostDeviceInts:
        """Wraps ``numbers``, unless they are ``HostDeviceInts`` already."""
        return numbers if isinstance(numbers, HostDeviceInts) else cls(numbers)

    @property
    def lower_bound(self) -> int:
        """A lower bound of the numbers."""
        return int(min(self)) if self.exact else 0

    @property
    def are_known_equal(self) -> bool:
        """Whether all numbers are known to be equal."""
        return self.exact and min(self) == max(self)

    def get_tensor(self, device: torch.device) -> Tensor:
        """Returns the numbers as a tensor on a device; copies them there on the first call."""
        if self._device_tensor is None or (self.exact and self._device_tensor.device != device):
            self._device_tensor = torch.tensor(self, device=device)
        return self._device_tensor.to(device)

    def plus(self, offset: int) -> HostDeviceInts:
        """Adds ``offset`` to each number, on the device too if the numbers are there."""
        if not offset:
            return self
        sums = HostDeviceInts([number + offset for number in self])
        if self._device_tensor is not None and not self._device_tensor.is_cpu:
            sums._device_tensor = self._device_tensor + offset
            sums.exact = self.exact
        return sums

    def repeat_interleave(self, times: int) -> HostDeviceInts:
        """Repeats each number ``times`` times in a row."""
        repeated_numbers = HostDeviceInts([number for number in self for _ in range(times)])
        if self._device_tensor is not None:
            repeated_numbers._device_tensor = self._device_tensor.repeat_interleave(times)
        return repeated_numbers


class CommittedTokens(list[Sequence[int]]):
    """Each row's tokens so far; the last one is the root of its tree."""

    tree_plan: Any = None  # a policy's plan of the trees, made before they grow

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        super().__init__(rows)
        # [R] numbers of tokens before the root
        self.lengths = HostDeviceInts([len(tokens) - 1 for tokens in self])
        self.roots = HostDeviceInts([tokens[-1] for tokens in self])  # [R] the last tokens


def copy_to_device(
    ints: Sequence[HostDeviceInts],
    device: torch.device,
    tensors: Sequence[Tensor] = (),
) -> list[Tensor]:
    """Copies ``ints`` and host tensors, of any shapes and types, to a device in one asynchronous
    transfer. Returns the copies of ``tensors``; ``ints`` keep their copies for
    ``HostDeviceInts.get_tensor``. Copies nothing on a CPU.
    """
    if device.type == "cpu":
        return list(tensors)
    parts = [*tensors, *(torch.tensor(part) for part in ints)]
    flat = [part.contiguous().flatten().view(torch.uint8) for part in parts]
    sizes = [-(-len(part) // _ALIGNMENT) * _ALIGNMENT for part in flat]
    packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    starts = [0, *accumulate(sizes)]
    for start, part in zip(starts, flat, strict=False):
        packed[start : start + len(part)] = part
    packed_copy = packed.to(device, non_blocking=True)
    copies = [
        packed_copy[start : start + len(bytes_)].view(part.dtype).view(part.shape)
        for start, bytes_, part in zip(starts, flat, parts, strict=False)
    ]
    for number_list, copy in zip(ints, copies[len(tensors) :], strict=True):
        number_list._device_tensor = copy
    return copies[: len(tensors)]
