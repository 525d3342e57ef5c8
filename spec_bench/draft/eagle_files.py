"""Files of EAGLE heads: reads four public families, which their tensors tell apart; writes two.

- SafeAILab EAGLE-1, pytorch_model.bin: fc [D, 2D], layers.0.*, no input norm, no last layer
- SafeAILab, lmsys and SpecForge EAGLE-3, .bin or .safetensors: fc [D, 3D], midlayer.*, d2t, t2d
- speculators, model.safetensors: layers.0.* for midlayer.*, with embed_tokens
- Model-Optimizer, model.safetensors: the same without embed_tokens and t2d

Heads are written as speculators' for EAGLE-3 and as SafeAILab's for EAGLE-1, without embeddings,
because a head reads its target's. Where config and tensors differ, the tensors win. An unknown
switch is an error that names it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from spec_bench.draft.layers import LayerSizes, read_layer_sizes, to_transformers_config
from spec_bench.draft.network import CheckpointConfig, PublicCheckpoint, TensorsByName
from spec_bench.system.errors import UsageError

_MASKS = ("ptd_token_id", "mask_token_id", "pard_token")
_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# Switches with the only value that is implemented here.
_ONLY = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_aux_hidden_state": True,
    "next_layer_regular": True,
    "use_mtp_layernorm": False,
    "mlp_bias": False,
}
# Ignored, because the tensors determine their values.
_TOLD = (
    "bias",
    "qkv_bias",
    "attention_bias",
    "tie_word_embeddings",
    "use_cache",
    "has_lm_head",
    "embed_requires_grad",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
)


@dataclass(frozen=True)
class EagleShape(LayerSizes):
    """Sizes and switches of a head, a P-EAGLE head if ``mask_token`` is set."""

    title = "EAGLE-3 head"

    fc_bias: bool = False  # whether `fc` has a bias
    norm_before_residual: bool = False  # whether the residual is the normed feature
    norm_before_fc: bool = False  # whether a norm over all hidden states comes before `fc`
    fc_norm: bool = False  # whether each hidden state has a norm before `fc`
    norm_output: bool = False  # whether the last norm is applied to an output that is fed back
    own_inputs: bool = False  # whether it has embeddings of its own


def read_eagle_shape(
    version: int,
    weights: TensorsByName,
    config: CheckpointConfig,
) -> EagleShape:
    """Reads the shape of an EAGLE-1 or EAGLE-3 checkpoint from its config and its weights, under
    our names and without maps of the vocabulary. Raises UsageError if a switch or activation is
    unknown, or a size is missing.
    """
    settings = {**config, **config.get("transformer_layer_config", {})}
    _refuse_unknown_settings(config)
    _refuse_unknown_settings(settings)
    width = weights["layers.0.post_attention_layernorm.weight"].shape[0]
    switches: dict[str, Any] = {name: bool(config.get(name, False)) for name in _SWITCHES}
    if "num_attention_heads" not in settings:
        raise UsageError("config.json of the EAGLE head names no num_attention_heads")
    rows = weights["lm_head.weight"].shape[0] if version == 3 else int(settings["vocab_size"])
    hidden = weights["fc.weight"].shape[1] // 3 if version == 3 else width
    masks = "mask_hidden" in weights
    return EagleShape(
        hidden=hidden,
        width=width,
        vocab=int(settings.get("vocab_size", rows)),
        draft_vocab=rows,
        layer_ids=_read_hidden_state_indices(config) if version == 3 else None,
        id_shift=_get_layer_id_shift(config),
        mask_token=_read_mask_token(settings) if masks else None,
        own_inputs=width != hidden or (masks and "embed_tokens.weight" in weights),
        fc_bias="fc.bias" in weights,
        **read_layer_sizes(weights, settings, int(settings["num_attention_heads"])),
        **switches,
    )


def _read_mask_token(settings: CheckpointConfig) -> int:
    """Reads P-EAGLE's mask token. Raises UsageError if the config names none."""
    for name in _MASKS:
        if settings.get(name) is not None:
            return int(settings[name])
    raise UsageError(f"config.json of the P-EAGLE head names none of {', '.join(_MASKS)}")


def _read_hidden_state_indices(config: CheckpointConfig) -> tuple[int, ...] | None:
    """Reads the indices in ``hidden_states``; None if the config names none. Raises UsageError
    unless there are three.
    """
    inner = config.get("eagle_config") or {}
    key = "eagle_aux_hidden_state_layer_ids"
    ids = config.get(key) or inner.get(key) or inner.get("layer_ids")
    if not ids:
        return None
    if len(ids) != 3:
        raise UsageError(f"{key} of an EAGLE-3 head must be three numbers, got {list(ids)}")
    return tuple(int(layer_id) + _get_layer_id_shift(config) for layer_id in ids)


def _get_layer_id_shift(config: CheckpointConfig) -> int:
    """Returns the offset from a layer id to its index in ``hidden_states``: 0 in Speculators'
    files, where an id names a block's input, else 1, because it names the output.
    """
    return 0 if "speculators_model_type" in config else 1


