"""A causal language model as the decoders see it: tokens at slots in, logits out.

``LanguageModel`` is the interface; ``HuggingFaceModel`` runs a transformers causal LM as it is,
through additive masks by kind of layer, explicit position ids and the slot cache. The engine knows
nothing about tokenisation, sampling or drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from spec_bench.core.transfer import Known, places
from spec_bench.engine import processes
from spec_bench.engine.cache import LayerLayout, SlotCache, WritePlan
from spec_bench.engine.inner_masks import attention_masks
from spec_bench.engine.static_pass import MOST_TOKENS, Buffers, Kind, StaticPasses
from spec_bench.engine.stopwatch import ForwardTimer

# ``none`` calls the module. ``static`` runs it over fixed buffers, which a GPU records and replays.
# ``dynamo`` runs its kernels without the modules' Python around them: the same numbers, some
# seconds to trace. ``inductor`` fuses kernels and takes a minute or more.
COMPILE = {"none": None, "static": None, "dynamo": "eager", "inductor": "inductor"}  # backends


Layers = tuple[int, ...]
"""Which entries of transformers' ``hidden_states`` are wanted: 0 is the embedding, i the input of
block i, the last one is after the final norm."""
LAST: Layers = (-1,)


class ForwardOutput(NamedTuple):
    """What a pass returns.

    Attributes:
        logits: [R, T', V], T' = T or the last ``logits_to_keep``.
        hidden: [R, T, D] hidden states, those of several places side by side; None unless asked
            for.
    """

    logits: Tensor
    hidden: Tensor | None


class ModelCache(Protocol):
    """What the decoding loop needs of a cache."""

    bytes: int

    def grow(self, rows: int, slots: int) -> None: ...

    def commit(self, row: int, length: int, nodes: Sequence[int]) -> None: ...

    def commit_all(self, lengths: Sequence[int], nodes: Tensor) -> None: ...

    def move_slots(self, sources: Tensor, targets: Tensor) -> None: ...

    def move_row(self, source: int, target: int, length: int, start: int = 0) -> None: ...


class LanguageModel(Protocol):
    """Anything that can be drafted with or verified against.

    Attributes:
        vocab_size: V, the tokens that exist (padded embedding rows are cut).
        embedded: rows of the embedding, padded ones too.
        parameters: exact parameter count, shared tensors once.
        max_positions: longest sequence, or None where there is no limit.
        device: where tokens go in and logits come out.
        timer: seconds in forward passes.
        bytes_per_slot: bytes that one token's keys and values take.
        hidden_size: D, the width of the hidden states.
        blocks: L, how many there are between the embedding and the final norm.
    """

    vocab_size: int
    embedded: int
    parameters: int
    max_positions: int | None
    device: torch.device
    timer: ForwardTimer
    bytes_per_slot: int
    hidden_size: int
    blocks: int

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings. tokens [...] -> [..., D]."""
        ...

    def project(self, hidden: Tensor) -> Tensor:
        """The last layer alone. Hidden states after the final norm [..., D] -> logits [..., V]."""
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
        needs_hidden: Layers = (),
        prefill: bool = False,
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
            needs_hidden: which hidden states to return.
            prefill: whether this is a prompt's pass, which no other one repeats.

        Returns:
            Logits, and hidden states if asked for.
        """
        ...


def longest_sequence(config: PretrainedConfig) -> int | None:
    """The longest sequence that a model takes; None where its config names no limit.

    Rotary embeddings of the kind ``longrope`` turn all keys by other angles beyond the length they
    were trained for, those in a cache excepted, so such a model is taken up to that length.

    Args:
        config: of the model that reads text.
    """
    named = ("max_position_embeddings", "max_seq_len")
    limits = [getattr(config, name, None) for name in named]
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *rope.values()):
        if isinstance(one, dict) and one.get("rope_type") == "longrope":
            limits.append(one.get("original_max_position_embeddings"))
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


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

    Raises:
        ValueError: a model whose layers keep something else than keys and values of each token.
    """

    module: PreTrainedModel
    vocab_size: int
    device: torch.device
    compile: str = "none"

    def __post_init__(self) -> None:
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.embedded = self.vocab_size
        config = self.module.config.get_text_config()
        self.max_positions = longest_sequence(config)
        self.timer = ForwardTimer(self.device)
        self.dtype = self.module.dtype
        self.masks = attention_masks(self.module)
        self._run = capture(self.module, self.compile)
        self._layouts = self._layers()
        self.bytes_per_slot = sum(layout.bytes_per_slot for layout in self._layouts)
        self.hidden_size: int = config.hidden_size
        self.blocks: int = config.num_hidden_layers
        self.static: StaticPasses | None = None
        here = all(layout.device == self.device for layout in self._layouts)
        alone = processes.count() < 2  # what processes say to one another is not recorded
        if self.compile == "static" and here and alone and not self.masks.rows_apart:
            self.static = StaticPasses(self._over_buffers, self.device)

    @torch.inference_mode()
    def _layers(self) -> list[LayerLayout]:
        """Runs one token to learn each layer's key and value shapes, dtype and device.

        Raises:
            ValueError: if nothing is kept of it.
        """
        cache = DynamicCache()
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.module(input_ids=token, past_key_values=cache, use_cache=True)
        if not any(layer.is_initialized for layer in cache.layers):
            raise ValueError("it keeps no keys and values of past tokens")
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

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Calls the module itself for a while, whatever was captured of it."""
        captured, self._run = self._run, self.module
        static, self.static = self.static, None
        try:
            yield
        finally:
            self._run, self.static = captured, static

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        table = self.module.get_input_embeddings()
        return table(tokens.to(self.device)).to(self.device)

    def project(self, hidden: Tensor) -> Tensor:
        last = self.module.get_output_embeddings()
        found: Tensor = last(hidden.to(last.weight.device))
        return found[..., : self.vocab_size].to(self.device)

    def allocate(self, rows: int, slots: int) -> SlotCache:
        return SlotCache(self._layouts, rows, slots, scratch=self.static is not None)

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
        needs_hidden: Layers = (),
        prefill: bool = False,
    ) -> ForwardOutput:
        self.timer.start()
        reach = visible.shape[2]
        short = not prefill and rows.start == 0 and tokens.shape[1] <= MOST_TOKENS

        def eager() -> tuple[Tensor, ...]:
            return self._by_module(
                cache, rows, starts, tokens, positions, visible, logits_to_keep, needs_hidden
            )

        if self.static is None or not short:
            outputs = eager()
        else:
            cache.check(max(starts) + tokens.shape[1])
            kind = self.static.kind(cache, tokens, reach, logits_to_keep, needs_hidden)
            given = (tokens, positions, slots_of(starts, tokens), visible)
            outputs = self.static.forward(cache, kind, given, eager)
        logits = outputs[0]
        if logits.shape[-1] > self.vocab_size:  # padded rows of the embedding
            logits = logits[..., : self.vocab_size]
        logits = logits.to(self.device)
        hidden = outputs[1].to(self.device) if needs_hidden else None
        self.timer.stop()
        return ForwardOutput(logits, hidden)

    def _by_module(
        self,
        cache: SlotCache,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        logits_to_keep: int,
        needs_hidden: Layers,
    ) -> tuple[Tensor, ...]:
        """A pass as the module makes it: logits and, if asked for, hidden states."""
        # Most modules take all rows at once; alone, a row reads no further than it writes.
        apart = self.masks.rows_apart
        size = 1 if apart else len(starts)
        outputs = []
        for row in range(0, len(starts), size):
            part = slice(row, row + size)
            at = slice(rows.start + row, rows.start + row + size)
            reach = starts[row] + tokens.shape[1] if apart else visible.shape[2]
            plan = WritePlan(at, starts[part], tokens.shape[1], reach)
            cache.begin(plan, views=self._run is self.module)
            with self.masks.over(visible[part, :, :reach]) as mask:
                outputs.append(
                    self._run(
                        input_ids=tokens[part],
                        attention_mask=mask,
                        position_ids=positions[part],
                        past_key_values=cache,
                        use_cache=True,
                        logits_to_keep=logits_to_keep,
                        output_hidden_states=bool(needs_hidden),
                    )
                )
        cache.end()
        logits = _rows([output.logits for output in outputs])
        if not needs_hidden:
            return (logits,)
        return logits, _rows([_chosen(output.hidden_states, needs_hidden) for output in outputs])

    @torch.inference_mode()
    def _over_buffers(self, cache: SlotCache, kind: Kind, buffers: Buffers) -> tuple[Tensor, ...]:
        """A pass over buffers; no number in it but the kind's comes from the host."""
        index = buffers.rows, buffers.slots
        cache.plan = WritePlan(slice(0, kind.rows), [0] * kind.rows, kind.tokens, kind.slots, index)
        cache.views = None
        with self.masks.over(buffers.visible) as mask:
            output = self.module(
                input_ids=buffers.tokens,
                attention_mask=mask,
                position_ids=buffers.positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=kind.logits_to_keep,
                output_hidden_states=bool(kind.needs_hidden),
            )
        if not kind.needs_hidden:
            return (output.logits,)
        return output.logits, _chosen(output.hidden_states, kind.needs_hidden)

    @torch.inference_mode()
    def prepare(self, cache: SlotCache, batch: int) -> None:
        """Makes ahead of time the static passes that up to ``batch`` growing sequences need."""
        if self.static is None:
            return

        def run(kind: Kind, slots: int) -> None:
            start = slots - kind.tokens
            tokens = torch.arange(kind.rows * kind.tokens, device=self.device) % self.vocab_size
            positions = torch.arange(start, slots, device=self.device).expand(kind.rows, -1)
            visible = torch.arange(slots, device=self.device) <= positions.unsqueeze(-1)
            self.forward(
                *(cache, slice(0, kind.rows), [start] * kind.rows),
                *(tokens.view(kind.rows, -1), positions, visible),
                logits_to_keep=kind.logits_to_keep,
                needs_hidden=kind.needs_hidden,
            )

        self.static.prepare(cache, batch, run)
        self.timer.take_s()


def slots_of(starts: list[int], tokens: Tensor) -> Tensor:
    """[R, T] where tokens [R, T] go that stand side by side from their row's first slot on."""
    first = Known.of(starts).on(tokens.device).unsqueeze(1)
    return first + places(tokens.shape[1], tokens.device)


def _chosen(states: Sequence[Tensor], layers: Layers) -> Tensor:
    """The hidden states of some places, side by side."""
    if len(layers) == 1:
        return states[layers[0]]
    return torch.cat([states[place].to(states[layers[0]].device) for place in layers], dim=-1)


def _rows(parts: list[Tensor]) -> Tensor:
    """All rows in one tensor; nothing is copied where they came at once."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
