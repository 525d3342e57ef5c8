"""Sizes and switches of a DFlash head, read from a public config and the tensors beside it.

| family | ids of the target's layers name | where |
| z-lab | a block's output | ``dflash_config``, or the top level |
| vllm-project/speculators | a block's input | ``aux_hidden_state_layer_ids`` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from spec_bench.draft import eagle_files
from spec_bench.draft.eagle_shape import THETA, rope_of
from spec_bench.draft.network import HeadPlan

_KINDS = ("dflash", "dspark")
_TERMS = ("vanilla", "gated")
_STATES = "aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class DFlashShape:
    """Sizes and switches.

    Attributes:
        hidden: width of the target's hidden states.
        vocab: V, tokens of the target.
        draft_vocab: V', tokens that the head knows.
        heads: query heads.
        kv_heads: key heads.
        head_dim: width of each.
        inner: width of the MLPs.
        layers: decoder blocks.
        block: B, tokens of a block, the known one included.
        mask_token: the token that stands for those not known.
        layer_ids: which of the target's ``hidden_states`` it reads.
        named_outputs: whether the config's ids name the outputs of blocks.
        from_known: whether the known token's row guesses the token after it.
        markov_rank: r of DSpark's term; 0: none.
        gated: whether the term is weighed by the outputs.
        own_inputs: whether it has embeddings of its own.
        own_outputs: whether it has a last layer of its own.
        qk_norm: whether q and k are normed per head.
        qkv_bias: whether q, k and v have one.
        o_bias: whether the output projection has.
        eps: of the norms.
        rope: ``rope_type``, ``rope_theta`` and what the type needs.
        max_positions: the longest sequence.
    """

    hidden: int
    vocab: int
    draft_vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    layers: int
    block: int
    mask_token: int
    layer_ids: tuple[int, ...]
    named_outputs: bool = True
    from_known: bool = False
    markov_rank: int = 0
    gated: bool = False
    own_inputs: bool = False
    own_outputs: bool = False
    qk_norm: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    eps: float = 1e-6
    rope: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": THETA}
    )
    max_positions: int = 2048

    @property
    def width(self) -> int:
        """D: that of the target's embeddings, which it reads."""
        return self.hidden

    @property
    def levels(self) -> int:
        """K, tokens that a block guesses."""
        return self.block if self.from_known else self.block - 1

    def places(self, blocks: int, ids_name: Literal["auto", "input", "output"]) -> tuple[int, ...]:
        """The ``hidden_states`` it reads.

        Args:
            blocks: L, of the target.
            ids_name: what the config's ids name, overriding the file's family.

        Raises:
            ValueError: a place that no forward pass returns.
        """
        ids = self.layer_ids
        if ids_name != "auto":
            ids = tuple(each - self.named_outputs + (ids_name == "output") for each in ids)
        for each in ids:
            if not 0 <= each < blocks:
                raise ValueError(
                    f"DFlash head: hidden state {each} is not among 0 to {blocks - 1} of a target "
                    f"of {blocks} blocks"
                )
        return ids


