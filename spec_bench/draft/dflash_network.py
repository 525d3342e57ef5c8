"""Sizes and switches of a DFlash head, read from a public config and the tensors beside it.

| family | ids of the target's layers name | where |
| z-lab | a block's output | ``dflash_config``, or the top level |
| vllm-project/speculators | a block's input | ``aux_hidden_state_layer_ids`` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spec_bench.draft import eagle_files
from spec_bench.draft.cached_head import Attend, CachedHead, Embed, Kept
from spec_bench.draft.eagle_files import THETA, rope_of
from spec_bench.draft.layers import MLP, Attention, RMSNorm, Sizes, Turn, turn_at
from spec_bench.draft.network import HeadPlan
from spec_bench.engine.architectures import frequencies

_KINDS = ("dflash", "dspark")
_TERMS = ("vanilla", "gated")
_STATES = "aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class DFlashShape(Sizes):
    """Sizes and switches."""

    hidden: int  # width of the target's hidden states
    vocab: int  # V, tokens of the target
    draft_vocab: int  # V', tokens that the head knows
    heads: int  # query heads
    kv_heads: int  # key heads
    head_dim: int  # width of each
    inner: int  # width of the MLPs
    layers: int  # decoder blocks
    block: int  # B, tokens of a block, the known one included
    mask_token: int  # the token that stands for those not known
    layer_ids: tuple[int, ...]  # which of the target's `hidden_states` it reads
    named_outputs: bool = True  # whether the config's ids name the outputs of blocks
    from_known: bool = False  # whether the known token's row guesses the token after it
    markov_rank: int = 0  # r of DSpark's term; 0: none
    gated: bool = False  # whether the term is weighed by the outputs
    own_inputs: bool = False  # whether it has embeddings of its own
    own_outputs: bool = False  # whether it has a last layer of its own
    qk_norm: bool = True  # whether q and k are normed per head
    qkv_bias: bool = False  # whether q, k and v have one
    o_bias: bool = False  # whether the output projection has
    eps: float = 1e-6  # of the norms
    # `rope_type`, `rope_theta` and what the type needs
    rope: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": THETA}
    )
    max_positions: int = 2048  # the longest sequence

    @property
    def width(self) -> int:  # type: ignore[override]
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
    """The shape of a checkpoint, from its weights under our names without maps of the vocabulary.

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


# DFlash's network (arXiv 2602.06036): a block guessed at once, beside the target's states.
#
# A context entry of token t is c_t = norm(fc [hidden states of t]), the same for all layers. A
# layer keeps keys and values of the context, made of c_t by its own projections, and of the block:
# the last known token at position n and B - 1 masks after it. Block rows see the whole context and
# each other. Row i guesses the token at n + i or, where guesses begin at the known token (DSpark,
# arXiv 2607.05147), the one at n + i + 1. DSpark adds W2 W1[x] to the logits after token x.
#
# Letters: R rows, T tokens, B block, D width, W width of what the target hands over, V and V'
# vocabularies, r Markov rank.


