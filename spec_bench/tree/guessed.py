"""A tree of guesses made at once, each row's as large as there is something to guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.transfer import Committed, Known
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import Drafting
from spec_bench.draft.ngrams import Guess
from spec_bench.tree.base import AuditTree, policy, scores_below
from spec_bench.tree.chain import Chain, shortened, skip
from spec_bench.tree.widths import Rectangle, grow_iid


@policy(
    "guessed", forms=("product",), takes="WxL: at most W guesses a level on L levels, such as 1x10"
)
@dataclass(frozen=True)
class Guessed(Rectangle):
    """At most W nodes on each of at most L levels, siblings in order of rank, one-hot.

    An iteration's tree is as deep and as wide as its largest row needs, just a root if no row has
    a guess; the random numbers drawn are always those of the largest tree.
    """

    drafters = ("lookup", "first_match", "suffix")
    varies = True
    asks = True

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def needs(self, drafting: Drafting, committed: Committed) -> Sequence[Known]:
        guesses = drafting.guesses(committed, self.width, self.depth)
        deepest = max(len(levels) for levels in guesses)
        counts = [
            max(len(levels[level]) if level < len(levels) else 0 for levels in guesses)
            for level in range(deepest)
        ]
        packed = Known(
            [
                _packed(tokens[-1], levels, counts)
                for tokens, levels in zip(committed, guesses, strict=True)
            ]
        )  # [R, 3, N]: tokens, parents within the level above, whether there
        committed.planned = TreeShape(tuple(counts), self.shape.children), packed
        return (packed,)

    def plant(
        self,
        drafting: Drafting,
        committed: Committed,
        device: torch.device,
        settings: SamplingSettings,
        draws: Draws,
    ) -> Tree:
        shape, known = committed.planned
        packed = known.on(device)
        tree = Tree(shape, packed[:, 0, 0], "deterministic")
        for level in range(shape.depth):
            tokens, parent, there = packed[:, :, shape.level(level + 1)].unbind(1)
            tree.add_level(tokens, parent, there.bool(), None)
        return tree

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        # After 0 1 the prompt went on with 1 0 and with 0 0, so that two nodes have a child each.
        # After 2 the other prompt went on with 0 first, with 1 later.
        return (
            AuditTree(cls(2, 2), prompt=(0, 1, 1, 0, 1, 0, 0, 1)),
            AuditTree(cls(1, 2), prompt=(2, 0, 1, 2, 1, 0, 2)),
            AuditTree(cls(1, 1), prompt=(1, 0)),  # no guess at all
        )


def _packed(root: int, levels: Sequence[Sequence[Guess]], counts: Sequence[int]) -> list[list[int]]:
    """One row's tokens, parents and whether each node is there, absent nodes last in a level."""
    nodes = [(root, 0, 1)]
    for level, count in enumerate(counts):
        mine = levels[level] if level < len(levels) else ()
        nodes += [(guess.token, guess.parent, 1) for guess in mine]
        nodes += [(root, 0, 0)] * (count - len(mine))
    return [list(part) for part in zip(*nodes, strict=True)]


# A chain that is looked up where the row's past has a match, and drafted where it has none.


@policy("guess_or_draft", forms=("number",), takes="the most draft tokens such as 6")
@dataclass(frozen=True)
class GuessOrDraft(Chain):
    """At most L tokens looked up, one-hot; or L tokens drawn from the draft model.

    A token looked up is a draw from a one-hot distribution, so a rule for drawn tokens is exact for
    either. The model runs if some row of the batch has no match.
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
    """[R, 1, 1, V] log-probabilities of distributions that have one token each."""
    vocab: int = drafting.vocab_size  # type: ignore[attr-defined]
    none = torch.full((len(tokens), vocab), -torch.inf, dtype=settings.dtype, device=tokens.device)
    return none.scatter_(1, tokens.unsqueeze(1), 0.0)[:, None, None]
