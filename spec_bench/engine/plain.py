"""Runs models of Llama's family with half as many operators as transformers' modules.

A pass of a token is hundreds of small operators. On a GPU each takes some three microseconds
whatever it computes; on a CPU the modules around it take as long again. Here query and key are
rotated together, products with the same input are fused if their matrices are, a norm is a single
operator, and on a GPU the products add the residual. In float32 on a CPU the numbers equal the
modules' bit for bit, elsewhere up to rounding; ``probe.check_cached_answers`` compares them.

Letters: R rows, T tokens, H query heads, K key heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu
from transformers.activations import ACT2FN
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from spec_bench.core.host_device import cached_arange, register_constant
from spec_bench.engine.attention import NAME, SPLIT
from spec_bench.engine.fused_linear import FusedPart
from spec_bench.engine.products import PackedLinear
from spec_bench.engine.recorder import WAITING_ROPE

# How a model's blocks are compiled: the choices of ``engine.compile``.
#
# ``none`` calls them, and so does ``static``, of which a GPU records whole iterations. ``dynamo``
# runs a block's kernels without its Python: the same numbers. ``inductor`` fuses kernels too;
# ``static_inductor`` records those. One block is compiled for all of its kind, and again for each
# kind of pass: one token or several, one row or several, which start at one slot or not. A prompt's
# pass runs once, so its blocks are called.
COMPILE = {  # backends
    "none": None,
    "static": None,
    "static_inductor": "inductor",
    "dynamo": "eager",
    "inductor": "inductor",
}
# Least number of elements per thread: an iteration's fused kernels have thousands, and waking a
# second thread takes longer than these (inductor's default: 512).
INDUCTOR_OPTIONS: Any = {"cpp.min_chunk_size": 1 << 14}
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
_PARTS = ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
_ATTENTION = ("sdpa", NAME, SPLIT)  # attention functions that take an additive mask


def _get_qualified_class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_SHARED = {
    _get_qualified_class_name(kind)
    for kind in (
        nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU, type(ACT2FN["silu"]),
        FusedPart, PackedLinear,
    )
}  # fmt: skip


def can_run_plainly(module: nn.Module) -> bool:
    """Returns whether ``PlainModel`` knows the class of every part of a model, with unchanged
    methods and plain weights on a single device.
    """
    family = next((name for name in FAMILIES if type(module).__name__ == f"{name}ForCausalLM"), "")
    home = f"transformers.models.{family.lower()}.modeling_{family.lower()}."
    names = _SHARED | {f"{home}{family}{part}" for part in _PARTS}
    return (
        all(
            _get_qualified_class_name(type(part)) in names and "forward" not in vars(part)
            for part in module.modules()
        )
        and all(map(is_plain_weight, module.parameters()))
        and len({weight.device for weight in module.parameters()}) == 1
    )


def is_plain_weight(weight: Tensor) -> bool:
    """Returns whether a weight is not quantised, split over processes or still to be loaded."""
    return type(weight.data) is Tensor and not weight.is_meta


def _make_product(*layers: Any) -> Callable[[Tensor], Tensor]:
    """Makes a function that multiplies an input by linear layers and concatenates the outputs."""
    if len(layers) > 1:
        layers = getattr(layers[0], "whole", layers)
    if len(layers) > 1:
        products_of_layers = [_make_product(layer) for layer in layers]
        return lambda x: torch.cat([multiply(x) for multiply in products_of_layers], dim=-1)
    if type(layers[0]).forward is nn.Linear.forward:
        weight, bias = layers[0].weight, layers[0].bias
        return lambda x: linear(x, weight, bias)
    return layers[0].forward


def _make_norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """Makes a norm: torch's own if its numbers equal the module's, or on a GPU, which has a kernel
    for it.
    """
    weight, epsilon = norm.weight, norm.variance_epsilon
    if weight.dtype == torch.float32 or weight.device.type == "cuda":
        return lambda x: rms_norm(x, weight.shape, weight, epsilon)
    return norm.forward


class PlainBlock:
    """A decoder block: attention and a gated product, each added to its input."""

    def __init__(self, block: Any) -> None:
        attention, mlp = block.self_attn, block.mlp
        self.attention = attention
        self.input_norm, self.mlp_norm = map(
            _make_norm, (block.input_layernorm, block.post_attention_layernorm)
        )
        self.head_dim = attention.head_dim
        self.key_heads = attention.k_proj.out_features // self.head_dim
        self.query_heads = attention.q_proj.out_features // self.head_dim
        self.mlp_width = mlp.up_proj.out_features
        self.on_gpu = attention.o_proj.weight.device.type == "cuda"
        self.project_qkv = _make_product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.project_gate_up = _make_product(mlp.gate_proj, mlp.up_proj)
        self.residual_adds = [
            self._make_residual_add(layer) for layer in (attention.o_proj, mlp.down_proj)
        ]
        has_norms = hasattr(attention, "q_norm")
        self.qk_norms = (
            [*map(_make_norm, (attention.q_norm, attention.k_norm))] if has_norms else []
        )

    def _make_residual_add(self, layer: Any) -> Callable[[Tensor, Tensor], Tensor]:
        """Makes a function of (residual, x) that adds a layer's product with x to the residual."""
        if self.on_gpu and layer.bias is None:
            weight = layer.weight.t()
            return lambda residual, x: (
                residual.flatten(0, 1).addmm_(x.flatten(0, 1), weight).view_as(residual)
            )
        multiply = _make_product(layer)
        return lambda residual, x: residual + multiply(x)

    def forward_overwriting_hidden(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        layer: Any,
        attend: Any,
    ) -> Tensor:
        """Runs tokens [R, T, hidden]; on a GPU ``hidden`` is overwritten."""
        heads, keys, width = self.query_heads, self.key_heads, self.head_dim
        projected = self.project_qkv(self.input_norm(hidden)).unflatten(
            -1, (heads + 2 * keys, width)
        )
        query_key, value = projected.split([heads + keys, keys], dim=2)
        if self.qk_norms:
            parts = query_key.split([heads, keys], dim=2)
            query_key = torch.cat(
                [n(part) for n, part in zip(self.qk_norms, parts, strict=True)], dim=2
            )
        half_rotated = query_key.roll(width // 2, -1)
        if self.on_gpu:
            rotated = torch.addcmul(query_key * cos, half_rotated, sin)
        else:
            rotated = query_key * cos + half_rotated * sin
        query, key = rotated.transpose(1, 2).split([heads, keys], dim=1)
        keys_values = layer.update(key, value.transpose(1, 2))
        context, _ = attend(
            self.attention,
            query,
            *keys_values,
            mask,
            scaling=self.attention.scaling,
        )
        hidden = self.residual_adds[0](hidden, context.flatten(2))
        gate, up = self.project_gate_up(self.mlp_norm(hidden)).split(self.mlp_width, dim=-1)
        return self.residual_adds[1](hidden, silu(gate).mul_(up))


def compile_plain_block(backend: str) -> Any:
    """Compiles ``PlainBlock.forward_overwriting_hidden``, once for all blocks of a kind."""
    # Target and drafts share code, and every kind of pass is a graph of its own.
    torch._dynamo.config.cache_size_limit = 64  # by its name in torch 2.6, too
    options = INDUCTOR_OPTIONS if backend == "inductor" else None
    if options and torch.backends.mkldnn.is_available():
        # Inductor's own way with packed matrices takes constants alone, and these are inputs.
        from torch._inductor.lowering import fallback_handler, lowerings

        packed = torch.ops.mkldnn._linear_pointwise
        for operator in (packed, packed.default, packed.binary):
            lowerings[operator] = fallback_handler(operator, add_to_fallback_set=False)
    return torch.compile(
        PlainBlock.forward_overwriting_hidden,
        dynamic=True,
        fullgraph=True,
        backend=backend,
        options=options,
    )


class PlainModel:
    """A causal LM of ``FAMILIES``, whose blocks are functions of their weights."""

    def __init__(self, module: Any, backend: str | None = None) -> None:
        body = module.model
        self._compiled = backend and compile_plain_block(backend)
        self._config = module.config
        self._embed, self._rotary = body.embed_tokens, body.rotary_emb
        self._blocks = [PlainBlock(block) for block in body.layers]
        self._rotation_table: Tensor | None = None  # [2, slots, D] cosines and signed sines
        self._norm, self._head = _make_norm(body.norm), _make_product(module.lm_head)
        self._hooks = [
            hooks
            for part in module.modules()
            for hooks in (part._forward_hooks, part._forward_pre_hooks)
        ]
        # If layers have kinds, ``LayerMaskMaker`` makes a mask for each kind.
        self._layer_kinds = getattr(self._config, "layer_types", None) or [None] * len(self._blocks)

    @property
    def supports_hooks_and_attention(self) -> bool:
        """Whether the modules have no hooks, and attention is torch's or ours."""
        return not any(self._hooks) and self._config._attn_implementation in _ATTENTION

    def _get_rotations(self, hidden: Tensor, positions: Tensor, slots: int) -> Tensor:
        """Returns cosines and signed sines [2, R, T, 1, D] at positions [R, T] below ``slots``,
        from a table unless they depend on the longest position.
        """
        waits = self._rotary.rope_type in WAITING_ROPE
        if waits or self._rotation_table is None or self._rotation_table.shape[1] < slots:
            table_positions = (
                positions if waits else cached_arange(slots, hidden.device).unsqueeze(0)
            )
            cos, sin = self._rotary(hidden, table_positions)
            low, high = sin.chunk(2, dim=-1)
            rotations = torch.stack([cos, torch.cat([-low, high], dim=-1)])
            if waits:
                return rotations.unsqueeze(3)
            self._rotation_table = rotations[:, 0]
        return register_constant(self._rotation_table)[:, positions].unsqueeze(3)

    def forward(
        self,
        tokens: Tensor,
        mask: Any,
        positions: Tensor,
        cache: Any,
        logits_to_keep: int,
        hidden_layers: Sequence[int],
        *,
        fused: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Computes logits of the last ``logits_to_keep`` tokens (0: all), and the hidden states
        before the layers ``hidden_layers``; those after the last layer are normalised.
        """
        hidden = self._embed(tokens)
        cos, sin = self._get_rotations(hidden, positions, cache.slots)
        attend = ALL_ATTENTION_FUNCTIONS[self._config._attn_implementation]
        run_block: Any = self._compiled if fused else PlainBlock.forward_overwriting_hidden
        states: list[Tensor] = []
        for place, (block, layer) in enumerate(zip(self._blocks, cache.layers, strict=True)):
            # A block may overwrite its input, so requested states are copied.
            states.append(hidden.clone() if place in hidden_layers else hidden)
            layer_mask = mask[self._layer_kinds[place]] if isinstance(mask, dict) else mask
            hidden = run_block(block, hidden, cos, sin, layer_mask, layer, attend)
        hidden = self._norm(hidden)
        states.append(hidden)
        return self._head(hidden[:, -logits_to_keep:]), [states[place] for place in hidden_layers]
