"""A draft head that keeps keys and values of past tokens, and may know some tokens only.

Letters: R rows, T tokens, D width, V tokens, V' those that the head knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from spec_bench.draft.network import Heads

if TYPE_CHECKING:  # it needs transformers, which a refusal does not
    from spec_bench.engine.cache import SlotCache

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
    """What all such heads have.

    Attributes:
        ids: V' target ids of the head's tokens; None where V' = V.
        reads_target: whether the target's last layer makes its logits.
        regresses: whether it also learns to say the target's feature.
        cut_down: some outputs of that layer, in its place; see ``kept_outputs``.
    """

    reads_target: bool = False
    regresses: bool = False
    ids: Tensor | None

    def __init__(self) -> None:
        super().__init__()
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
        """Logits over the target's tokens, -inf for those that the head does not know.

        Args:
            output: [..., D].
            project: the target's last layer.
            vocab: V, tokens that exist.
        """
        return self.spread(self.own_logits(output, project), vocab, -torch.inf)

    def spread(self, known: Tensor, vocab: int, others: float) -> Tensor:
        """Numbers [..., V'] of the tokens that the head knows as [..., V], the others' as given."""
        if self.ids is None:
            return known[..., :vocab]
        full = known.new_full((*known.shape[:-1], max(vocab, self.shape.vocab)), others)
        return full.index_copy(-1, self.ids, known)[..., :vocab]
