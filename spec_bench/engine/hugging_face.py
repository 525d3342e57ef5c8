"""A transformers causal LM as it is, behind the engine's interface.

It is run with additive masks by kind of layer, explicit position ids and the slot cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from spec_bench.core import processes
from spec_bench.engine.architectures import longest_sequence
from spec_bench.engine.attention import FROM, LayerMasks, Mask, has_kernels, splits
from spec_bench.engine.cache import LayerLayout, SlotCache, WritePlan
from spec_bench.engine.model import ForwardOutput, ForwardTimer, Layers
from spec_bench.engine.recorder import Recorder, why_not_recorded
from spec_bench.settings.fields import one_line

log = logging.getLogger(__name__)


@dataclass
class HuggingFaceModel:
    """A transformers causal LM behind the ``LanguageModel`` interface; a ValueError for one whose
    layers keep anything but keys and values of each token.
    """

    module: PreTrainedModel  # in eval mode
    vocab_size: int  # tokens that exist
    device: torch.device  # where input goes; outputs are brought back here
    compile: str = "none"  # how the forward pass is captured, one of `COMPILE`

    def __post_init__(self) -> None:
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.embedded = self.vocab_size
        config = self.module.config.get_text_config()
        self.max_positions = longest_sequence(config)
        self.mask_token: int | None = getattr(config, "pard_token", None)
        self.timer = ForwardTimer(self.device)
        self.dtype = self.module.dtype
        self.masks = LayerMasks(config, self.dtype)
        self._run = capture(self.module, self.compile)
        self._layouts = self._layers()
        self._kernels = all(
            has_kernels(layout.device, layout.key_dim, layout.value_dim) for layout in self._layouts
        )
        self.bytes_per_slot = sum(layout.bytes_per_slot for layout in self._layouts)
        self.hidden_size: int = config.hidden_size
        self.blocks: int = config.num_hidden_layers
        self.recorder: Recorder | None = None
        # Attention over a longer prefix is split, which reads the keys sooner than a masked pass.
        self.split_from = FROM if self._kernels and splits(self.module) else None
        here = all(layout.device == self.device for layout in self._layouts)
        if self.compile not in RECORDS or self.device.type != "cuda" or not here:
            return
        if processes.count() > 1:
            return  # communication between processes is not recorded
        if why := why_not_recorded(config):
            log.warning("engine.compile=%s: iterations stay eager: %s", self.compile, why)
        else:
            self.recorder = Recorder(self.device)

    @torch.inference_mode()
    def _layers(self) -> list[LayerLayout]:
        """Runs one token to learn each layer's key and value shapes, dtype and device; a ValueError
        if nothing of it is kept.
        """
        cache = DynamicCache()
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.module(input_ids=token, past_key_values=cache, use_cache=True)
        if not any(layer.is_initialized for layer in cache.layers):
            raise ValueError("it keeps no keys and values of past tokens")
        kept = [(layer.keys, layer.values) for layer in cache.layers]
        return [
            LayerLayout(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)
            for keys, values in kept
        ]

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Within it the module itself is called, whatever was captured of it, and nothing timed."""
        captured, self._run = self._run, self.module
        try:
            yield
        finally:
            self._run = captured
            self.timer.take_s()

    @property
    def fused(self) -> bool:
        """Whether its passes are compiled."""
        return self._run is not self.module

    def unfuse(self, error: Exception) -> None:
        """Calls the module from now on: what was compiled of it fails."""
        log.warning("engine.compile=%s: passes are not fused: %s", self.compile, one_line(error))
        self._run = self.module

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        table = self.module.get_input_embeddings()
        return table(tokens.to(self.device)).to(self.device)

    def project(self, hidden: Tensor) -> Tensor:
        last = self.module.get_output_embeddings()
        logits: Tensor = last(hidden.to(last.weight.device))
        return logits[..., : self.vocab_size].to(self.device)

    def allocate(self, rows: int, slots: int) -> SlotCache:
        return SlotCache(self._layouts, rows, slots)

    @torch.inference_mode()
    def forward(
        self,
        cache: SlotCache,
        starts: Sequence[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        row: int = 0,
        logits_to_keep: int = 0,
        needs_hidden: Layers = (),
        prefill: bool = False,
        shared: int = 0,
    ) -> ForwardOutput:
        self.timer.start()
        count, reach = tokens.shape[1], visible.shape[2]
        plain = self._run is self.module
        if self.split_from is None or shared < self.split_from or not plain:
            shared = 0
        cache.begin(WritePlan(row, starts, count, reach), views=plain)
        given = tokens, positions, self.masks.by_kind(visible, shared)
        outputs = _called(self._run, cache, *given, needs_hidden, logits_to_keep=logits_to_keep)
        cache.end()
        logits = outputs[0]
        if logits.shape[-1] > self.vocab_size:  # padded rows of the embedding
            logits = logits[..., : self.vocab_size]
        logits = logits.to(self.device)
        hidden = outputs[1].to(self.device) if needs_hidden else None
        self.timer.stop()
        return ForwardOutput(logits, hidden)


def _called(
    run: Callable[..., Any],
    cache: SlotCache,
    tokens: Tensor,
    positions: Tensor,
    mask: Mask,
    layers: Layers,
    **more: int,
) -> tuple[Tensor, ...]:
    """A module's logits and, if asked for, the hidden states of some places, side by side."""
    output = run(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        output_hidden_states=bool(layers),
        **more,
    )
    if not layers:
        return (output.logits,)
    chosen = [output.hidden_states[place] for place in layers]
    if len(chosen) == 1:
        return output.logits, chosen[0]
    return output.logits, torch.cat([each.to(chosen[0].device) for each in chosen], dim=-1)


# How a model's forward pass is captured: the choices of ``engine.compile``.
#
# ``none`` calls the module, and so does ``static``, of which a GPU records whole iterations.
# ``dynamo`` runs its kernels without the modules' Python around them: the same numbers, some
# seconds to trace. ``inductor`` fuses kernels and takes a minute or more; ``static_inductor``
# records those.
COMPILE = {  # backends
    "none": None,
    "static": None,
    "static_inductor": "inductor",
    "dynamo": "eager",
    "inductor": "inductor",
}
RECORDS = ("static", "static_inductor")
_FILTERS = hasattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe")  # since torch 2.8
# Elements that a thread is given at least: an iteration's fused kernels have thousands, and to wake
# a second thread takes longer than those (inductor's own: 512).
_CHUNK = 1 << 14
_numbers = count()


def capture(module: PreTrainedModel, how: str) -> Callable[..., Any]:
    """Returns the module's forward pass, in eval mode, captured once for all lengths; ``how`` is of
    ``COMPILE``.

    What a module holds does not change while it decodes. Checking its thousands of parts and
    weights before every pass costs up to a tenth of one, so that is left out. To tell modules of
    one class apart, each gets code of its own, by which captured passes are kept.
    """
    backend = COMPILE[how]
    if backend is None:
        return module
    captured_module = module

    def forward(**given: Any) -> Any:
        return captured_module(**given)

    code = forward.__code__.replace(co_name=f"forward_{next(_numbers)}")
    renamed = FunctionType(code, globals(), code.co_name, None, forward.__closure__)
    # Target and drafts may share code further in, and every kind of pass is a graph of its own.
    torch._dynamo.config.recompile_limit = 64
    options: dict[str, Any] = {"guard_filter_fn": _kept} if _FILTERS else {}
    if backend == "inductor":
        options["cpp.min_chunk_size"] = _CHUNK
    return torch.compile(renamed, dynamic=True, backend=backend, options=options or None)


def _kept(guards: Sequence[Any]) -> list[bool]:
    """Returns which checks are made before a pass: not those of the module's own contents."""
    return [not each.name.startswith("captured_module.") for each in guards]
