"""Records a GPU's work as graphs that are replayed with a single launch; lists models that allow
it.

A recording repeats the same kernels on the same addresses. Inputs that change between replays must
lie in buffers that are filled before; outputs that are read later must lie outside of the memory
that graphs share. ``decode.recording`` records whole iterations of decoders.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spec_bench.core.host_device import collect_constants

NEAR_TIE_GAP = 1e-4  # least gap, of logits in float32 and finer


def near_tie_gap(dtype: torch.dtype, logit: float) -> float:
    """Computes the largest gap between two logits, the larger being ``logit``, whose order rounding
    alone can reverse. In bfloat16 neighbours between 16 and 32 are 0.125 apart, and passes of two
    shapes may round a logit in either direction.
    """
    return max(NEAR_TIE_GAP, 2 * torch.finfo(dtype).eps * abs(logit))


# Types of models whose passes never wait for the device. Recording others might fail, and a failed
# recording costs more than a graph gains.
RECORDED = ("gpt_neox", "llama", "mistral", "opt", "qwen2", "qwen3")
WAITING_ROPE = ("dynamic", "longrope")  # the host reads the longest position
_WARM_UPS = 2  # calls before a recording, in which libraries initialise themselves


def explain_no_recording(config: Any) -> str:
    """Explains, from a model's text config, why its passes are not recorded; "" if they are."""
    if config.model_type not in RECORDED:
        types = ", ".join(RECORDED)
        return f"model type {config.model_type!r} is not known to record; known: {types}"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in WAITING_ROPE:
        return f"rotary embeddings of type {rope!r} wait for the device"
    return ""


class GraphRecorder:
    """Records functions as graphs on one stream, with a pool of memory that all graphs share.

    torch drops a pool permanently when its last graph is gone (pytorch#198794), for example when a
    cache grows; so a graph of a single kernel is kept in it. A failed recording leaves torch on the
    recording's stream and its pool in use: the stream is restored, and the pool replaced. Constants
    that graphs read are kept alive.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.constants: list[Tensor] = []
        self._stream = torch.cuda.Stream(device)
        self._replace_pool()

    def _replace_pool(self) -> None:
        """Makes a new pool and keeps a graph in it."""
        self._pool = torch.cuda.graph_pool_handle()
        number = torch.zeros(1, device=self._device)
        self._kept = number, self._capture_graph(lambda: number.add_(1))

    def record_graph(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Records a function as a graph, after two calls. Graphs of a pool reuse each other's
        memory, so a replay must write its results to tensors allocated outside.
        """
        try:
            return self._capture_graph(function)
        except Exception:
            self._replace_pool()
            raise

    def _capture_graph(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        caller_stream = torch.cuda.current_stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(caller_stream):
            self._stream.wait_stream(caller_stream)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    function()
            caller_stream.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            recording = torch.cuda.graph(
                graph, self._pool, self._stream, capture_error_mode="thread_local"
            )
            with recording, collect_constants(self.constants):
                function()
        return graph
