"""Acceptance that is given, not decided: for models whose agreement means nothing.

Knows probabilities of nodes; nothing about where one comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spec_bench.core.tree import Siblings, TreeShape
from spec_bench.core.warp import log_probs
from spec_bench.settings.fields import Share
from spec_bench.system.errors import UsageError
from spec_bench.verify.base import NodeVerifier, TreeVerifier, rule
from spec_bench.verify.walk import NodeRule, ScoredTree, Verdict, WalkResult


def simulate(
    p: Tensor,
    q: Tensor | None,
    tokens: Tensor,
    valid: Tensor,
    *,
    acceptance: float,
    computed: NodeRule | None = None,
) -> Verdict:
    """Accepts the node's first child with a stated probability, whatever p and q say.

    The first child is the one most likely to have children of its own in a beam, so that a walk
    does not end where the stated acceptance would let it go on; a node without one accepts nothing.
    ``computed`` is a rule that is computed all the same, for its time; without one the residual is
    p. The output does not have the target's distribution.
    """
    residual = p if computed is None else computed(p, q, tokens, valid).residual
    first = valid & (valid.cumsum(dim=-1) == 1)
    return Verdict(first.to(p.dtype) * acceptance, residual)


@rule(
    "simulated",
    siblings=("iid", "without_replacement", "deterministic"),
    mark="simulated",
    several_drafts=True,
)
@dataclass(frozen=True)
class SimulatedAcceptance(TreeVerifier):
    """A stated acceptance."""

    acceptance: Share | tuple[Share, ...]  # for all levels, or one for each, the root's first
    # the `verifier` block of a rule that is computed all the same
    computed: Mapping[str, Any] | None = None

    def judge(self, depth: int) -> tuple[NodeRule, ...]:
        """Returns one rule per level above the leaves."""
        verifier = self._make_computed_rule()
        computed = verifier.judge(depth) if verifier else None
        stated = self.acceptance
        values = stated if isinstance(stated, tuple) else (stated,) * depth
        return tuple(
            partial(simulate, acceptance=value, computed=computed) for value in values[:depth]
        )

    def check(self, tree: str, shape: TreeShape, siblings: Siblings, drafts: int) -> None:
        if isinstance(self.acceptance, tuple) and len(self.acceptance) < shape.depth:
            raise UsageError(
                f"verifier.acceptance {list(self.acceptance)} has {len(self.acceptance)} values, "
                f"the tree has depth {shape.depth}"
            )
        if computed := self._make_computed_rule():
            computed.check(tree, shape, siblings, drafts)

    def _make_computed_rule(self) -> NodeVerifier | None:
        """Returns the rule that is computed all the same; it must judge single nodes."""
        if self.computed is None:
            return None
        verifier = rule.read(self.computed, "rule", "verifier.computed")
        if not isinstance(verifier, NodeVerifier):
            raise UsageError(
                f"verifier.computed.rule must judge one node at a time, got {verifier.name!r}"
            )
        return verifier


# Typical acceptance: a token is accepted if the target finds it likely enough. Approximate.
#
# Medusa (arXiv 2401.10774, section 2.3.1); also ReDrafter's second way (arXiv 2403.09919, section
# 3.3, which prints epsilon and delta swapped). Letters: R rows, N nodes, V vocabulary.


def typical_walk(scored: ScoredTree, rule: TypicalAcceptance) -> WalkResult:
    """Finds the longest path of typical tokens, the first in the tree's order among equally long
    ones, which is the best-ranked; then one token of the target's.
    """
    tree, logits, settings, draws, _ = scored
    rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
    log_p = log_probs(logits, settings)
    at_parent = log_p.gather(1, tree.parent.unsqueeze(-1).expand_as(log_p))
    stands = rule.accepts(at_parent, tree.tokens) & tree.valid
    stands[:, 0] = True
    path_stands = ~(tree.ancestors & ~stands.unsqueeze(1)).any(dim=-1)
    depth = tree.depths
    reached = torch.where(path_stands, depth, -1)
    last = reached.argmax(dim=1)  # argmax takes the first of equals
    accepted = reached[rows, last]
    on_path = tree.ancestors[rows, last]  # [R, N]
    path = [
        (on_path & (depth == level)).byte().argmax(dim=1) for level in range(tree.shape.depth + 1)
    ]
    token = draws.verdict(tree.shape.children).token(log_p[rows, last].exp())
    return WalkResult(torch.stack(path, dim=1), accepted, token)


@rule("typical", siblings=("deterministic",), mark="approximate")
@dataclass(frozen=True)
class TypicalAcceptance(TreeVerifier):
    """Accept x where p(x) > min(epsilon, delta exp(-H(p))), H in nats."""

    epsilon: Share = 0.09  # hard threshold; Medusa's value is 0.09
    delta: Share = 0.3  # entropy-dependent threshold; Medusa's value is its square root, 0.3

    walk = staticmethod(typical_walk)

    def judge(self, depth: int) -> TypicalAcceptance:
        return self

    def accepts(self, log_p: Tensor, token: Tensor) -> Tensor:
        """Returns whether tokens [...] are typical, [...], by the target's warped log-probabilities
        [..., V].
        """
        p = log_p.exp()
        entropy = -torch.where(p > 0, p * log_p, 0.0).sum(dim=-1)
        threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
        return p.gather(-1, token.unsqueeze(-1)).squeeze(-1) > threshold
