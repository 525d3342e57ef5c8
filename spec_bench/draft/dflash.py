"""DFlash (arXiv 2602.06036): guesses a block of masked tokens in one pass, given the target's
states.

A context entry of token t is c_t = norm(fc [hidden states of t]), the same for all layers. Each
layer keeps the context's keys and values, which its own projections compute from c_t. The block
consists of the last known token at position n and B - 1 masks after it; its rows attend to the
whole context and to each other. Row i guesses the token at n + i or, if guesses begin at the known
token (DSpark, arXiv 2607.05147), the token at n + i + 1. DSpark adds W2 W1[x] to the logits after
token x.

Ids of the target's layers name blocks' outputs in z-lab's files (``dflash_config``, or the top
level), and blocks' inputs in those of vllm-project/speculators (``aux_hidden_state_layer_ids``).

Letters: R rows, T tokens, P pending context entries, B tokens of a block, D width of the head, W
width of the target's hidden states that it reads, K levels, V and V' vocabularies, r Markov rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts, cached_arange
from spec_bench.draft import eagle_files
from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.cached_head import (
    CachedHead,
    HeadCacheDraftState,
    TensorFunction,
    make_cache_attention,
)
from spec_bench.draft.layers import (
    AttentionFunction,
    DecoderBlock,
    LayerSizes,
    RMSNorm,
    Rotation,
    get_sizes_like_target,
    read_layer_sizes,
    to_transformers_config,
)
from spec_bench.draft.levels import OnePassDraftState
from spec_bench.draft.network import (
    CheckpointConfig,
    DraftHeads,
    HeadPlan,
    PublicCheckpoint,
    TensorsByName,
    load_weights,
)
from spec_bench.engine.cache import WritePlan, adjacent_slots
from spec_bench.engine.model import Layers
from spec_bench.system.errors import UsageError

_KINDS = ("dflash", "dspark")
_TERMS = ("vanilla", "gated")
_STATES = "aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class DFlashShape(LayerSizes):
    """Sizes and switches; the width is that of the target's embeddings, which the head reads."""

    title = "DFlash head"

    qk_norm: bool = True
    layer_ids: tuple[int, ...] = ()
    id_shift: int = 1
    mask_token: int = 0
    block: int = 2  # B, tokens of a block, the known one included
    from_known: bool = False  # whether the known token's row guesses the token after it
    markov_rank: int = 0  # r of DSpark's term; 0: none
    gated: bool = False  # whether a gate, computed from the outputs, scales the term
    own_inputs: bool = False  # whether it has embeddings of its own
    own_outputs: bool = False  # whether it has a last layer of its own

    @property
    def guess_count(self) -> int:
        """K, the number of tokens that a block guesses."""
        return self.block if self.from_known else self.block - 1


