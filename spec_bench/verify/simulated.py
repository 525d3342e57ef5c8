"""Acceptance that is given, not decided: for models whose agreement means nothing.

Knows probabilities of nodes; nothing about where one comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from spec_bench.core.tree import Siblings, TreeShape
from spec_bench.settings.fields import Share
from spec_bench.verify.base import NodeVerifier, TreeVerifier, read_verifier, rule
from spec_bench.verify.verdict import NodeRule, Verdict


def simulated(
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
    does not end where the stated acceptance would let it go on. The output does not have the
    target's law.

    Args:
        p: [B, V].
        q: [B, 1 or C, V] or None.
        tokens: [B, C].
        valid: [B, C]; the first child that exists counts, a node without one accepts nothing.
        acceptance: P(the walk leaves the node by an accepted child).
        computed: a rule that is computed all the same, for its time; its residual is used.

    Returns:
        The verdict; without ``computed`` the residual is p.
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
class Simulated(TreeVerifier):
    """A stated acceptance.

    Attributes:
        acceptance: for all levels, or one for each, the root's first.
        computed: the ``verifier`` block of a rule that is computed all the same.
    """

    acceptance: Share | tuple[Share, ...]
    computed: Mapping[str, Any] | None = None

    def judge(self, depth: int) -> tuple[NodeRule, ...]:
        """One rule per level above the leaves."""
        verifier = self._computed()
        computed = verifier.judge(depth) if verifier else None
        stated = self.acceptance
        values = stated if isinstance(stated, tuple) else (stated,) * depth
        return tuple(
            partial(simulated, acceptance=value, computed=computed) for value in values[:depth]
        )

    def check(self, tree: str, shape: TreeShape, siblings: Siblings, drafts: int) -> None:
        if isinstance(self.acceptance, tuple) and len(self.acceptance) < shape.depth:
            raise ValueError(
                f"verifier.acceptance {list(self.acceptance)} has {len(self.acceptance)} values, "
                f"the tree has depth {shape.depth}"
            )
        if computed := self._computed():
            computed.check(tree, shape, siblings, drafts)

    def _computed(self) -> NodeVerifier | None:
        """The rule that is computed all the same.

        Raises:
            ValueError: it does not judge single nodes.
        """
        if self.computed is None:
            return None
        verifier = read_verifier(self.computed, "verifier.computed")
        if not isinstance(verifier, NodeVerifier):
            raise ValueError(
                f"verifier.computed.rule must judge one node at a time, got {verifier.name!r}"
            )
        return verifier