def _refuse_unknown_settings(config: CheckpointConfig) -> None:
    """Raises UsageError if an unknown setting, or an unsupported value, would change the head's
    outputs.
    """
    known = {*_SWITCHES, *_TOLD, *_ONLY}
    for part in (config, config.get("eagle_config") or {}):
        for key, value in part.items():
            if key in _ONLY and isinstance(value, bool) and value is not _ONLY[key]:
                raise UsageError(f"EAGLE head: {key}={value} is not supported")
            if value is True and key not in known:
                raise UsageError(
                    f"EAGLE head: the switch {key} is not known; known are {', '.join(_SWITCHES)}"
                )
        if part.get("parallel_draft_step", 1) != 1:
            raise UsageError(
                f"EAGLE head: parallel_draft_step={part['parallel_draft_step']} is not supported"
            )
    act = config.get("hidden_act", "silu")
    if act != "silu":
        raise UsageError(f"EAGLE head: hidden_act {act!r} is not supported, silu is")


FILE = "model.safetensors"
_NAMES = (FILE, "pytorch_model.bin")
_PREFIXES = ("model.", "module.", "eagle_module.")


def find_eagle_weights_file(folder: Path, version: int) -> Path | None:
    """Finds the file of weights in a folder with an EAGLE head of that version; None if there is
    none.
    """
    for name in _NAMES:
        path = folder / name
        if path.is_file():
            return path if _detect_version(path) == version else None
    return None


def _detect_version(path: Path) -> int | None:
    """Detects EAGLE's version from tensor names and shapes: EAGLE-3's first block has a
    ``hidden_norm``, EAGLE-1's ``fc`` is twice as wide as high. None if neither fits.
    """
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as checkpoint:
            names = list(checkpoint.keys())
            widths = {name: tuple(checkpoint.get_slice(name).get_shape()) for name in names}
    else:
        tensors = torch.load(path, map_location="meta", mmap=True, weights_only=True)
        widths = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if any(name.endswith(("layer.hidden_norm.weight", ".0.hidden_norm.weight")) for name in widths):
        return 3
    fc = next((shape for name, shape in widths.items() if name.endswith("fc.weight")), None)
    return 1 if fc is not None and len(fc) == 2 and fc[1] == 2 * fc[0] else None


def rename_weights_and_read_ids(
    weights: TensorsByName,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Renames weights of any family to our names; also returns the target ids of the head's tokens,
    [V'] int64, or None if it knows all tokens. Raises UsageError if the two maps of the vocabulary
    are inconsistent.
    """
    our_weights = {}
    for name, tensor in weights.items():
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        our_weights[name.replace("midlayer.", "layers.0.", 1)] = tensor
    offset = our_weights.pop("d2t", None)
    known_mask = our_weights.pop("t2d", None)
    our_weights = {
        name: part for name, part in our_weights.items() if not name.endswith("rotary_emb.inv_freq")
    }
    if offset is None:
        if known_mask is None or bool(known_mask.bool().all()):
            return our_weights, None
        return our_weights, known_mask.bool().nonzero().squeeze(1)
    ids = torch.arange(len(offset)) + offset.long()
    if len(ids.unique()) < len(ids) or int(ids.min()) < 0:
        raise UsageError("draft head: d2t maps two draft tokens to one target token")
    if known_mask is not None and not torch.equal(
        known_mask.bool().nonzero().squeeze(1), ids.sort().values
    ):
        raise UsageError("draft head: d2t and t2d name different tokens")
    return our_weights, ids


def add_vocabulary_maps(
    weights: TensorsByName,
    ids: Tensor | None,
    vocab: int,
) -> TensorsByName:
    """Adds the maps ``d2t`` and ``t2d`` between the head's tokens and the target's to ``weights``;
    none if ``ids`` is None.
    """
    if ids is None:
        return dict(weights)
    known_mask = torch.zeros(vocab, dtype=torch.bool)
    known_mask[ids.cpu()] = True
    return {
        **weights,
        "d2t": ids.cpu() - torch.arange(len(ids)),
        "t2d": known_mask,
    }


def build_eagle_checkpoint(
    version: int,
    shape: EagleShape,
    weights: TensorsByName,
    ids: Tensor | None,
) -> PublicCheckpoint:
    """Builds a head's weights and config in the public layout."""
    tensors = add_vocabulary_maps(weights, ids, shape.vocab)
    layer = to_transformers_config(shape)
    if version == 1:
        config = {**layer, "architectures": ["LlamaForCausalLMEagle"], "bias": shape.fc_bias}
        return PublicCheckpoint(FILE, tensors, config)
    config = {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",  # what vLLM reads such a config by
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": shape.draft_vocab,
        "target_hidden_size": shape.hidden,
        **{name: getattr(shape, name) for name in _SWITCHES},
    }
    if shape.mask_token is not None:
        config["mask_token_id"] = shape.mask_token
    if shape.layer_ids is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(shape.layer_ids)
    return PublicCheckpoint(FILE, tensors, config)
