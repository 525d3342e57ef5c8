"""Memory of recordings: what one frees the next of its pool is given, as by torch's allocator.

The rules are those of CUDACachingAllocator: sizes are multiples of 512 bytes, blocks of up to 1 MiB
and larger ones lie apart, the smallest that fits is taken, what is left of it stays free, and free
neighbours are joined. A recording's intermediate values are free when it ends; so a tensor that a
later recording leaves in the same pool is overwritten by every replay of the earlier one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map

_UNIT, _SMALL = 512, 2**20
_SEGMENT = {False: 2 * 2**20, True: 20 * 2**20}  # bytes that are asked for at once, by large


class Block(NamedTuple):
    """A piece of a segment; of those that fit the least is taken."""

    large: bool
    size: int
    segment: int
    start: int


class SimPool:
    """One pool."""

    def __init__(self):
        self._segments = []
        self._free = []
        self._blocks = {}  # that are taken, by the storage that lies there

    def moved(self, result, given):
        """What a recorded call made of what it was given, with all that is new in this pool."""
        tensors = [x for x in tree_flatten(given)[0] if isinstance(x, torch.Tensor)]
        before = {x.untyped_storage()._cdata for x in tensors}

        def there(x):
            new = isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in before
            return self._copied(x) if new and x.numel() else x

        return tree_map(there, result)

    def _copied(self, like):
        spans = zip(like.shape, like.stride(), strict=True)
        span = 1 + sum((count - 1) * stride for count, stride in spans)
        block = self._take(span * like.element_size())
        memory = self._segments[block.segment]
        flat = torch.frombuffer(memory, dtype=like.dtype, count=span, offset=block.start)
        self._blocks[flat.untyped_storage()._cdata] = block
        return flat.as_strided(like.shape, like.stride()).copy_(like)

    def _take(self, count):
        size = -(-count // _UNIT) * _UNIT
        large = size > _SMALL
        fits = [block for block in self._free if block.large == large and block.size >= size]
        if not fits:
            self._segments.append(bytearray(max(_SEGMENT[large], size)))
            fits = [Block(large, len(self._segments[-1]), len(self._segments) - 1, 0)]
            self._free += fits
        best = min(fits)
        self._free.remove(best)
        rest = best._replace(size=best.size - size, start=best.start + size)
        self._free += [rest] if rest.size else []
        return best._replace(size=size)

    def freed(self, storage):
        """Nothing on the device needs a storage any more; its block can be given out again."""
        block = self._blocks.pop(storage, None)
        if block is None:
            return
        for other in list(self._free):
            first, second = sorted((block, other), key=lambda each: each.start)
            if block.segment == other.segment and first.start + first.size == second.start:
                self._free.remove(other)
                block = first._replace(size=first.size + second.size)
        self._free.append(block)
