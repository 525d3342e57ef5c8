"""Token Recycling (Luo et al., 2024, arXiv 2408.08696): reuses the target's own earlier candidates.

A table holds, for every token, the target's likeliest next tokens from the last time that it read
this token, in an accepted or a rejected node. A tree of fixed form is filled from the table, rank
by rank. The table takes about ten megabytes for a vocabulary of 128k tokens. Letters: R rows, F
frontier nodes, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from spec_bench.core.host_device import CommittedTokens, cached_arange
from spec_bench.core.tree import Tree
from spec_bench.draft.base import (
    Drafter,
    DraftResources,
    DraftState,
    drafter,
)


class RecyclingDraftState(DraftState):
    """State that drafts from tables [rows, V + 1, best] of each token's likeliest next tokens,
    zeros at first. The last line is written but never read.
    """

    recordable = True

    def __init__(self, resources: DraftResources, best: int) -> None:
        self._vocab = resources.target.vocab_size
        shape = (resources.rows, self._vocab + 1, min(best, self._vocab))
        self.tables = torch.zeros(shape, dtype=torch.long, device=resources.target.device)

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        self.tables[row] = 0

    def observe_scores(self, tree: Tree, logits: Tensor) -> None:
        tokens = tree.tokens
        count = logits.shape[1]
        # Of nodes with equal tokens the last is kept; the others write to the unread line.
        order = cached_arange(count, tokens.device)
        later = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & (order > order.unsqueeze(1))
        tokens = tokens.masked_fill((later & tree.valid.unsqueeze(1)).any(dim=2), self._vocab)
        tokens = tokens.masked_fill(~tree.valid, self._vocab)
        rows = cached_arange(len(tokens), tokens.device).unsqueeze(1)
        self.tables[rows, tokens] = logits.topk(self.tables.shape[-1], dim=-1).indices

    def root_logits(self, committed: CommittedTokens) -> Tensor:
        return self._rank_followers(committed.roots.get_tensor(self.tables.device).unsqueeze(1))

    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        return self._rank_followers(tree.tokens[:, tree.frontier])

    def _rank_followers(self, tokens: Tensor) -> Tensor:
        """Makes logits [R, F, 1, V] below tokens [R, F] from ranks: 0 for the best, -1 for the
        next, ..., else -inf.
        """
        best = self.tables[cached_arange(len(tokens), tokens.device).unsqueeze(1), tokens]
        ranks = -cached_arange(best.shape[-1], best.device).to(torch.float32)
        logits = ranks.new_full((*tokens.shape, self._vocab), -torch.inf)
        # Unknown entries are zeros, which name token 0; duplicates take the best rank.
        return logits.scatter_reduce(2, best, ranks.expand(best.shape), "amax").unsqueeze(2)

    def move_row(self, source: int, target: int) -> None:
        self.tables[target] = self.tables[source]


@drafter("recycling")
@dataclass(frozen=True)
class TokenRecycling(Drafter):
    """The target's own best guesses from when it last read a token."""

    best: Annotated[int, Interval(ge=1, le=64)] = 10  # number of next tokens kept for each token

    policies = ("node_list",)
    passes = 0

    def make_state(self, resources: DraftResources) -> DraftState:
        return RecyclingDraftState(resources, self.best)
