"""A head that goes on from its own output: of a feature and the next token's embedding it makes an
output, which gives the logits of the token after and stands in for the feature one step further.

EAGLE's heads and multi-token prediction (MTP) are such heads; ``eagle.EagleDrafting`` drafts with
them, ``train.unrolled`` trains them.

Letters: R rows, T tokens, D width, W width of what the target hands over, V tokens, V' those that
the head knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

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


class FeatureHead(Heads):
    """What drafts from a feature.

    Attributes:
        ids: V' target ids of the head's tokens; None where V' = V.
        reads_target: whether the target's last layer makes its logits.
        regresses: whether it also learns to say the target's feature.
        cut_down: some outputs of that layer, in its place; see ``kept_outputs``.
    """

    reads_target: ClassVar[bool] = False
    regresses: ClassVar[bool] = False
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

    def embedded(self, tokens: Tensor, embed: Embed) -> Tensor:
        """The target's embeddings, or the head's own if its width differs.

        Args:
            tokens: [...].
            embed: the target's.
        """
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
        logits = self.own_logits(output, project)
        if self.ids is None:
            return logits[..., :vocab]
        full = logits.new_full((*logits.shape[:-1], max(vocab, self.shape.vocab)), -torch.inf)
        return full.index_copy(-1, self.ids, logits)[..., :vocab]

    def guesses(self, x: Tensor, embedded: Tensor) -> Iterator[Tensor]:
        """Not position by position: it learns from whole sequences, ``train.unrolled``."""
        raise AssertionError("a head that goes on from its own output learns from sequences")
