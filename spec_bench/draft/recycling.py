"""Token Recycling (Luo et al., 2024, arXiv 2408.08696): what the target thought of before.

For every token the target's best next tokens where it last read that token, in a rejected node or
an accepted one. A tree of fixed form is filled from them, rank by rank, without a model: two
megabytes for a large vocabulary. Proposals follow from what the row has committed and verified, so
every rule for deterministic siblings keeps the target's distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from spec_bench.core.transfer import Committed, places
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, Drafting, Equipment, drafter
from spec_bench.settings.fields import Range


class RecyclingDrafting(Drafting):
    """The best next tokens of each token: tables [rows, V + 1, best], zeros where nothing is known;
    the last line is for nobody.
    """

    def __init__(self, given: Equipment, best: int) -> None:
        self._vocab = given.target.vocab_size
        shape = (given.rows, self._vocab + 1, min(best, self._vocab))
        self.tables = torch.zeros(shape, dtype=torch.long, device=given.target.device)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self.tables[row] = 0

    def see_scores(self, tree: Tree, logits: Tensor) -> None:
        tokens, count = tree.tokens, logits.shape[1]
        # Of nodes with one token the last stays; the others write where nobody reads.
        order = places(count, tokens.device)
        later = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & (order > order.unsqueeze(1))
        tokens = tokens.masked_fill((later & tree.valid.unsqueeze(1)).any(dim=2), self._vocab)
        tokens = tokens.masked_fill(~tree.valid, self._vocab)
        rows = places(len(tokens), tokens.device).unsqueeze(1)
        self.tables[rows, tokens] = logits.topk(self.tables.shape[-1], dim=-1).indices

    def at_root(self, committed: Committed) -> Tensor:
        return self._below(committed.roots.on(self.tables.device).unsqueeze(1))

    def at_frontier(self, tree: Tree, committed: Committed) -> Tensor:
        return self._below(tree.tokens[:, tree.frontier])

    def _below(self, tokens: Tensor) -> Tensor:
        """Logits [R, F, 1, V] below tokens [R, F]: the better the rank the higher, else -inf."""
        best = self.tables[places(len(tokens), tokens.device).unsqueeze(1), tokens]
        ranks = -places(best.shape[-1], best.device).to(torch.float32)
        logits = ranks.new_full((*tokens.shape, self._vocab), -torch.inf)
        # Zeros stand for what is not known yet: all of them name token 0.
        return logits.scatter_reduce(2, best, ranks.expand(best.shape), "amax").unsqueeze(2)

    def move_row(self, source: int, target: int) -> None:
        self.tables[target] = self.tables[source]


@drafter("recycling")
@dataclass(frozen=True)
class Recycling(Drafter):
    """The target's own best guesses from when it last read a token."""

    best: Annotated[int, Range(1, 64)] = 10  # how many are kept of each token

    policies = ("node_list",)

    def calls(self, depth: int) -> int:
        """0: no network drafts."""
        return 0

    def drafting(self, equipment: Equipment) -> Drafting:
        return RecyclingDrafting(equipment, self.best)
