"""A draft head that keeps keys and values of past tokens, and may know some tokens only.

Letters: R rows, T tokens, D width, W width of what the target hands over, V tokens, V' those that
the head knows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.core.transfer import cached_arange
from spec_bench.draft.base import Drafting, Equipment
from spec_bench.draft.layers import AttentionFunction, Block, LayerCache, Turn
from spec_bench.draft.network import DraftHeads, scatter_to_vocabulary
from spec_bench.engine.architectures import frequencies
from spec_bench.engine.cache import SlotCache
from spec_bench.engine.model import ForwardTimer
from spec_bench.system.errors import UsageError

Embed = Callable[[Tensor], Tensor]


class CachedHead(DraftHeads):
    """What all such heads have."""

    reads_target: bool = False  # whether the target's last layer makes its logits
    regresses: bool = False  # whether it also learns to say the target's feature
    ids: Tensor | None  # V' target ids of the head's tokens; None where V' = V
    angles: Tensor
    embed_tokens: nn.Embedding  # of heads that do not read their target's

    def __init__(self, shape: Any, ids: Tensor | None = None, blocks: Sequence[Block] = ()) -> None:
        super().__init__()
        self.shape = shape
        # some outputs of the target's layer, in its place; see ``keep_outputs``
        self.cut_down: nn.Module | None = None
        self.register_buffer("ids", ids, persistent=False)
        if blocks:
            self.layers = nn.ModuleList(blocks)
            angles, self._factor = frequencies(shape.rope, shape.head_dim, shape.max_positions)
            self.register_buffer("angles", angles, persistent=False)
            if shape.own_inputs:
                self.embed_tokens = nn.Embedding(shape.vocab, shape.width)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Whatever the weights become, angles stay as exact as they are: a position times one of 8
        bits is off by a radian after some hundred tokens.
        """
        exact = {name: each for name, each in self.named_buffers() if each.is_floating_point()}
        made = super()._apply(fn, recurse)
        for name, buffer in exact.items():
            owner, _, leaf = name.rpartition(".")
            module = self.get_submodule(owner)
            setattr(module, leaf, buffer.to(getattr(module, leaf).device))
        return made

    @property
    def features(self) -> int:
        """W: the width of what the target hands over."""
        return int(self.shape.hidden)

    @property
    def parameter_count(self) -> int:
        own = self.embed_tokens.weight.numel() if hasattr(self, "embed_tokens") else 0
        return super().parameter_count - own

    @property
    def kept(self) -> Sequence[LayerCache]:
        """What each of its layers keeps of a token."""
        shape = self.shape
        return [LayerCache(shape.kv_heads, shape.head_dim, shape.head_dim)] * shape.layers

    def turn(self, positions: Tensor) -> Turn:
        """Returns the rotation at positions [R, T]."""
        angle = positions.unsqueeze(-1) * self.angles
        angle = torch.cat([angle, angle], dim=-1).unsqueeze(1)
        return Turn(angle.cos() * self._factor, angle.sin() * self._factor)

    def embedded(self, tokens: Tensor, embed: Embed) -> Tensor:
        """Returns the target's embeddings of tokens [...], or the head's own if it has some."""
        vectors = self.embed_tokens(tokens) if hasattr(self, "embed_tokens") else embed(tokens)
        return vectors.to(self._like.dtype)

    @property
    def _like(self) -> Tensor:
        return next(self.parameters())

    @property
    def bytes_per_slot(self) -> int:  # type: ignore[override]
        widths = sum(each.heads * (each.key_dim + each.value_dim) for each in self.kept)
        return widths * self._like.element_size()

    def allocate(self, rows: int, slots: int) -> SlotCache:
        from spec_bench.engine.cache import LayerLayout, SlotCache  # needs transformers

        like = self._like
        layouts = [LayerLayout(*each, like.dtype, like.device) for each in self.kept]
        return SlotCache(layouts, rows, slots)

    def compute_own_logits(self, output: Tensor, project: Embed) -> Tensor:
        """Returns logits [..., V'] of outputs [..., D]; ``project`` is the target's last layer."""
        return project(output) if self.cut_down is None else self.cut_down(output)

    def logits(self, output: Tensor, project: Embed, vocab: int) -> Tensor:
        """Returns ``compute_own_logits`` as [..., V], -inf for tokens that the head lacks."""
        return self.spread(self.compute_own_logits(output, project), vocab, -torch.inf)

    def spread(self, known: Tensor, vocab: int, others: float) -> Tensor:
        """Returns numbers [..., V'] of tokens that the head knows as [..., V], others' as given."""
        return scatter_to_vocabulary(known, self.ids, max(vocab, self.shape.vocab), others)[
            ..., :vocab
        ]


# A head that goes on from its own output: of a feature and the next token's embedding it makes an
# output, which gives the logits of the token after and stands in for the feature one step further.
#
# EAGLE's heads and multi-token prediction (MTP) are such heads; `eagle.EagleDrafting` drafts with
# them, `train.trainee` trains them.


