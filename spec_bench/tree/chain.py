"""The smallest trees: the root alone, and a chain of draft tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spec_bench.core import processes
from spec_bench.core.draws import Draws
from spec_bench.core.transfer import Committed
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.draft.base import Drafting
from spec_bench.settings.fields import Count, Share
from spec_bench.tree.base import AuditTree, GrownTree, logits_below, policy
from spec_bench.tree.widths import grow_iid
from spec_bench.vocabulary.spec import Spec


@policy("root", forms=("root",), takes="'-' (no tree)")
@dataclass(frozen=True)
class Root(GrownTree):
    """No tree: the decoding loop is autoregressive."""

    drafters = ("none",)
    fixed_parents = True

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {}

    @property
    def spec(self) -> str:
        return "-"

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((), ())

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "iid"

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls()),)


@policy("chain", forms=("number",), takes="a draft length such as 3")
@dataclass(frozen=True)
class Chain(GrownTree):
    """One child per node: speculative decoding as first published."""

    depth: Count  # L

    fixed_parents = True

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"depth": spec.numbers[0]}

    @property
    def spec(self) -> str:
        return str(self.depth)

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((1,) * self.depth, (1,) * self.depth)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "iid"

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        grow_iid(tree, scores, draws, 1)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2)),)


# A chain that is as long as the draft is sure of it.


@policy("dynamic_chain", forms=("number",), takes="the most draft tokens such as 8")
@dataclass(frozen=True)
class DynamicChain(Chain):
    """At most L tokens, each drawn from the draft, until one of them is doubtful.

    The token that stopped the chain stays its last: drafting may depend on all tokens drawn, but
    every token drawn must be verified. In a batch a row that has stopped waits for the others, with
    absent nodes from there on; random numbers are drawn for L tokens in any case.

    Attributes:
        depth: L.
        confidence: stops after a token that the draft gives less than this at temperature 1,
            whatever the text is sampled at (0.4 by default in transformers >= 4.45,
            ``assistant_confidence_threshold``).
        path: stops where the product of these probabilities is less than this; null: never. See
            ``worth_drafting``.
    """

    confidence: Share = 0.4
    path: Share | None = None

    fixed_parents = False
    varies = True
    asks = True

    def plant(
        self,
        drafting: Drafting,
        committed: Committed,
        device: torch.device,
        settings: SamplingSettings,
        draws: Draws,
    ) -> Tree:
        tree = Tree(self.shape, committed.roots.on(device), self.siblings(settings))
        going = torch.ones(len(committed), dtype=torch.bool, device=device)
        path = torch.ones(len(committed), dtype=settings.dtype, device=device)
        for level in range(self.depth):
            logits = logits_below(tree, drafting, committed)
            self.grow(tree, log_probs(logits, settings.for_draft()), draws)
            node = level + 1
            tree.valid[:, node] &= going
            token = tree.tokens[:, node].unsqueeze(1)
            sure = logits[:, 0, 0].to(settings.dtype).softmax(dim=-1).gather(1, token).squeeze(1)
            path = path * sure
            going = going & (sure >= self.confidence)
            if self.path is not None:
                going = going & (path >= self.path)
            processes.agree(going)
            if not bool(going.any()):  # the one question of a level: is another pass wanted?
                break
        skip(draws, self.depth - tree.grown, tree)
        return shortened(tree)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(3, confidence=0.4), vocab=2), AuditTree(cls(2, 0.0, path=0.5)))


def skip(draws: Draws, levels: int, tree: Tree) -> None:
    """Draws the random numbers of ``levels`` levels of one token that are not grown."""
    surely = torch.ones((len(tree.tokens), 1, 1), dtype=torch.float64, device=tree.tokens.device)
    for _ in range(levels):
        draws.categorical(surely, 1)


def shortened(tree: Tree) -> Tree:
    """The tree without the levels that were not grown; random numbers are those of all levels."""
    levels, size = tree.shape.levels[: tree.grown], tree.shape.starts[tree.grown + 1]
    tree.shape = TreeShape(levels, tree.shape.children)
    tree.tokens, tree.parent = tree.tokens[:, :size], tree.parent[:, :size]
    tree.valid, tree.ancestors = tree.valid[:, :size], tree.ancestors[:, :size, :size]
    return tree


def worth_drafting(
    acceptance: float, tokens_per_s: float, draft_s: float, more_target_s: float
) -> float:
    """The least path probability at which one more draft token pays: ``DynamicChain.path``.

    One more token is worth P(all so far accepted) x P(it is accepted) tokens. It costs its draft
    pass and what it adds to the target's; in that time ``tokens_per_s`` would be delivered anyway.

    Args:
        acceptance: of the next token, expected.
        tokens_per_s: delivered now.
        draft_s: seconds of one draft pass.
        more_target_s: seconds that one more node adds to a target pass.

    Returns:
        The threshold, at most 1; 1 if nothing is ever accepted.
    """
    cost = tokens_per_s * (draft_s + more_target_s)
    return min(cost / acceptance, 1.0) if acceptance > 0 else 1.0
