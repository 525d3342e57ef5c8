"""A causal language model as the decoders see it: tokens at slots in, logits out.

``LanguageModel`` is the interface; ``HuggingFaceModel`` runs any transformers causal LM as it is,
through a 4D additive mask, explicit position ids and the slot cache. The engine knows nothing about
tokenisation, sampling or drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from spec_bench.engine.cache import LayerLayout, SlotCache, WritePlan
from spec_bench.engine.stopwatch import ForwardTimer

# ``none`` calls the module. ``graph`` replays its kernels without the modules' Python around them:
# the same numbers, some seconds to capture. ``inductor`` fuses kernels and takes a minute or more.
COMPILE = {"none": None, "graph": "eager", "inductor": "inductor"}


class ForwardOutput(NamedTuple):
    """What a pass returns.

    Attributes:
        logits: [R, T', V], T' = T or the last ``logits_to_keep``.
        hidden: [R, T, D] last hidden states, None unless asked for.
    """

    logits: Tensor
    hidden: Tensor | None


class ModelCache(Protocol):
    """What the decoding loop needs of a cache."""

    bytes: int

    def commit(self, row: int, length: int, nodes: Sequence[int]) -> None: ...

    def move_row(self, source: int, target: int, length: int, start: int = 0) -> None: ...


class LanguageModel(Protocol):
    """Anything that can be drafted with or verified against.

    Attributes:
        vocab_size: V, the tokens that exist (padded embedding rows are cut).
        parameters: exact parameter count, shared tensors once.
        max_positions: longest sequence, or None where there is no limit.
        device: where tokens go in and logits come out.
        timer: seconds in forward passes.
        bytes_per_slot: bytes that one token's keys and values take.
        hidden_size: D, the width of the hidden states.
    """

    vocab_size: int
    parameters: int
    max_positions: int | None
    device: torch.device
    timer: ForwardTimer
    bytes_per_slot: int
    hidden_size: int

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings. tokens [...] -> [..., D]."""
        ...

    def allocate(self, rows: int, slots: int) -> Any:
        """A cache for ``rows`` sequences of up to ``slots`` tokens."""
        ...

    def forward(
        self,
        cache: Any,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        logits_to_keep: int = 0,
        needs_hidden: bool = False,
    ) -> ForwardOutput:
        """Runs T tokens per row and stores them at slots starts[r], starts[r] + 1, ...

        Args:
            cache: from ``allocate``.
            rows: a contiguous range of the cache's rows, R of them.
            starts: R first slots.
            tokens: [R, T].
            positions: [R, T].
            visible: [R, T, S] bool, which slots each token attends to.
            logits_to_keep: 0 for all T, else the last so many.
            needs_hidden: whether to return hidden states.

        Returns:
            Logits, and hidden states if asked for.
        """
        ...


def capture(module: PreTrainedModel, how: str) -> Callable[..., Any]:
    """The module's forward pass, captured once for all lengths.

    Args:
        module: the model.
        how: a key of ``COMPILE``.
    """
    backend = COMPILE[how]
    if backend is None:
        return module
    # Target and drafts may share one forward code, and every kind of pass is a graph of its own.
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(module, dynamic=True, backend=backend)


@dataclass
class HuggingFaceModel:
    """A transformers causal LM behind the ``LanguageModel`` interface.

    Args:
        module: the model, in eval mode.
        vocab_size: tokens that exist.
        device: where input goes; outputs are brought back here.
        compile: how the forward pass is captured, one of ``COMPILE``.
    """

    module: PreTrainedModel
    vocab_size: int
    device: torch.device
    compile: str = "none"

    def __post_init__(self) -> None:
        self.parameters = sum(p.numel() for p in self.module.parameters())
        config = self.module.config
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self.timer = ForwardTimer(self.device)
        self.dtype = self.module.dtype
        self._run = capture(self.module, self.compile)
        self._layouts = self._probe()
        self.bytes_per_slot = sum(layout.bytes_per_slot for layout in self._layouts)
        self.hidden_size: int = config.hidden_size

    @torch.inference_mode()
    def _probe(self) -> list[LayerLayout]:
        """Runs one token to learn each layer's key and value shapes, dtype and device."""
        cache = DynamicCache()
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.module(input_ids=token, past_key_values=cache, use_cache=True)
        return [
            LayerLayout(
                layer.keys.shape[1],
                layer.keys.shape[3],
                layer.values.shape[3],
                layer.keys.dtype,
                layer.keys.device,
            )
            for layer in cache.layers
        ]

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        table = self.module.get_input_embeddings()
        return table(tokens.to(self.device)).to(self.device)

    def allocate(self, rows: int, slots: int) -> SlotCache:
        return SlotCache(self._layouts, rows, slots)

    @torch.inference_mode()
    def forward(
        self,
        cache: SlotCache,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        logits_to_keep: int = 0,
        needs_hidden: bool = False,
    ) -> ForwardOutput:
        self.timer.start()
        cache.begin(WritePlan(rows, starts, tokens.shape[1], visible.shape[2]))
        hidden_at = torch.zeros((), dtype=self.dtype, device=self.device)
        mask = hidden_at.masked_fill(~visible, torch.finfo(self.dtype).min).unsqueeze(1)
        output = self._run(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            output_hidden_states=needs_hidden,
        )
        logits = output.logits[..., : self.vocab_size].to(self.device)
        hidden = output.hidden_states[-1].to(self.device) if needs_hidden else None
        self.timer.stop()
        return ForwardOutput(logits, hidden)
