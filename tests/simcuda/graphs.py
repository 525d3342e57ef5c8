"""CUDA graphs on the simulated device: a tape of what was dispatched, played on the same memory.

As on CUDA a replay reads and writes the tensors of the recording and nothing else: whatever the
host computed meanwhile, and every number that it put into a call, is as it was when recorded. And
what makes the host wait, or copies from its memory, may not be recorded. Unlike CUDA a recording
also computes, so that its outputs mean something at once.

Three faults of torch's recordings are kept. A pool of memory is given up for good with its last
graph (pytorch#198794). A recording that fails leaves its stream current, and its pool in use.
What is computed while recording lies in the pool, where memory is handed on by the rules of
CUDACachingAllocator: sizes are multiples of 512 bytes, blocks of up to 1 MiB and larger ones lie
apart, the smallest that fits is taken, what is left of it stays free, and free neighbours are
joined. A recording's intermediate values are free when it ends; so a tensor that a later recording
leaves in the same pool is overwritten by every replay of the earlier one.
"""

from collections import defaultdict
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import NamedTuple
from weakref import finalize

import torch

_UNIT, _SMALL = 512, 2**20


def leaves(given):
    """All that operations are given or make, out of lists, tuples and dicts."""
    if isinstance(given, (list, tuple)):
        return [leaf for each in given for leaf in leaves(each)]
    return leaves(tuple(given.values())) if isinstance(given, dict) else [given]


def mapped(function, given):
    """The same with every leaf replaced; many times as fast as torch's own trees."""
    if isinstance(given, (list, tuple)):
        return type(given)([mapped(function, each) for each in given])
    if isinstance(given, dict):
        return {key: mapped(function, each) for key, each in given.items()}
    return function(given)


_SEGMENT = {False: 2 * 2**20, True: 20 * 2**20}  # bytes that are asked for at once, by large


class Block(NamedTuple):
    """A piece of a segment; of those that fit the least is taken."""

    large: bool
    size: int
    segment: int
    start: int


class SimPool:
    def __init__(self):
        self._segments = []
        self._free = []
        self._blocks = {}  # that are taken, by the storage that lies there

    def moved(self, result, given):
        """What a recorded call made of what it was given, with all that is new in this pool."""
        tensors = [x for x in leaves(given) if isinstance(x, torch.Tensor)]
        before = {x.untyped_storage()._cdata for x in tensors}

        def there(x):
            new = isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in before
            return self._copied(x) if new and x.numel() else x

        return mapped(there, result)

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


class SimStream:
    """``torch.cuda.Stream``."""

    def __init__(self, sim):
        self._sim = sim

    def synchronize(self):
        self._sim.waited("stream")

    def wait_stream(self, other):
        """Nothing runs at the same time here."""


class SimPools:
    """How many graphs each pool of memory holds; a pool that held one and holds none is dead."""

    def __init__(self):
        self._numbers, self._graphs, self._recording = count(1), {}, set()
        self.memory = defaultdict(SimPool)  # of each pool

    def handle(self):
        """``torch.cuda.graph_pool_handle``."""
        return (0, next(self._numbers))

    @contextmanager
    def recording(self, pool, graph):
        """A recording into a pool, or into one of its own."""
        if pool in self._recording:
            raise RuntimeError("already recording to mempool_id")
        if self._graphs.get(pool, 1) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self._recording.add(pool)
        yield
        self._recording.remove(pool)  # not after an error
        self._graphs[pool] = self._graphs.get(pool, 0) + 1
        finalize(graph, self._gone, pool)

    def _gone(self, pool):
        self._graphs[pool] -= 1


class SimGraph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self):
        self.tape = []
        self._sim = None

    def replay(self):
        self._sim.issued += 1
        self._sim.replays += 1
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            for func, args, kwargs, kept in self.tape:
                if func.is_view:
                    continue  # the same memory as before
                new = func(*args, **kwargs)
                for old, value in zip(leaves(kept), leaves(new), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != value.data_ptr():
                        old.copy_(value)


def graph_answers(sim):
    """What ``torch.cuda`` answers about graphs and streams while the mode ``sim`` is on."""
    sim.stream, pools = SimStream(sim), sim.pools

    @contextmanager
    def graph(made, pool=None, stream=None, **_):
        assert sim.tape is None, "recordings do not nest"
        before = sim.stream
        sim.stream = stream or SimStream(sim)
        pool = pool or pools.handle()
        try:
            with pools.recording(pool, made):
                made._sim, sim.tape, sim.pool = sim, made.tape, pools.memory[pool]
                yield
        finally:
            sim.tape = None
        sim.stream = before  # not after an error

    @contextmanager
    def current(stream):
        before, sim.stream = sim.stream, stream
        try:
            yield
        finally:
            sim.stream = before

    return {
        "CUDAGraph": SimGraph,
        "graph": graph,
        "graph_pool_handle": pools.handle,
        "Stream": lambda *_: SimStream(sim),
        "stream": current,
        "current_stream": lambda *_: sim.stream,
        "is_current_stream_capturing": lambda: sim.tape is not None,
        "device": lambda *_: nullcontext(),
    }


def refuse(sim, what):
    """Raises what CUDA raises where a recording is made to wait for the device."""
    if sim.tape is not None:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what}")
