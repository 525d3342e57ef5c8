"""DFlash's network (arXiv 2602.06036): a block guessed at once, beside the target's states.

A context entry of token t is c_t = norm(fc [hidden states of t]), the same for all layers. A layer
keeps keys and values of the context, made of c_t by its own projections, and of the block: the last
known token at position n and B - 1 masks after it. Block rows see the whole context and each other.
Row i guesses the token at n + i or, where guesses begin at the known token (DSpark, arXiv
2607.05147), the one at n + i + 1. DSpark adds W2 W1[x] to the logits after token x.

Letters: R rows, T tokens, B block, D width, W width of what the target hands over, V and V'
vocabularies, r Markov rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spec_bench.draft import eagle_files
from spec_bench.draft.cached_head import Attend, CachedHead, Embed, Kept
from spec_bench.draft.dflash_shape import DFlashShape, fresh_shape, is_dflash, shape_of, written
from spec_bench.draft.layers import MLP, Attention, RMSNorm, Turn, turn_at
from spec_bench.draft.network import HeadPlan
from spec_bench.engine.rotary import frequencies


class Layer(nn.Module):
    """A block of Qwen3's.

    Args:
        shape: of the head.
        place: its number.
    """

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
    """DSpark's term: what a token adds to the logits after it.

    Args:
        shape: of the head.
    """

    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(shape.vocab, shape.markov_rank)
        self.markov_w2 = nn.Linear(shape.markov_rank, shape.draft_vocab, bias=False)
        if shape.gated:
            self.gate_proj = nn.Linear(shape.width + shape.markov_rank, shape.markov_rank)
        self.gated = shape.gated

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The term.

        Args:
            tokens: [R, F].
            hidden: [R, 1, D] the head's output for the level after them.

        Returns:
            [R, F, V'].
        """
        known = self.markov_w1(tokens)
        if self.gated:
            both = torch.cat([hidden.expand(*known.shape[:2], -1), known], dim=-1)
            known = torch.sigmoid(self.gate_proj(both)) * known
        term: Tensor = self.markov_w2(known)
        return term


class DFlashHead(CachedHead):
    """The head.

    Args:
        shape: sizes and switches.
        ids: V' target ids of the head's tokens; None where V' = V.
    """

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
