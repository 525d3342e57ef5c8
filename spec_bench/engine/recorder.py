"""Recording of a GPU's work: once as a graph, then replayed in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spec_bench.core.transfer import holding_constants

Outputs = tuple[Tensor, ...]
_WARM_UPS = 2  # before a recording: libraries set themselves up in their first calls


class Recorder:
    """Where a GPU's passes are recorded: one stream, and a pool of memory that they share.

    torch gives a pool up for good once its last graph is gone (pytorch#198794), as when a cache
    grows; so a graph of one kernel stays in it. What fails while it is recorded leaves torch on the
    recording's stream and its pool in use: the stream is put back, and the pool replaced.
    Constants that a graph reads stay too, whatever else comes to be constant.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.constants: list[Tensor] = []  # that a graph reads
        self._stream = torch.cuda.Stream(device)
        self._renew()

    def _renew(self) -> None:
        """Takes a new pool and keeps a graph in it."""
        self._pool = torch.cuda.graph_pool_handle()
        one = torch.zeros(1, device=self._device)
        self._kept = one, self._record(lambda: (one + 1,))

    def record(self, function: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        """The function as a graph, with what its replays overwrite."""
        try:
            return self._record(function)
        except Exception:
            self._renew()
            raise

    def _record(self, function: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        now = torch.cuda.current_stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(now):
            self._stream.wait_stream(now)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    function()
            now.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with (
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
                holding_constants(self.constants),
            ):
                outputs = function()
        return graph, outputs