class FeatureHead(CachedHead):
    """What drafts from a feature."""

    def fuse(self, hidden: Tensor) -> Tensor:
        """Makes what the target hands over [..., W] a feature [..., D]."""
        return hidden

    def step(
        self, feature: Tensor, embedded: Tensor, positions: Tensor, attend: AttentionFunction
    ) -> Tensor:
        """Returns outputs [R, T, D] of features [R, T, D], the target's, fused, or the head's own,
        and of the tokens after, embedded [R, T, D], at positions [R, T], of which only differences
        matter.
        """
        raise NotImplementedError

    def next_feature(self, output: Tensor) -> Tensor:
        """Makes an output [..., D] the feature of the next step."""
        return output


class DraftingOnLast(Drafting):
    """Drafting that looks at the target's last hidden state at the token before the root."""

    recordable = True

    def __init__(self, given: Equipment) -> None:
        self._heads = given.heads
        self._vocab = given.target.vocab_size
        self._like = next(given.heads.parameters())
        # [rows, D]; zeros where a prompt of one token has none
        self._hidden = self._like.new_zeros((given.rows, given.heads.shape.hidden))
        self._timer = ForwardTimer(self._like.device)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self._hidden[row] = 0

    def see_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        self._hidden[row] = hidden[-1]

    def see_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows = cached_arange(path.shape[0], hidden.device)
        self._hidden[: len(path)] = hidden[rows, path[rows, accepted]]

    def move_row(self, source: int, target: int) -> None:
        self._hidden[target] = self._hidden[source]


def cache_attention(cache: SlotCache, mask: Tensor) -> AttentionFunction:
    """Attention over a cache's slots that ``mask`` shows, after a write that was begun."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        keys, values = cache.layers[layer].update(k, v)
        grouped = q.shape[1] != keys.shape[1]
        return scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
        )

    return attend


class HiddenDraftState(Drafting):
    """Drafting whose head keeps an entry for each token that the target handed something over for.

    Those of an iteration's path wait for the next tree. Letters: P entries that wait, W of what is
    handed over.
    """

    recordable = True

    def __init__(self, given: Equipment, waiting: int) -> None:
        head = given.heads
        rows = given.rows
        self._target = given.target
        self._cache = given.heads_cache
        self._head = head
        like = next(head.parameters())
        self._handed = like.new_zeros((rows, 1, head.features))  # [rows, P, W], not yet cached
        self._waiting = [waiting] * rows
        self._cached = [0] * rows  # entries of each row that the target's states made
        self._outputs = like.new_empty(0)  # the head's own
        self._timer = ForwardTimer(like.device)

    def see_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows, count = path.shape
        room = self._handed
        if count > room.shape[1]:
            self._handed = room.new_zeros((room.shape[0], count, room.shape[2]))
            for waiting in range(1, count + 1):  # as many as may wait from now on
                cached_arange(waiting, room.device)
        taken = hidden.gather(1, path.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        self._handed[:rows, :count] = taken.to(room.dtype)

    def count(self, lengths: Sequence[int], accepted: Sequence[int], depth: int) -> None:
        for row, (length, kept) in enumerate(zip(lengths, accepted, strict=True)):
            self._cached[row] = length
            self._waiting[row] = kept

    def most(self, rows: int, fixed: bool) -> int:
        """Returns P: entries that wait in the fullest of the first R rows, or that ever may."""
        return self._handed.shape[1] if fixed else max(self._waiting[:rows])

    def move_row(self, source: int, target: int) -> None:
        self._cache.move_row(source, target, self._cached[source])
        self._handed[target] = self._handed[source]
        self._cached[target] = self._cached[source]
        self._waiting[target] = self._waiting[source]


# Heads whose last layers are cut down to some tokens (FR-Spec, arXiv 2502.14856).


class KeptOutputs(nn.Module):
    """A last layer, weight [V, D] and perhaps bias [V], of which the outputs ``ids`` are computed;
    the others are -inf.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, ids: Sequence[int]) -> None:
        super().__init__()
        self.outputs = len(weight)
        self.ids = torch.tensor([i for i in ids if i < len(weight)], device=weight.device)
        self.weight = nn.Parameter(weight.detach()[self.ids], requires_grad=False)
        kept = None if bias is None else bias.detach()[self.ids]
        self.bias = None if kept is None else nn.Parameter(kept, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        logits = nn.functional.linear(hidden, self.weight, self.bias)
        whole = logits.new_full((*logits.shape[:-1], self.outputs), -torch.inf)
        return whole.index_copy_(-1, self.ids, logits)


def keep_outputs(heads: DraftHeads, ids: Sequence[int], output: Tensor) -> None:
    """Cuts the last layers of draft heads, in place, to the target's tokens ``ids``; ``output``
    [V, D] is the target's last layer, which EAGLE-1's, MTP's and DFlash's heads use. Raises
    ValueError: the heads know none of these tokens.
    """
    size = heads.shape.vocab
    known = getattr(heads, "ids", None)
    if known is not None:  # a vocabulary of their own: their outputs bear other numbers
        size = len(known)
        kept = set(ids)
        ids = [place for place, token in enumerate(known.tolist()) if token in kept]
    if not any(token < size for token in ids):
        raise UsageError("pair.draft_vocabulary: the draft heads know none of these tokens")
    if isinstance(heads, CachedHead) and heads.reads_target:
        heads.cut_down = KeptOutputs(output, None, ids)
        return
    for parent in list(heads.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features == size:
                setattr(parent, name, KeptOutputs(layer.weight, layer.bias, ids))
