"""A transformers causal LM as it is, behind the engine's interface.

It is run with additive masks by kind of layer, explicit position ids and the slot cache.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from spec_bench.core import processes
from spec_bench.engine.architectures import longest_sequence
from spec_bench.engine.attention import FROM, LayerMasks, has_kernels, takes_spans
from spec_bench.engine.cache import LayerLayout, SlotCache, WritePlan
from spec_bench.engine.model import ForwardOutput, ForwardTimer, Layers
from spec_bench.engine.recorder import Recorder, why_not_recorded
from spec_bench.settings.fields import one_line
from spec_bench.system.errors import UsageError

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
    products: str = ""  # how a CPU multiplies, see `products.describe_ways`

    def __post_init__(self) -> None:
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.embedded = self.vocab_size
        config = self.module.config.get_text_config()
        self.max_positions = longest_sequence(config)
        self.mask_token: int | None = getattr(config, "pard_token", None)
        self.timer = ForwardTimer(self.device)
        self.dtype = self.module.dtype
        self.masks = LayerMasks(config, self.dtype)
        self._blocks = FusedBlocks(self.module, self.compile)
        self.fused = self._blocks.able  # whether its passes are compiled
        # What the cache is called since transformers 5.24, and before.
        takes = signature(type(self.module).forward).parameters
        self.cache_name = "cache" if "cache" in takes else "past_key_values"
        self._layouts = self._layers()
        self._kernels = all(
            has_kernels(layout.device, layout.key_dim, layout.value_dim) for layout in self._layouts
        )
        self.bytes_per_slot = sum(layout.bytes_per_slot for layout in self._layouts)
        self.hidden_size: int = config.hidden_size
        self.blocks: int = config.num_hidden_layers
        self.recorder: Recorder | None = None
        # Attention over a longer prefix is split, which reads the keys sooner than a masked pass.
        self.split_from = FROM if self._kernels and takes_spans(self.module) else None
        here = all(layout.device == self.device for layout in self._layouts)
        if not self.compile.startswith("static") or self.device.type != "cuda" or not here:
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
        self.module(input_ids=token, use_cache=True, **{self.cache_name: cache})
        if not any(layer.is_initialized for layer in cache.layers):
            raise UsageError("it keeps no keys and values of past tokens")
        kept = [(layer.keys, layer.values) for layer in cache.layers]
        return [
            LayerLayout(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)
            for keys, values in kept
        ]

    @contextmanager
    def disable_compilation(self) -> Iterator[None]:
        """Within it the module itself is called, whatever was compiled of it, and nothing timed."""
        fused = self.fused
        self.fused = False
        try:
            yield
        finally:
            self.fused = fused
            self.timer.take_s()

    def unfuse(self, error: Exception) -> None:
        """Calls the module from now on: what was compiled of it fails."""
        log.warning("engine.compile=%s: passes are not fused: %s", self.compile, one_line(error))
        self.fused = self._blocks.on = False

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
        count = tokens.shape[1]
        reach = visible.shape[2]
        plain = prefill or not self.fused
        if self.split_from is None or shared < self.split_from or not plain:
            shared = 0
        cache.begin(WritePlan(row, starts, count, reach), views=plain)
        self._blocks.on = not plain
        output: Any = self.module(
            input_ids=tokens,
            attention_mask=self.masks.make_masks(visible, shared),
            position_ids=positions,
            use_cache=True,
            output_hidden_states=bool(needs_hidden),
            logits_to_keep=logits_to_keep,
            **{self.cache_name: cache},
        )
        self._blocks.on = False
        cache.end()
        logits = output.logits
        if logits.shape[-1] > self.vocab_size:  # padded rows of the embedding
            logits = logits[..., : self.vocab_size]
        hidden = [output.hidden_states[place].to(self.device) for place in needs_hidden]
        joined = torch.cat(hidden, dim=-1) if len(hidden) > 1 else hidden[0] if hidden else None
        self.timer.stop()
        return ForwardOutput(logits.to(self.device), joined)


# How a model's blocks are compiled: the choices of ``engine.compile``.
#
# ``none`` calls them, and so does ``static``, of which a GPU records whole iterations. ``dynamo``
# runs a block's kernels without its modules' Python: the same numbers. ``inductor`` fuses kernels
# too; ``static_inductor`` records those. One block is compiled for all of its kind, and again for
# each kind of pass: one token or several, one row or several, which start at one slot or not. A
# prompt's pass runs once, so its blocks are called.
COMPILE = {  # backends
    "none": None,
    "static": None,
    "static_inductor": "inductor",
    "dynamo": "eager",
    "inductor": "inductor",
}
# Elements that a thread is given at least: an iteration's fused kernels have thousands, and to wake
# a second thread takes longer than those (inductor's own: 512).
_CHUNK = 1 << 14


def block_lists(module: nn.Module, count: int) -> list[str]:
    """Returns the names of a module's lists of ``count`` parts: its blocks, if there is one."""
    parts = module.named_modules()
    return [n for n, part in parts if isinstance(part, nn.ModuleList) and len(part) == count]


class FusedBlocks:
    """A module's blocks, compiled while ``on``; each is given its own layer of the cache."""

    def __init__(self, module: PreTrainedModel, how: str) -> None:
        self.on = False
        backend = COMPILE[how]
        found = block_lists(module, module.config.get_text_config().num_hidden_layers)
        self.able = backend is not None and len(found) == 1
        if backend is not None and not self.able:
            log.warning("engine.compile=%s: passes are not fused: its blocks are not one list", how)
        if backend is None or not self.able:
            return
        # Target and drafts may share code, and every kind of pass is a graph of its own.
        torch._dynamo.config.cache_size_limit = 64  # by its name in torch 2.6, too
        options: Any = {"cpp.min_chunk_size": _CHUNK} if backend == "inductor" else None
        if options and torch.backends.mkldnn.is_available():
            # Inductor's own way with packed matrices takes constants alone, and these are inputs.
            from torch._inductor.lowering import fallback_handler, lowerings

            packed = torch.ops.mkldnn._linear_pointwise
            for each in (packed, packed.default, packed.binary):
                lowerings[each] = fallback_handler(each, add_to_fallback_set=False)
        self._run = torch.compile(_plain, dynamic=True, backend=backend, options=options)
        for place, block in enumerate(cast(Any, module.get_submodule(found[0]))):
            block.forward = partial(self._forward, block, place)

    def _forward(self, block: nn.Module, place: int, *given: Any, **named: Any) -> Any:
        if not self.on:
            return _plain(block, *given, **named)
        for key, value in named.items():
            named[key] = value.layers[place] if isinstance(value, SlotCache) else value
        return self._run(block, *given, **named)


def _plain(block: Any, *given: Any, **named: Any) -> Any:
    return type(block).forward(block, *given, **named)
