"""A head that goes on from its own output: of a feature and the next token's embedding it makes an
output, which gives the logits of the token after and stands in for the feature one step further.

EAGLE's heads and multi-token prediction (MTP) are such heads; ``eagle.EagleDrafting`` drafts with
them, ``train.trainee`` trains them.

Letters: R rows, T tokens, D width, W width of what the target hands over, V tokens, V' those that
the head knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from spec_bench.draft.cached_head import Attend, CachedHead, Embed


class FeatureHead(CachedHead):
    """What drafts from a feature."""

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

    def guesses(self, x: Tensor, embedded: Tensor) -> Iterator[Tensor]:
        """Not position by position: it learns from whole sequences, ``train.trainee``."""
        raise AssertionError("a head that goes on from its own output learns from sequences")
