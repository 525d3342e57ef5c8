"""CUDA graphs on the simulated device: a tape of what was dispatched, played on the same memory.

As on CUDA a replay reads and writes the tensors of the recording and nothing else: whatever the
host computed meanwhile, and every number that it put into a call, is as it was when recorded. And
what makes the host wait, or copies from its memory, may not be recorded. Unlike CUDA a recording
also computes, so that its outputs mean something at once.

Three faults of torch's recordings are kept. A pool of memory is given up for good with its last
graph (pytorch#198794). A recording that fails leaves its stream current, and its pool in use.
What is computed while recording lies in the pool, where memory is handed on (``pools``).
"""

from collections import defaultdict
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any
from weakref import finalize

import torch
from torch.utils._pytree import tree_flatten

from tests.simcuda.pools import SimPool

Call = tuple[Any, Any, Any, Any]


class SimStream:
    """``torch.cuda.Stream``."""

    def __init__(self, sim):
        self._sim = sim

    def synchronize(self):
        """A wait."""
        self._sim.waited("stream")

    def wait_stream(self, other):
        """Nothing runs at the same time here."""


class SimPools:
    """How many graphs each pool of memory holds; a pool that held one and holds none is dead.

    Attributes:
        memory: of each pool.
    """

    def __init__(self):
        self._numbers, self._graphs, self._recording = count(1), dict[Any, int](), set[Any]()
        self.memory = defaultdict[Any, SimPool](SimPool)

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
        """Plays the tape."""
        self._sim.issued += 1
        self._sim.replays += 1
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            for func, args, kwargs, kept in self.tape:
                self._play(func, args, kwargs, kept)

    @staticmethod
    def _play(func, args, kwargs, kept):
        if func.is_view:
            return  # the same memory as before
        new = func(*args, **kwargs)
        for old, value in zip(tree_flatten(kept)[0], tree_flatten(new)[0], strict=True):
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
        "device": lambda *_: nullcontext(),
    }


def refuse(sim, what):
    """Raises what CUDA raises where a recording is made to wait for the device."""
    if sim.tape is not None:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what}")
