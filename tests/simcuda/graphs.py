"""CUDA graphs on the simulated device: a tape of what was dispatched, played on the same memory.

As on CUDA a replay reads and writes the tensors of the recording and nothing else: whatever the
host computed meanwhile, and every number that it put into a call, is as it was when recorded. And
what makes the host wait, or copies from its memory, may not be recorded. Unlike CUDA a recording
also computes, so that its outputs mean something at once.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

Call = tuple[Any, Any, Any, Any]


class SimGraph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self) -> None:
        self.tape: list[Call] = []
        self._sim: Any = None

    def replay(self) -> None:
        """Plays the tape: one launch."""
        self._sim.launches[self._sim.phase] += 1
        self._sim.replays += 1
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            for func, args, kwargs, kept in self.tape:
                self._play(func, args, kwargs, kept)

    @staticmethod
    def _play(func: Any, args: Any, kwargs: Any, kept: Any) -> None:
        if func.is_view:
            return  # the same memory as before
        new = func(*args, **kwargs)
        for old, value in zip(tree_flatten(kept)[0], tree_flatten(new)[0], strict=True):
            if isinstance(old, torch.Tensor) and old.data_ptr() != value.data_ptr():
                old.copy_(value)


def graph_answers(sim: Any) -> dict[str, Any]:
    """What ``torch.cuda`` answers about graphs and streams while the mode ``sim`` is on."""

    @contextmanager
    def graph(made: SimGraph, **_: Any) -> Any:
        assert sim.tape is None, "recordings do not nest"
        made._sim, sim.tape = sim, made.tape
        try:
            yield
        finally:
            sim.tape = None

    return {
        "CUDAGraph": SimGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 0),
        "Stream": lambda *_: SimpleNamespace(wait_stream=lambda *_: None),
        "stream": lambda *_: nullcontext(),
        "device": lambda *_: nullcontext(),
    }


def refuse(sim: Any, what: str) -> None:
    """Raises what CUDA raises where a recording is made to wait for the device."""
    if sim.tape is not None:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what}")