def is_dflash(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is of such a head."""
    return "dflash_config" in config or config.get("speculators_model_type") in _KINDS


def shape_of(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> DFlashShape:
    """The shape of a checkpoint.

    Args:
        weights: under our names, without maps of the vocabulary.
        config: ``config.json``.

    Raises:
        ValueError: a switch that is not supported, or a missing size.
    """
    parts = (config, config.get("transformer_layer_config"), config.get("dflash_config"))
    settings = {key: value for part in parts for key, value in (part or {}).items()}
    if "sliding_attention" in (settings.get("layer_types") or ()):
        raise ValueError("DFlash head: layers of sliding attention are not supported")
    if settings.get("fc_layernorm"):
        raise ValueError("DFlash head: fc_layernorm=True is not supported")
    rank = weights["markov_head.markov_w1.weight"].shape[1] if _has(weights, "markov_head.") else 0
    term = settings.get("markov_head_type") or "vanilla"
    if rank and term not in _TERMS:
        raise ValueError(
            f"DFlash head: markov_head_type {term!r} is not supported, {' and '.join(_TERMS)} are"
        )
    outputs = _STATES not in settings
    try:
        ids = settings["target_layer_ids"] if outputs else settings[_STATES]
        heads, block = int(settings["num_attention_heads"]), int(settings["block_size"])
        mask, vocab = int(settings["mask_token_id"]), int(settings["vocab_size"])
    except KeyError as error:
        raise ValueError(f"config.json of the DFlash head names no {error.args[0]}") from None
    width, first = weights["hidden_norm.weight"].shape[0], "layers.0.self_attn."
    if weights["fc.weight"].shape[1] != len(ids) * width:
        raise ValueError(
            f"DFlash head: fc reads {weights['fc.weight'].shape[1]} numbers, {len(ids)} hidden "
            f"states of {width} are named"
        )
    head_dim = weights[first + "q_proj.weight"].shape[0] // heads
    own = "lm_head.weight" in weights
    return DFlashShape(
        hidden=width,
        vocab=vocab,
        draft_vocab=weights["lm_head.weight"].shape[0] if own else vocab,
        heads=heads,
        kv_heads=weights[first + "k_proj.weight"].shape[0] // head_dim,
        head_dim=head_dim,
        inner=weights["layers.0.mlp.gate_proj.weight"].shape[0],
        layers=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers.")),
        block=block,
        mask_token=mask,
        layer_ids=tuple(int(each) + outputs for each in ids),
        named_outputs=outputs,
        from_known=bool(settings.get("sample_from_anchor", rank > 0)),
        markov_rank=rank,
        gated=rank > 0 and term == "gated",
        own_inputs="embed_tokens.weight" in weights,
        own_outputs=own,
        qk_norm=first + "q_norm.weight" in weights,
        qkv_bias=first + "q_proj.bias" in weights,
        o_bias=first + "o_proj.bias" in weights,
        eps=float(settings.get("rms_norm_eps", 1e-6)),
        rope=rope_of(settings),
        max_positions=int(settings.get("max_position_embeddings") or 2048),
    )


def fresh_shape(plan: HeadPlan, hidden: int, vocab: int) -> DFlashShape:
    """Layers of the target's sizes that read its hidden states at even distances (z-lab's)."""
    like = plan.target
    heads, blocks = int(like.get("num_attention_heads", 1)), int(like.get("num_hidden_layers", 4))
    count = min(plan.blocks + 1, blocks - 1) if plan.blocks > 1 else 1
    at = [1 + round(i * (blocks - 4) / (count - 1)) for i in range(count)] if count > 1 else []
    ids = sorted({min(max(each + 1, 1), blocks - 1) for each in at or [blocks // 2]})
    token = next((like[key] for key in ("pad_token_id", "eos_token_id") if like.get(key)), 0)
    return DFlashShape(
        hidden,
        vocab,
        vocab if plan.ids is None else len(plan.ids),
        heads,
        int(like.get("num_key_value_heads") or heads),
        int(like.get("head_dim") or hidden // heads),
        plan.inner or int(like.get("intermediate_size") or 4 * hidden),
        plan.blocks,
        plan.guesses + 1,
        token if isinstance(token, int) else token[0],
        tuple(ids),
        own_outputs=plan.ids is not None,
        eps=float(like.get("rms_norm_eps") or 1e-6),
        rope={"rope_type": "default", "rope_theta": THETA, **(like.get("rope_parameters") or {})},
        max_positions=int(like.get("max_position_embeddings") or 2048),
    )


def written(
    shape: DFlashShape, weights: Mapping[str, Tensor], ids: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and ``config.json`` of a head, as z-lab's."""
    config = {
        **eagle_files.layer_config(shape),
        "architectures": ["DFlashDraftModel"],
        "block_size": shape.block,
        "draft_vocab_size": shape.draft_vocab,
        "dflash_config": {
            "target_layer_ids": [each - 1 for each in shape.layer_ids],
            "mask_token_id": shape.mask_token,
            "sample_from_anchor": shape.from_known,
        },
    }
    if shape.markov_rank:
        config |= {"markov_rank": shape.markov_rank, "markov_head_type": _TERMS[shape.gated]}
    return eagle_files.with_map(weights, ids, shape.vocab), config


def _has(weights: Mapping[str, Tensor], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in weights)
