"""Wraps a transformers causal LM in the engine's interface.

The wrapper passes additive masks for each kind of layer, explicit position ids and the slot cache.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from spec_bench.core import processes
from spec_bench.engine.architectures import get_max_sequence_length
from spec_bench.engine.attention import supports_spans
from spec_bench.engine.cache import LayerLayout, SlotCache, WritePlan
from spec_bench.engine.layer_masks import LayerMaskMaker
from spec_bench.engine.model import ForwardOutput, ForwardTimer, Layers
from spec_bench.engine.plain import COMPILE, PlainModel, can_run_plainly
from spec_bench.engine.recorder import GraphRecorder, explain_no_recording
from spec_bench.engine.split_attention import FROM, has_attention_kernels
from spec_bench.settings.fields import to_one_line
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)


@dataclass
class HuggingFaceModel:
    """A transformers causal LM with the ``LanguageModel`` interface. Raises UsageError if a layer
    caches anything but keys and values of each token.
    """

    module: PreTrainedModel  # in eval mode
    vocab_size: int  # number of tokens that exist
    device: torch.device  # device of inputs and outputs
    compile: str = "none"  # how the forward pass is captured, one of `COMPILE`
    products: str = ""  # ways of a CPU's products, see `products.format_product_ways`

    def __post_init__(self) -> None:
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.embedding_rows = self.vocab_size
        config = self.module.config.get_text_config()
        self.max_positions = get_max_sequence_length(config)
        self.mask_token: int | None = getattr(config, "pard_token", None)
        self.timer = ForwardTimer(self.device)
        self.dtype = self.module.dtype
        self.mask_maker = LayerMaskMaker(config, self.dtype)
        # None: the modules are called instead
        backend = COMPILE[self.compile]
        self.plain = PlainModel(self.module, backend) if can_run_plainly(self.module) else None
        self.fused = backend is not None  # whether its passes are compiled
        if self.fused and self.plain is None:
            log.warning(
                "engine.compile=%s: passes are not fused: blocks of %s are not known to compile",
                self.compile,
                type(self.module).__name__,
            )
            self.fused = False
        # The cache's argument has another name since transformers 5.24.
        forward_parameters = signature(type(self.module).forward).parameters
        self.cache_name = "cache" if "cache" in forward_parameters else "past_key_values"
        self._layouts = self._probe_layer_layouts()
        has_kernels = all(
            has_attention_kernels(layout.device, layout.key_dim, layout.value_dim)
            for layout in self._layouts
        )
        self.bytes_per_slot = sum(layout.bytes_per_slot for layout in self._layouts)
        self.hidden_size: int = config.hidden_size
        self.blocks: int = config.num_hidden_layers
        self.recorder: GraphRecorder | None = None
        # Attention over a longer prefix is split, which reads the keys sooner than a masked pass.
        self.split_from = FROM if has_kernels and supports_spans(self.module) else None
        on_device = all(layout.device == self.device for layout in self._layouts)
        if not self.compile.startswith("static") or self.device.type != "cuda" or not on_device:
            return
        if processes.count_torchrun_processes() > 1:
            return  # communication between processes cannot be recorded
        if reason := explain_no_recording(config):
            log.warning("engine.compile=%s: iterations stay eager: %s", self.compile, reason)
        else:
            self.recorder = GraphRecorder(self.device)

    @torch.inference_mode()
    def _probe_layer_layouts(self) -> list[LayerLayout]:
        """Runs one token to find each layer's key and value shapes, dtype and device. Raises
        UsageError if the model caches nothing.
        """
        cache = DynamicCache()
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.module(input_ids=token, use_cache=True, **{self.cache_name: cache})
        if not any(layer.is_initialized for layer in cache.layers):
            raise UsageError("it keeps no keys and values of past tokens")
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
        return [
            LayerLayout(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)
            for keys, values in pairs
        ]

    @contextmanager
    def uncompiled_and_untimed(self) -> Iterator[None]:
        """Calls the module itself in this block, without its compiled form and without timing."""
        fused = self.fused
        self.fused = False
        try:
            yield
        finally:
            self.fused = fused
            self.timer.take_s()

    def abandon_compiled_form(self, error: Exception) -> None:
        """Switches permanently to calling the module, because its compiled form fails."""
        log.warning("engine.compile=%s: passes are not fused: %s", self.compile, to_one_line(error))
        self.fused = False

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        table = self.module.get_input_embeddings()
        return table(tokens.to(self.device)).to(self.device)

    def project(self, hidden: Tensor) -> Tensor:
        output_layer = self.module.get_output_embeddings()
        logits = output_layer(hidden.to(output_layer.weight.device))
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
        plain = self.plain if self.plain and self.plain.supports_hooks_and_attention else None
        fused = self.fused and plain is not None and not prefill
        if self.split_from is None or shared < self.split_from or fused:
            shared = 0
        cache.begin_pass(WritePlan(row, starts, count, reach), views=not fused)
        masks = self.mask_maker.make_masks(visible, shared)
        if plain is not None:
            logits, hidden = plain.forward(
                tokens,
                masks,
                positions,
                cache,
                logits_to_keep,
                needs_hidden,
                fused=fused,
            )
        else:
            output: Any = self.module(
                input_ids=tokens,
                attention_mask=masks,
                position_ids=positions,
                use_cache=True,
                output_hidden_states=bool(needs_hidden),
                logits_to_keep=logits_to_keep,
                **{self.cache_name: cache},
            )
            logits = output.logits
            hidden = [output.hidden_states[place].to(self.device) for place in needs_hidden]
        cache.end_pass()
        if logits.shape[-1] > self.vocab_size:  # padded rows of the embedding
            logits = logits[..., : self.vocab_size]
        states = torch.cat(hidden, dim=-1) if len(hidden) > 1 else hidden[0] if hidden else None
        self.timer.stop()
        return ForwardOutput(logits.to(self.device), states)


def find_block_lists(module: nn.Module, count: int) -> list[str]:
    """Finds the names of a module's lists of ``count`` parts. A single such
    list holds its blocks.
    """
    parts = module.named_modules()
    return [n for n, part in parts if isinstance(part, nn.ModuleList) and len(part) == count]
