"""A draft head that keeps keys and values of past tokens, and may know some tokens only.

Letters: R rows, T tokens, D width, V tokens, V' those that the head knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.core.transfer import Committed, places
from spec_bench.draft.base import Drafting, Verified
from spec_bench.draft.network import Heads
from spec_bench.engine.cache import SlotCache
from spec_bench.engine.model import ForwardTimer, LanguageModel

Embed = Callable[[Tensor], Tensor]


class Attend(Protocol):
    """Attention over what is kept: a slot cache in decoding, the earlier steps in training."""

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
    ) -> Tensor:
        """Keeps k and v, and attends.

        Args:
            layer: of the head.
            q: [R, H, T, d], of a multiple of the key heads.
            k: [R, K, T, d].
            v: [R, K, T, d'].
            scale: of the scores; None: 1 / sqrt(d).

        Returns:
            [R, H, T, d'].
        """


class Kept(NamedTuple):
    """What a layer keeps of a token: key heads, and the widths of keys and values."""

    heads: int
    key_dim: int
    value_dim: int


class CachedHead(Heads):
    """What all such heads have."""

    reads_target: bool = False  # whether the target's last layer makes its logits
    regresses: bool = False  # whether it also learns to say the target's feature
    ids: Tensor | None  # V' target ids of the head's tokens; None where V' = V

    def __init__(self) -> None:
        super().__init__()
        # some outputs of the target's layer, in its place; see ``keep_outputs``
        self.cut_down: nn.Module | None = None

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
    def kept(self) -> Sequence[Kept]:
        """What each of its layers keeps of a token."""
        raise NotImplementedError

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

    def own_logits(self, output: Tensor, project: Embed) -> Tensor:
        """Logits [..., V'] of outputs [..., D]; ``project`` is the target's last layer."""
        raise NotImplementedError

    def logits(self, output: Tensor, project: Embed, vocab: int) -> Tensor:
        """Logits [..., V] of outputs [..., D], -inf for tokens that the head does not know;
        ``project`` is the target's last layer.
        """
        return self.spread(self.own_logits(output, project), vocab, -torch.inf)

    def spread(self, known: Tensor, vocab: int, others: float) -> Tensor:
        """Numbers [..., V'] of the tokens that the head knows as [..., V], the others' as given."""
        if self.ids is None:
            return known[..., :vocab]
        full = known.new_full((*known.shape[:-1], max(vocab, self.shape.vocab)), others)
        return full.index_copy(-1, self.ids, known)[..., :vocab]


# A head that goes on from its own output: of a feature and the next token's embedding it makes an
# output, which gives the logits of the token after and stands in for the feature one step further.
#
# EAGLE's heads and multi-token prediction (MTP) are such heads; `eagle.EagleDrafting` drafts with
# them, `train.trainee` trains them.
#
# Letters: R rows, T tokens, D width, W width of what the target hands over, V tokens, V' those that
# the head knows.


class FeatureHead(CachedHead):
    """What drafts from a feature."""

    def embedded(self, tokens: Tensor, embed: Embed) -> Tensor:
        """The target's embeddings of tokens [...], or the head's own if its width differs."""
        return embed(tokens).to(self._like.dtype)

    def fuse(self, hidden: Tensor) -> Tensor:
        """What the target hands over [..., W] as a feature [..., D]."""
        return hidden

    def step(self, feature: Tensor, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """One step for each token.

        Args:
            feature: [R, T, D] of the target, fused, or of the head itself.
            embedded: [R, T, D] of the tokens after.
            positions: [R, T] for the rotation; only differences matter.
            attend: attention over what is kept.

        Returns:
            [R, T, D] outputs.
        """
        raise NotImplementedError

    def fed_back(self, output: Tensor) -> Tensor:
        """An output [..., D] as the feature of the next step."""
        return output

    def guesses(self, x: Tensor, embedded: Tensor) -> Iterator[Tensor]:
        """Not position by position: it learns from whole sequences, ``train.trainee``."""
        raise AssertionError("a head that goes on from its own output learns from sequences")


# The target's last hidden state of each row: what draft heads look at.


class HiddenStates:
    """One vector per row: the target's last hidden state at the token before the row's root."""

    def __init__(self, rows: int, size: int, like: Tensor) -> None:
        self._states = torch.zeros((rows, size), dtype=like.dtype, device=like.device)

    def first(self, rows: int) -> Tensor:
        """[rows, D] of the first rows."""
        return self._states[:rows]

    def put(self, states: Tensor) -> None:
        """Replaces the first rows' states: [R, D]."""
        self._states[: states.shape[0]] = states

    def put_row(self, row: int, state: Tensor | None) -> None:
        """Replaces one row's state [D]; zeros if a prompt of one token has none."""
        self._states[row] = 0 if state is None else state

    def move(self, source: int, target: int) -> None:
        """Copies a row's state over another's."""
        self._states[target] = self._states[source]


class DraftingOnLast(Drafting):
    """Drafting that looks at the target's last hidden state at the token before the root."""

    follows = True

    def __init__(self, hidden: HiddenStates) -> None:
        self.hidden = hidden
        self._followed: Tensor | None = None  # the states that were gone on from

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self.hidden.put_row(row, None)

    def see_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        self.hidden.put_row(row, hidden[-1])

    def see_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows = places(path.shape[0], hidden.device)
        self.hidden.put(hidden[rows, path[rows, accepted]])

    def follow(self, verified: Verified, depth: int, following: Committed) -> None:
        self._followed = self.hidden.first(len(verified.lengths)).clone()

    def caught_up(self, row: int, tokens: int, emitted: int) -> None:
        assert self._followed is not None
        self.hidden.put_row(row, self._followed[row])

    def move_row(self, source: int, target: int) -> None:
        self.hidden.move(source, target)


# Heads with a cache of their own, on what the target hands over.


def attending(cache: SlotCache, mask: Tensor) -> Attend:
    """Attention over a cache's slots that ``mask`` shows, after a write that was begun."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        keys, values = cache.layers[layer].update(k, v)
        grouped = q.shape[1] != keys.shape[1]
        return scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
        )

    return attend


class DraftingOnHanded(Drafting):
    """Drafting whose head keeps an entry for each token that the target handed something over for.

    Those of an iteration's path wait for the next tree. Letters: P entries that wait, W of what is
    handed over.
    """

    follows = True

    def __init__(
        self, head: CachedHead, target: LanguageModel, cache: SlotCache, rows: int, waiting: int
    ) -> None:
        self._target, self._cache = target, cache
        like = next(head.parameters())
        self._handed = like.new_zeros((rows, 1, head.features))  # [rows, P, W], not yet cached
        self._waiting = [waiting] * rows
        self._cached = [0] * rows  # entries of each row that the target's states made
        self._followed = self._outputs = like.new_empty(0)  # what was gone on from; the head's own
        self._timer = ForwardTimer(like.device)

    def see_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows, count = path.shape
        room = self._handed
        if count > room.shape[1]:
            self._handed = room.new_zeros((room.shape[0], count, room.shape[2]))
            for waiting in range(1, count + 1):  # as many as may wait from now on
                places(waiting, room.device)
        taken = hidden.gather(1, path.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        self._handed[:rows, :count] = taken.to(room.dtype)

    def commit(
        self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor, depth: int
    ) -> None:
        for row, (length, kept) in enumerate(zip(lengths, nodes, strict=True)):
            self._cached[row], self._waiting[row] = length, len(kept)

    def caught_up(self, row: int, tokens: int, emitted: int) -> None:
        self._handed[row] = self._followed[row]
        self._cached[row], self._waiting[row] = tokens - 1 - emitted, emitted

    def move_row(self, source: int, target: int) -> None:
        self._cache.move_row(source, target, self._cached[source])
        self._handed[target] = self._handed[source]
        self._cached[target], self._waiting[target] = self._cached[source], self._waiting[source]


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


def keep_outputs(heads: Heads, ids: Sequence[int], output: Tensor) -> None:
    """Cuts the last layers of draft heads, in place, to the target's tokens ``ids``.

    ``output`` [V, D] is the target's last layer, which EAGLE-1's, MTP's and DFlash's heads use.

    Raises:
        ValueError: the heads know none of these tokens.
    """
    size = heads.shape.vocab
    known = heads.ids if isinstance(heads, CachedHead) else None
    if known is not None:  # a vocabulary of their own: their outputs bear other numbers
        size, kept = len(known), set(ids)
        ids = [place for place, token in enumerate(known.tolist()) if token in kept]
    if not any(token < size for token in ids):
        raise ValueError("pair.draft_vocabulary: the draft heads know none of these tokens")
    if isinstance(heads, CachedHead) and heads.reads_target:
        heads.cut_down = KeptOutputs(output, None, ids)
        return
    for parent in list(heads.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features == size:
                setattr(parent, name, KeptOutputs(layer.weight, layer.bias, ids))
