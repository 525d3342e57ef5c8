"""EAGLE heads' files: four public families, told apart by their tensors, are read; one is written.

| family | file | tensors |
| SafeAILab EAGLE-1 | pytorch_model.bin | fc [D, 2D], layers.0.*, no input norm, no last layer |
| SafeAILab, lmsys, SpecForge EAGLE-3 | .bin or .safetensors | fc [D, 3D], midlayer.*, d2t, t2d |
| speculators | model.safetensors | layers.0.* for midlayer.*, with embed_tokens |
| Model-Optimizer | model.safetensors | the same without embed_tokens and t2d |

Ours is speculators' for EAGLE-3 and SafeAILab's for EAGLE-1, without embeddings: a head reads its
target's. Where config and tensors differ, the tensors win; an unknown switch is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from spec_bench.draft.layers import Sizes

THETA = 10000.0  # if a config names none; nothing is inherited from the target
_MASKS = ("ptd_token_id", "mask_token_id", "pard_token")
_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# Switches of the families of which only one value is implemented here.
_ONLY = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_aux_hidden_state": True,
    "next_layer_regular": True,
    "use_mtp_layernorm": False,
    "mlp_bias": False,
}
# Their values say nothing that the tensors do not.
_TOLD: tuple[str, ...] = (
    "bias",
    "qkv_bias",
    "attention_bias",
    "tie_word_embeddings",
    "use_cache",
    "has_lm_head",
)
_TOLD += ("embed_requires_grad", "return_dict", "output_hidden_states", "output_attentions")


@dataclass(frozen=True)
class EagleShape(Sizes):
    """Sizes and switches."""

    version: Literal[1, 3]  # 1 (EAGLE and EAGLE-2 alike) or 3
    hidden: int  # width of the target
    width: int  # D, width of the head
    vocab: int  # V, tokens of the target
    draft_vocab: int  # V', tokens that the head knows
    heads: int  # query heads
    kv_heads: int  # key heads
    head_dim: int  # width of each
    inner: int  # width of the MLP
    layers: int = 1  # decoder blocks
    eps: float = 1e-6  # of the norms
    # `rope_type`, `rope_theta` and what the type needs
    rope: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": THETA}
    )
    max_positions: int = 2048  # the longest sequence
    # EAGLE-3's places in `hidden_states`, where the config names them
    layer_ids: tuple[int, ...] | None = None
    id_shift: int = 0  # what was added to the config's ids to get them
    fc_bias: bool = False  # whether `fc` has a bias
    qkv_bias: bool = False  # whether q, k and v have
    o_bias: bool = False  # whether the output projection has
    qk_norm: bool = False  # whether q and k are normed per head, as in Qwen3
    norm_before_residual: bool = False  # the residual is the normed feature
    norm_before_fc: bool = False  # one norm over all hidden states before `fc`
    fc_norm: bool = False  # one norm for each of them
    norm_output: bool = False  # the last norm is applied to what is fed back
    # P-EAGLE's token for those not known; None: the head goes on from its outputs
    mask_token: int | None = None

    @property
    def own_inputs(self) -> bool:
        """Whether it has embeddings of its own."""
        return self.width != self.hidden or self.mask_token is not None


def shape_of(
    version: Literal[1, 3], weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> EagleShape:
    """The shape of a checkpoint, from its weights under our names without maps of the vocabulary.

    Raises:
        ValueError: an unknown switch or activation, naming it; or a missing size.
    """
    settings = {**config, **config.get("transformer_layer_config", {})}
    _refuse_unknown(config)
    _refuse_unknown(settings)
    width = weights["layers.0.post_attention_layernorm.weight"].shape[0]
    parts = 3 if version == 3 else 1
    fused = weights["fc.weight"].shape[1]
    first = "layers.0.self_attn."
    try:
        heads = int(settings["num_attention_heads"])
    except KeyError:
        raise ValueError("config.json of the EAGLE head names no num_attention_heads") from None
    head_dim = weights[first + "q_proj.weight"].shape[0] // heads
    rows = weights["lm_head.weight"].shape[0] if version == 3 else int(settings["vocab_size"])
    switches = {name: bool(config.get(name, False)) for name in _SWITCHES}
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    return EagleShape(
        version,
        hidden=fused // parts if version == 3 else width,
        width=width,
        vocab=int(settings.get("vocab_size", rows)),
        draft_vocab=rows,
        heads=heads,
        kv_heads=weights[first + "k_proj.weight"].shape[0] // head_dim,
        head_dim=head_dim,
        inner=weights["layers.0.mlp.gate_proj.weight"].shape[0],
        layers=layers,
        eps=float(settings.get("rms_norm_eps", 1e-6)),
        rope=rope_of(settings),
        max_positions=int(settings.get("max_position_embeddings") or 2048),
        layer_ids=_layer_ids(config) if version == 3 else None,
        id_shift=_id_shift(config),
        fc_bias="fc.bias" in weights,
        qkv_bias=first + "q_proj.bias" in weights,
        o_bias=first + "o_proj.bias" in weights,
        qk_norm=first + "q_norm.weight" in weights,
        mask_token=_mask_token(settings) if "mask_hidden" in weights else None,
        **switches,
    )


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` as older configs have them."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
    rope.setdefault("rope_type", "default")
    rope.setdefault("rope_theta", config.get("rope_theta") or THETA)
    return rope


def _mask_token(settings: Mapping[str, Any]) -> int:
    """P-EAGLE's; refused if none is named."""
    for name in _MASKS:
        if settings.get(name) is not None:
            return int(settings[name])
    raise ValueError(f"config.json of the P-EAGLE head names none of {', '.join(_MASKS)}")


def _layer_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Places in ``hidden_states``; refused unless there are three."""
    inner = config.get("eagle_config") or {}
    key = "eagle_aux_hidden_state_layer_ids"
    ids = config.get(key) or inner.get(key) or inner.get("layer_ids")
    if not ids:
        return None
    if len(ids) != 3:
        raise ValueError(f"{key} of an EAGLE-3 head must be three numbers, got {list(ids)}")
    return tuple(int(each) + _id_shift(config) for each in ids)


def _id_shift(config: Mapping[str, Any]) -> int:
    """Speculators' id i is the input of block i, ``hidden_states[i]``; elsewhere its output."""
    return 0 if "speculators_model_type" in config else 1


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    """Refuses unknown settings that would change the numbers, naming key and value."""
    known = {*_SWITCHES, *_TOLD}
    for part in (config, config.get("eagle_config") or {}):
        for key, value in part.items():
            if key in _ONLY and isinstance(value, bool) and value is not _ONLY[key]:
                raise ValueError(f"EAGLE head: {key}={value} is not supported")
            if value is True and key not in known and key not in _ONLY:
                raise ValueError(
                    f"EAGLE head: the switch {key} is not known; known are {', '.join(_SWITCHES)}"
                )
        if part.get("parallel_draft_step", 1) != 1:
            raise ValueError(
                f"EAGLE head: parallel_draft_step={part['parallel_draft_step']} is not supported"
            )
    act = config.get("hidden_act", "silu")
    if act != "silu":
        raise ValueError(f"EAGLE head: hidden_act {act!r} is not supported, silu is")


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