def read_dflash_shape(weights: TensorsByName, config: CheckpointConfig) -> DFlashShape:
    """Reads the shape of a checkpoint from its config and its weights, under our names and without
    maps of the vocabulary. Raises UsageError if a switch is not supported or a size is missing.
    """
    parts = (config, config.get("transformer_layer_config"), config.get("dflash_config"))
    settings = {key: value for part in parts for key, value in (part or {}).items()}
    if "sliding_attention" in (settings.get("layer_types") or ()):
        raise UsageError("DFlash head: layers of sliding attention are not supported")
    if settings.get("fc_layernorm"):
        raise UsageError("DFlash head: fc_layernorm=True is not supported")
    markov = weights.get("markov_head.markov_w1.weight")
    rank = 0 if markov is None else markov.shape[1]
    term = settings.get("markov_head_type") or "vanilla"
    if rank and term not in _TERMS:
        raise UsageError(
            f"DFlash head: markov_head_type {term!r} is not supported, {' and '.join(_TERMS)} are"
        )
    outputs = _STATES not in settings
    try:
        ids = settings["target_layer_ids"] if outputs else settings[_STATES]
        heads = int(settings["num_attention_heads"])
        block = int(settings["block_size"])
        mask = int(settings["mask_token_id"])
        vocab = int(settings["vocab_size"])
    except KeyError as error:
        raise UsageError(f"config.json of the DFlash head names no {error.args[0]}") from None
    width = weights["hidden_norm.weight"].shape[0]
    own_outputs = weights.get("lm_head.weight")
    if weights["fc.weight"].shape[1] != len(ids) * width:
        raise UsageError(
            f"DFlash head: fc reads {weights['fc.weight'].shape[1]} numbers, {len(ids)} hidden "
            f"states of {width} are named"
        )
    return DFlashShape(
        hidden=width,
        width=width,
        vocab=vocab,
        draft_vocab=vocab if own_outputs is None else own_outputs.shape[0],
        layer_ids=tuple(int(layer_id) + outputs for layer_id in ids),
        id_shift=int(outputs),
        mask_token=mask,
        block=block,
        from_known=bool(settings.get("sample_from_anchor", rank > 0)),
        markov_rank=rank,
        gated=rank > 0 and term == "gated",
        own_inputs="embed_tokens.weight" in weights,
        own_outputs=own_outputs is not None,
        **read_layer_sizes(weights, settings, heads),
    )


