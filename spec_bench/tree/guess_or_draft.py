"""A chain that is looked up where the row's past has a match, and drafted where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.transfer import Committed, Known
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import Drafting
from spec_bench.tree.base import AuditTree, policy, scores_below
from spec_bench.tree.chain import Chain
from spec_bench.tree.dynamic_chain import shortened, skip
from spec_bench.tree.widths import grow_iid


@policy("guess_or_draft", forms=("number",), takes="the most draft tokens such as 6")
@dataclass(frozen=True)
class GuessOrDraft(Chain):
    """At most L tokens looked up, one-hot; or L tokens drawn from the draft model.

    A token looked up is a draw from a one-hot law, so a rule for drawn tokens is exact for either.
    The model runs if some row of the batch has no match.

    Attributes:
        depth: L.
    """

    fixed_parents = False
    varies = True
    asks = True
    drafters = ("lookup_or_model",)

    def needs(self, drafting: Drafting, committed: Committed) -> Sequence[Known]:
        chains = [
            [level[0].token for level in levels]
            for levels in drafting.guesses(committed, 1, self.depth)
        ]
        counts = Known([len(tokens) for tokens in chains])
        packed = Known([[*tokens, *[0] * (self.depth - len(tokens))] for tokens in chains])
        committed.planned = counts, packed
        needed = () if all(counts) else drafting.needs(committed)
        return (counts, packed, *needed)

    def plant(
        self,
        drafting: Drafting,
        committed: Committed,
        device: torch.device,
        settings: SamplingSettings,
        draws: Draws,
    ) -> Tree:
        counts, guesses = committed.planned
        tree = Tree(self.shape, committed.roots.on(device), self.siblings(settings))
        count, guess = counts.on(device), guesses.on(device)
        runs = not all(counts)
        for level in range(self.depth if runs else max(counts)):
            scores = _surely(guess[:, level], drafting, settings)
            if runs:
                drafted = scores_below(tree, drafting, committed, settings)
                scores = torch.where((count > 0).view(-1, 1, 1, 1), scores, drafted)
            grow_iid(tree, scores, draws, 1)
            tree.valid[:, level + 1] &= (count == 0) | (count > level)
        skip(draws, self.depth - tree.grown, tree)
        return shortened(tree)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2)), AuditTree(cls(3), prompt=(0, 1, 1, 0, 1, 2, 0, 1)))


def _surely(tokens: Tensor, drafting: Drafting, settings: SamplingSettings) -> Tensor:
    """[R, 1, 1, V] log-probabilities of laws that have one token each."""
    vocab: int = drafting.vocab_size  # type: ignore[attr-defined]
    none = torch.full((len(tokens), vocab), -torch.inf, dtype=settings.dtype, device=tokens.device)
    return none.scatter_(1, tokens.unsqueeze(1), 0.0)[:, None, None]
