"""Simulated acceptance, for models whose agreement means nothing, and typical acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import MinLen
from torch import Tensor

from spec_bench.core.tree import Siblings, TreeShape
from spec_bench.core.warp import warped_log_probs
from spec_bench.settings.fields import Share
from spec_bench.system.errors import UsageError
from spec_bench.verify.base import NodeVerifier, TreeVerifier, rule
from spec_bench.verify.walk import NodeRule, ScoredTree, Verdict, WalkResult


def solve_uniform_acceptance(block_efficiency: float, depth: int) -> float:
    """Computes the acceptance a that, equal at every depth of L, gives a block efficiency tau in
    [1, L + 1], else raises UsageError: 1 + a + ... + a^L, as the walk reaches depth d with
    probability a^d.
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
    ``timed_rule`` is computed for its time and its residual; without one the residual is p. The
    output does not have the target's distribution.
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

    # one for all levels, or one for each, the root's first
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
        """Makes the verifier of ``computed``, which must judge single nodes; None if not set."""
        if self.computed is None:
            return None
        verifier = rule.read(self.computed, "rule", "verifier.computed")
        if not isinstance(verifier, NodeVerifier):
            raise UsageError(
                f"verifier.computed.rule must judge one node at a time, got {verifier.name!r}"
            )
        return verifier


# Typical acceptance, which is approximate: a token is accepted if the target finds it likely
# enough. Medusa (arXiv 2401.10774, section 2.3.1); also ReDrafter's second way (arXiv 2403.09919,
# section 3.3, which prints epsilon and delta swapped). Letters: R rows, N nodes, V vocabulary.


def walk_by_typicality(scored_tree: ScoredTree, rule: TypicalAcceptance) -> WalkResult:
    """Finds the longest path of typical tokens, the best-ranked among equally long ones, and draws
    the token after it from the target.
    """
    tree, logits, settings, draws, _ = scored_tree
    rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
    log_p = warped_log_probs(logits, settings)
    parent_log_p = log_p.gather(1, tree.parent.unsqueeze(-1).expand_as(log_p))
    is_typical = rule.accepts(parent_log_p, tree.tokens) & tree.valid
    is_typical[:, 0] = True
    path_is_typical = ~(tree.ancestors & ~is_typical.unsqueeze(1)).any(dim=-1)
    depth = tree.depths
    path_depths = torch.where(path_is_typical, depth, -1)
    last_node = path_depths.argmax(dim=1)  # argmax takes the first of equals
    accepted_count = path_depths[rows, last_node]
    on_path = tree.ancestors[rows, last_node]  # [R, N]
    path = [
        (on_path & (depth == level)).byte().argmax(dim=1) for level in range(tree.shape.depth + 1)
    ]
    token = draws.verdict(tree.shape.children).token(log_p[rows, last_node].exp())
    return WalkResult(torch.stack(path, dim=1), accepted_count, token)


@rule("typical", siblings=("deterministic",), mark="approximate")
@dataclass(frozen=True)
class TypicalAcceptance(TreeVerifier):
    """Accepts x if p(x) > min(epsilon, delta exp(-H(p))), H in nats."""

    epsilon: Share = 0.09  # hard threshold; Medusa's value is 0.09
    delta: Share = 0.3  # entropy-dependent threshold; Medusa's value is its square root, 0.3

    walk = staticmethod(walk_by_typicality)

    def judge(self, depth: int) -> TypicalAcceptance:
        return self

    def accepts(self, log_p: Tensor, token: Tensor) -> Tensor:
        """Checks whether tokens [...] are typical by the target's warped log-probabilities
        [..., V].
        """
        p = log_p.exp()
        entropy = -torch.where(p > 0, p * log_p, 0.0).sum(dim=-1)
        threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
        return p.gather(-1, token.unsqueeze(-1)).squeeze(-1) > threshold
