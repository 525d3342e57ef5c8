"""Simulated acceptance: accepts children with given probabilities, so that
models need not agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from annotated_types import MinLen
from torch import Tensor

from spec_bench.core.tree import Siblings, TreeShape
from spec_bench.settings.fields import Share
from spec_bench.system.errors import UsageError
from spec_bench.verify.base import NodeVerifier, TreeVerifier, rule
from spec_bench.verify.walk import NodeRule, Verdict


def solve_uniform_acceptance(block_efficiency: float, depth: int) -> float:
    """Solves 1 + a + ... + a^L = tau for the acceptance a of every level, with L = ``depth`` and
    tau the block efficiency: the walk reaches depth d with probability a^d. Raises UsageError if
    tau is outside of [1, L + 1] or L < 1.
    """
    if depth < 1 or not 1 <= block_efficiency <= depth + 1:
        raise UsageError(
            f"a tree of depth {depth} has a block efficiency between 1 and {depth + 1}, got "
            f"{block_efficiency}"
        )
    low = 0.0
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**level for level in range(depth + 1)) < block_efficiency:
            low = middle
        else:
            high = middle
    return high


def simulate(
    p: Tensor,
    q: Tensor | None,
    tokens: Tensor,
    valid: Tensor,
    *,
    acceptance: float,
    timed_rule: NodeRule | None = None,
) -> Verdict:
    """Accepts the node's first existing child with a given probability, whatever p and q.

    In a beam the first child is the one most likely to have children, so that the walk can go on.
    ``timed_rule`` is computed so that its time counts, and its residual is used; without it the
    residual is p. The output does not have the target's distribution.
    """
    residual = p if timed_rule is None else timed_rule(p, q, tokens, valid).residual
    first_child = valid & (valid.cumsum(dim=-1) == 1)
    return Verdict(first_child.to(p.dtype) * acceptance, residual)


@rule(
    "simulated",
    siblings=("iid", "without_replacement", "deterministic"),
    mark="simulated",
    several_drafts=True,
)
@dataclass(frozen=True)
class SimulatedAcceptance(TreeVerifier):
    """Accepts children with given probabilities."""

    # one probability for all levels, or one for each level, the root's children first
    acceptance: Share | Annotated[tuple[Share, ...], MinLen(1)]
    # the `verifier` block of a rule that is computed for its time
    computed: Mapping[str, Any] | None = None

    def judge(self, depth: int) -> tuple[NodeRule, ...]:
        """Makes one rule per level above the leaves."""
        verifier = self._make_timed_verifier()
        timed_rule = verifier.judge(depth) if verifier else None
        acceptance = self.acceptance
        values = acceptance if isinstance(acceptance, tuple) else (acceptance,) * depth
        return tuple(
            partial(simulate, acceptance=value, timed_rule=timed_rule) for value in values[:depth]
        )

    def check(
        self,
        tree: str,
        shape: TreeShape,
        siblings: Siblings,
        drafts: int,
    ) -> None:
        if isinstance(self.acceptance, tuple) and len(self.acceptance) < shape.depth:
            raise UsageError(
                f"verifier.acceptance {list(self.acceptance)} has {len(self.acceptance)} values, "
                f"the tree has depth {shape.depth}"
            )
        if verifier := self._make_timed_verifier():
            verifier.check(tree, shape, siblings, drafts)

    def _make_timed_verifier(self) -> NodeVerifier | None:
        """Makes the verifier of ``computed``; None if that is not set. Raises UsageError if it does
        not judge single nodes.
        """
        if self.computed is None:
            return None
        verifier = rule.build_from_block(self.computed, "rule", "verifier.computed")
        if not isinstance(verifier, NodeVerifier):
            raise UsageError(
                f"verifier.computed.rule must judge one node at a time, got {verifier.name!r}"
            )
        return verifier
