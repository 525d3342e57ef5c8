"""A drafter without a model: what followed the last token before, in the prompt and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, Drafting, Equipment, drafter

_UNSEEN = 0.01  # counts of a token that has not followed yet


class BigramDrafting(Drafting):
    """Counts followers."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab  # V

    def at_root(self, committed: Sequence[Sequence[int]]) -> Tensor:
        """Logits [R, 1, 1, V]: followers of the last token."""
        return torch.stack([self._followers(row, [row[-1]]) for row in committed])

    def at_frontier(self, tree: Tree, committed: Sequence[Sequence[int]]) -> Tensor:
        """Logits [R, F, 1, V]: followers of each of the frontier's F nodes."""
        last = tree.tokens[:, tree.frontier].tolist()
        return torch.stack([self._followers(*each) for each in zip(committed, last, strict=True)])

    def _followers(self, row: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Log counts [F, 1, V] of what follows each of the tokens in a row."""
        counts = torch.full((len(tokens), 1, self._vocab), _UNSEEN)
        for before, after in pairwise(row):
            for place, token in enumerate(tokens):
                if before == token:
                    counts[place, 0, after] += 1
        return counts.log()


@drafter("bigram")
@dataclass(frozen=True)
class Bigram(Drafter):
    """The followers of the last token."""

    def drafting(self, equipment: Equipment) -> Drafting:
        return BigramDrafting(equipment.target.vocab_size)