class MarkovLogitTerm(nn.Module):
    """DSpark's term: a token's addition to the logits after it."""

    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(shape.vocab, shape.markov_rank)
        self.markov_w2 = nn.Linear(shape.markov_rank, shape.draft_vocab, bias=False)
        if shape.gated:
            self.gate_proj = nn.Linear(shape.width + shape.markov_rank, shape.markov_rank)
        self.gated = shape.gated

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Computes the term [R, F, V'] after tokens [R, F] from the level's output [R, 1, D]."""
        embedding = self.markov_w1(tokens)
        if self.gated:
            features = torch.cat([hidden.expand(*embedding.shape[:2], -1), embedding], dim=-1)
            embedding = torch.sigmoid(self.gate_proj(features)) * embedding
        return self.markov_w2(embedding)


class DFlashHead(CachedHead):
    """A DFlash or DSpark head: its layers, with the target's hidden states as context."""

    shape: DFlashShape
    lm_head: nn.Linear

    def __init__(self, shape: DFlashShape, ids: Tensor | None = None) -> None:
        super().__init__(shape, ids, [DecoderBlock(shape, place) for place in range(shape.layers)])
        self.reads_target = not shape.own_outputs
        self.fc = nn.Linear(len(shape.layer_ids) * shape.hidden, shape.width, bias=False)
        self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self.norm = RMSNorm(shape.width, shape.eps)
        if shape.own_outputs:
            self.lm_head = nn.Linear(shape.width, shape.draft_vocab, bias=False)
        if shape.markov_rank:
            self.markov_head = MarkovLogitTerm(shape)

    @property
    def hidden_input_width(self) -> int:
        return len(self.shape.layer_ids) * self.shape.hidden

    def project_context(self, hidden: Tensor) -> Tensor:
        """Projects the target's hidden states [R, T, W] to context entries [R, T, D]."""
        return self.hidden_norm(self.fc(hidden))

    def compute_context_keys_values(
        self, entries: Tensor, rotation: Rotation
    ) -> list[tuple[Tensor, Tensor]]:
        """Computes each layer's keys and values [R, K, T, d] of context entries [R, T, D]."""
        attentions: list[Any] = [layer.self_attn for layer in self.layers]
        return [attention.project_keys_values(entries, rotation) for attention in attentions]

    def embed_block(self, roots: Tensor, embed: TensorFunction) -> Tensor:
        """Embeds the block after the last known tokens [R]; returns [R, B, D]."""
        masks = roots.new_full((len(roots), self.shape.block - 1), self.shape.mask_token)
        return self.get_embeddings(torch.cat([roots.unsqueeze(1), masks], dim=1), embed)

    def compute_block_outputs(
        self, block: Tensor, rotation: Rotation, attend: AttentionFunction
    ) -> Tensor:
        """Computes outputs [R, K, D], one per level, of a block [R, B, D] after its context."""
        for layer in self.layers:
            block = layer(block, rotation, attend)
        levels = self.norm(block)
        return levels if self.shape.from_known else levels[:, 1:]

    def compute_own_logits(self, output: Tensor, project: TensorFunction) -> Tensor:
        if self.shape.own_outputs:
            return self.lm_head(output)
        return super().compute_own_logits(output, project)

    @classmethod
    def make_untrained(cls, plan: HeadPlan) -> DFlashHead:
        """Makes layers of the target's sizes that read its hidden states at even distances, as
        z-lab's heads do. For K guesses a block has K + 1 tokens.
        """
        target_config = plan.target
        blocks = int(target_config.get("num_hidden_layers", 4))
        count = min(plan.blocks + 1, blocks - 1) if plan.blocks > 1 else 1
        first = 2 if count > 1 else blocks // 2 + 1
        places = torch.linspace(first, blocks - 2, count).round().clamp(1, blocks - 1).unique()
        shape = DFlashShape(
            **get_sizes_like_target(plan),
            layer_ids=tuple(places.int().tolist()),
            mask_token=plan.mask_token,
            block=plan.guesses + 1,
            own_outputs=plan.ids is not None,
        )
        head = cls(shape, plan.ids_tensor)
        if shape.own_outputs:
            with torch.no_grad():
                head.lm_head.weight.copy_(plan.get_known_output_weight())
        return head

    @classmethod
    def make_smallest(cls, hidden: int, vocab: int) -> DFlashHead:
        sizes = (hidden, hidden, vocab, vocab, 1, 1, 2, 2)
        return cls(DFlashShape(*sizes, block=4, mask_token=0, layer_ids=(2,)))

    @classmethod
    def find_weights_file(cls, folder: Path, config: CheckpointConfig) -> Path | None:
        ours = "dflash_config" in config or config.get("speculators_model_type") in _KINDS
        path = folder / eagle_files.FILE
        return path if ours and path.is_file() else None

    @classmethod
    def from_weights(cls, weights: TensorsByName, config: CheckpointConfig) -> DFlashHead:
        our_weights, ids = eagle_files.rename_weights_and_read_ids(weights)
        # The policy, not a confidence head, selects the proposals to verify.
        our_weights = {
            name: tensor for name, tensor in our_weights.items() if "confidence_head." not in name
        }
        return load_weights(cls(read_dflash_shape(our_weights, config), ids), our_weights)

    def to_public_checkpoint(self) -> PublicCheckpoint:
        """Returns file name, weights and config in the layout of z-lab's heads."""
        shape = self.shape
        config = {
            **to_transformers_config(shape),
            "architectures": ["DFlashDraftModel"],
            "block_size": shape.block,
            "draft_vocab_size": shape.draft_vocab,
            "dflash_config": {
                "target_layer_ids": [layer_id - 1 for layer_id in shape.layer_ids],
                "mask_token_id": shape.mask_token,
                "sample_from_anchor": shape.from_known,
            },
        }
        if shape.markov_rank:
            config |= {"markov_rank": shape.markov_rank, "markov_head_type": _TERMS[shape.gated]}
        weights = eagle_files.add_vocabulary_maps(self.state_dict(), self.ids, shape.vocab)
        return PublicCheckpoint(eagle_files.FILE, weights, config)


class DFlashDraftState(OnePassDraftState, HeadCacheDraftState):
    """State of a DFlash or DSpark head on the target's hidden states.

    One pass over a block guesses every level. With m tokens before the root, slots 0..m - 1 of the
    head's cache hold the context entries of tokens 0..m - 1, made from the target's hidden states.
    Every step writes the block after them, over the block before. Tokens that the target has not
    run have no entry, so a block depends on committed tokens only.
    """

    def __init__(self, resources: DraftResources) -> None:
        super().__init__(resources)
        self.has_term = resources.heads.shape.markov_rank > 0
        self._context_starts, self._block_starts = HostDeviceInts(), HostDeviceInts()
        self._max_new_entries = 0  # most entries of a row to write before the block

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        self._cached_counts[row] = self._pending_counts[row] = 0

    @torch.inference_mode()
    def observe_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        self._write_context(hidden.unsqueeze(0), row, HostDeviceInts([start]))
        self._cached_counts[row] = start + len(hidden)

    def device_inputs(
        self,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        self._max_new_entries = self.count_max_pending(len(committed), fixed)
        self._context_starts = HostDeviceInts(self._cached_counts[: len(committed)])
        self._block_starts = committed.lengths
        return (self._context_starts,)

    @torch.inference_mode()
    def compute_level_logits(self, committed: CommittedTokens) -> Tensor:
        self._timer.start()
        head = self._head
        device = self._pending_hidden.device
        if self._max_new_entries:
            # A row with fewer entries writes fillers after them; the block then overwrites these.
            self._write_context(
                self._pending_hidden[: len(committed), : self._max_new_entries],
                0,
                self._context_starts,
            )
        block = head.embed_block(committed.roots.get_tensor(device), self._target.embed)
        rotation = self._plan_write_and_get_rotation(block, 0, self._block_starts)
        slots = cached_arange(max(self._block_starts) + block.shape[1], device)
        last_slot = self._block_starts.get_tensor(device) + (block.shape[1] - 1)
        mask = (slots <= last_slot.unsqueeze(1))[:, None, None]

        self._outputs = head.compute_block_outputs(
            block, rotation, make_cache_attention(self._cache, mask)
        )
        return self.finish_pass(self._outputs)

    def compute_token_term(self, tokens: Tensor, level: int) -> Tensor:
        bias = self._head.markov_head(tokens, self._outputs[:, level : level + 1])
        return self._head.scatter_own_values(bias, self._target.vocab_size, 0.0)

    def _write_context(self, hidden: Tensor, row: int, starts: HostDeviceInts) -> None:
        """Writes the context entries of hidden states [R, P, W] to the cache from ``starts`` on."""
        entries = self._head.project_context(hidden.to(self._pending_hidden.dtype))
        rotation = self._plan_write_and_get_rotation(entries, row, starts)
        for layer, keys_and_values in enumerate(
            self._head.compute_context_keys_values(entries, rotation)
        ):
            self._cache.layers[layer].update(*keys_and_values)

    def _plan_write_and_get_rotation(
        self, inputs: Tensor, row: int, starts: HostDeviceInts
    ) -> Rotation:
        """Plans a write of ``inputs`` [R, P, D] to consecutive slots; returns the rotation at these
        positions.
        """
        count = inputs.shape[1]
        self._cache.begin_pass(WritePlan(row, starts, count, max(starts) + count))
        return self._head.compute_rotation(adjacent_slots(starts, count, inputs.device))


@drafter("dflash")
@dataclass(frozen=True)
class DFlash(Drafter):
    """A DFlash or DSpark head; it guesses a whole block at once, so L is 1."""

    # whether the config's layer ids name a block's `input` or `output`; `auto`: as in its family
    layer_ids: Literal["auto", "input", "output"] = "auto"

    heads = DFlashHead
    passes = 1

    def find_max_depth(self, heads: DraftHeads | None) -> int:
        assert heads is not None
        return int(heads.shape.guess_count)

    def extra_slots(self, heads: DraftHeads | None) -> int:
        assert isinstance(heads, DFlashHead)
        return heads.shape.block

    def get_target_layers(self, heads: DraftHeads | None, blocks: int) -> Layers:
        assert isinstance(heads, DFlashHead)
        return heads.shape.find_hidden_state_indices(blocks, self.layer_ids)

    def make_state(self, resources: DraftResources) -> DraftState:
        return DFlashDraftState(resources)