class Layer(nn.Module):
    """A block of Qwen3's."""

    def __init__(self, shape: DFlashShape, place: int) -> None:
        super().__init__()
        self.place = place
        self.input_layernorm = RMSNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """[R, B, D] -> [R, B, D]."""
        x = x + self.self_attn(self.input_layernorm(x), turn, self.place, attend)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class MarkovTerm(nn.Module):
    """DSpark's term: what a token adds to the logits after it."""

    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(shape.vocab, shape.markov_rank)
        self.markov_w2 = nn.Linear(shape.markov_rank, shape.draft_vocab, bias=False)
        if shape.gated:
            self.gate_proj = nn.Linear(shape.width + shape.markov_rank, shape.markov_rank)
        self.gated = shape.gated

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The term [R, F, V'] after tokens [R, F], by the output for that level [R, 1, D]."""
        known = self.markov_w1(tokens)
        if self.gated:
            both = torch.cat([hidden.expand(*known.shape[:2], -1), known], dim=-1)
            known = torch.sigmoid(self.gate_proj(both)) * known
        term: Tensor = self.markov_w2(known)
        return term


class DFlashHead(CachedHead):
    """The head; ``ids``: V' target ids of its tokens, None where V' = V."""

    shape: DFlashShape
    angles: Tensor
    embed_tokens: nn.Embedding
    lm_head: nn.Linear

    def __init__(self, shape: DFlashShape, ids: Tensor | None = None) -> None:
        super().__init__()
        self.shape, self.reads_target = shape, not shape.own_outputs
        self.layers = nn.ModuleList(Layer(shape, place) for place in range(shape.layers))
        self.fc = nn.Linear(len(shape.layer_ids) * shape.hidden, shape.width, bias=False)
        self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self.norm = RMSNorm(shape.width, shape.eps)
        angles, self._factor = frequencies(shape.rope, shape.head_dim, shape.max_positions)
        self.register_buffer("angles", angles, persistent=False)
        self.register_buffer("ids", ids, persistent=False)
        if shape.own_inputs:
            self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        if shape.own_outputs:
            self.lm_head = nn.Linear(shape.width, shape.draft_vocab, bias=False)
        if shape.markov_rank:
            self.markov_head = MarkovTerm(shape)

    @property
    def features(self) -> int:
        """W: the width of what the target hands over."""
        return len(self.shape.layer_ids) * self.shape.hidden

    @property
    def parameter_count(self) -> int:
        count = super().parameter_count
        return count - (self.embed_tokens.weight.numel() if self.shape.own_inputs else 0)

    @property
    def kept(self) -> Sequence[Kept]:
        shape = self.shape
        return [Kept(shape.kv_heads, shape.head_dim, shape.head_dim)] * shape.layers

    def turn(self, positions: Tensor) -> Turn:
        """The rotation at positions [R, T]."""
        return turn_at(positions, self.angles, self._factor)

    def context(self, hidden: Tensor) -> Tensor:
        """What the target hands over [R, T, W] as context entries [R, T, D]."""
        entries: Tensor = self.hidden_norm(self.fc(hidden))
        return entries

    def context_kept(self, entries: Tensor, turn: Turn) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values [R, K, T, d] of context entries [R, T, D]."""
        attentions: list[Any] = [layer.self_attn for layer in self.layers]
        return [attention.kept(entries, turn) for attention in attentions]

    def block(self, known: Tensor, embed: Embed) -> Tensor:
        """The block's inputs [R, B, D] after the last known tokens [R]."""
        masks = known.new_full((len(known), self.shape.block - 1), self.shape.mask_token)
        tokens = torch.cat([known.unsqueeze(1), masks], dim=1)
        vectors = self.embed_tokens(tokens) if self.shape.own_inputs else embed(tokens)
        return vectors.to(self._like.dtype)

    def outputs(self, block: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """Outputs [R, K, D], one per level, of a block [R, B, D] after its context."""
        x = block
        for layer in self.layers:
            x = layer(x, turn, attend)
        levels: Tensor = self.norm(x)
        return levels if self.shape.from_known else levels[:, 1:]

    def own_logits(self, output: Tensor, project: Embed) -> Tensor:
        if self.shape.own_outputs:
            return self.lm_head(output)
        return project(output) if self.cut_down is None else self.cut_down(output)

    def guesses(self, x: Tensor, embedded: Tensor) -> Iterator[Tensor]:
        """Not position by position: it learns from whole sequences, ``train.trainee``."""
        raise AssertionError("a head that guesses blocks learns from sequences")

    @classmethod
    def fresh(
        cls, plan: HeadPlan, hidden: int, vocab: int, output: Callable[[], Tensor]
    ) -> DFlashHead:
        """Layers of the target's sizes; K guesses are a block of K + 1."""
        ids = None if plan.ids is None else torch.tensor(plan.ids)
        head = cls(fresh_shape(plan, hidden, vocab), ids)
        if ids is not None:
            with torch.no_grad():
                head.lm_head.weight.copy_(output()[ids])
        return head

    @classmethod
    def smallest(cls, hidden: int, vocab: int) -> DFlashHead:
        sizes = (hidden, vocab, vocab, 1, 1, 2, 2, 1)
        return cls(DFlashShape(*sizes, block=4, mask_token=0, layer_ids=(2,)))

    @classmethod
    def weights_file(cls, folder: Path, config: Mapping[str, Any]) -> Path | None:
        path = folder / eagle_files.FILE
        return path if is_dflash(config) and path.is_file() else None

    @classmethod
    def of_weights(cls, weights: dict[str, Tensor], config: Mapping[str, Any]) -> DFlashHead:
        from spec_bench.draft.heads import filled

        named, ids = eagle_files.canonical(weights)
        # Which proposals are worth verifying is the policy's to say here.
        named = {name: each for name, each in named.items() if "confidence_head." not in name}
        return filled(cls(shape_of(named, config), ids), named)

    def to_files(self) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
        tensors = dict(self.state_dict())
        return eagle_files.FILE, *written(self.shape, tensors, self.ids)
