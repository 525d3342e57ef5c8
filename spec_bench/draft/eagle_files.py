"""EAGLE heads' files: four public families, told apart by their tensors, are read; one is written.

| family | file | tensors |
| SafeAILab EAGLE-1 | pytorch_model.bin | fc [D, 2D], layers.0.*, no input norm, no last layer |
| SafeAILab, lmsys, SpecForge EAGLE-3 | .bin or .safetensors | fc [D, 3D], midlayer.*, d2t, t2d |
| speculators | model.safetensors | layers.0.* for midlayer.*, with embed_tokens |
| Model-Optimizer | model.safetensors | the same without embed_tokens and t2d |

Ours is speculators' for EAGLE-3 and SafeAILab's for EAGLE-1, without embeddings: a head reads its
target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from spec_bench.draft.eagle_shape import EagleShape
from spec_bench.draft.layers import Sizes

FILE = "model.safetensors"
_NAMES = (FILE, "pytorch_model.bin")
_PREFIXES = ("model.", "module.", "eagle_module.")


def weights_file(folder: Path, version: Literal[1, 3]) -> Path | None:
    """The file of weights in a folder that holds an EAGLE head of that version, else None."""
    for name in _NAMES:
        path = folder / name
        if path.is_file():
            return path if _version(_widths(path)) == version else None
    return None


def _widths(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, without reading the numbers."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as stored:
            names = list(stored.keys())
            return {name: tuple(stored.get_slice(name).get_shape()) for name in names}
    tensors = torch.load(path, map_location="meta", mmap=True, weights_only=True)
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _version(widths: Mapping[str, tuple[int, ...]]) -> Literal[1, 3] | None:
    """EAGLE-3's first block has a ``hidden_norm``; else an ``fc`` twice as wide as high is
    EAGLE-1's.
    """
    if any(name.endswith(("layer.hidden_norm.weight", ".0.hidden_norm.weight")) for name in widths):
        return 3
    fc = next((shape for name, shape in widths.items() if name.endswith("fc.weight")), None)
    return 1 if fc is not None and len(fc) == 2 and fc[1] == 2 * fc[0] else None


def canonical(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
    """Weights of any family under our names, and the target ids of the head's tokens, [V'] int64;
    None if it knows all.

    Raises:
        ValueError: the two maps of the vocabulary do not fit.
    """
    named = {}
    for name, tensor in weights.items():
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        named[name.replace("midlayer.", "layers.0.", 1)] = tensor
    offset, kept = named.pop("d2t", None), named.pop("t2d", None)
    named.pop("rotary_emb.inv_freq", None)
    named = {name: part for name, part in named.items() if not name.endswith("rotary_emb.inv_freq")}
    if offset is None:
        if kept is None or bool(kept.bool().all()):
            return named, None
        return named, kept.bool().nonzero().squeeze(1)
    ids = torch.arange(len(offset)) + offset.long()
    if len(ids.unique()) < len(ids) or int(ids.min()) < 0:
        raise ValueError("draft head: d2t maps two draft tokens to one target token")
    if kept is not None and not torch.equal(kept.bool().nonzero().squeeze(1), ids.sort().values):
        raise ValueError("draft head: d2t and t2d name different tokens")
    return named, ids


def layer_config(shape: Sizes) -> dict[str, Any]:
    """``config.json`` of the blocks, as transformers'."""
    return {
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocab,
        "rms_norm_eps": shape.eps,
        "rope_parameters": dict(shape.rope),
        "rope_theta": shape.rope.get("rope_theta"),
        "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu",
    }


def with_map(weights: Mapping[str, Tensor], ids: Tensor | None, vocab: int) -> dict[str, Tensor]:
    """Weights with the maps of the vocabulary between the head's tokens and the target's."""
    if ids is None:
        return dict(weights)
    kept = torch.zeros(vocab, dtype=torch.bool)
    kept[ids.cpu()] = True
    return {**weights, "d2t": ids.cpu() - torch.arange(len(ids)), "t2d": kept}


def written(
    shape: EagleShape, weights: Mapping[str, Tensor], ids: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and ``config.json`` of a head."""
    stored, layer = with_map(weights, ids, shape.vocab), layer_config(shape)
    if shape.version == 1:
        return stored, {**layer, "architectures": ["LlamaForCausalLMEagle"], "bias": shape.fc_bias}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": shape.draft_vocab,
        "target_hidden_size": shape.hidden,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
    }
    if shape.mask_token is not None:
        config["mask_token_id"] = shape.mask_token
    if shape.layer_ids is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(shape.layer_ids)
    return stored, config
