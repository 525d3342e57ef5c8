"""A fixed number of children per level: SpecInfer's and MCSD's trees, RSD-C."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import gumbel_top_k
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.tree.base import AuditTree, distinct, policy
from spec_bench.tree.sizes import Branching


@policy("widths", forms=("number", "levels"), takes="children per level such as 2-2-1")
@dataclass(frozen=True)
class Widths(Branching):
    """``widths[l]`` children for every node of level l.

    Without replacement this is RSD-C (RSD Algorithm 3, Gumbel-top-k) and MCSD's sampling without
    replacement; with replacement it is SpecInfer's and MCSD's tree.

    Attributes:
        widths: children per node at each level.
        replacement: whether the children of a node are i.i.d. draws, shared in turn by several
            drafts, or distinct.
    """

    replacement: bool

    @property
    def several_drafts(self) -> bool:
        return self.replacement

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "iid" if self.replacement else distinct(settings)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        width = self.widths[tree.grown]
        if tree.siblings == "iid":
            grow_iid(tree, scores, draws, width)
            return
        log_q = scores.squeeze(2)
        parent = torch.arange(log_q.shape[1], device=log_q.device).repeat_interleave(width)
        deterministic = tree.siblings == "deterministic"
        noise = torch.zeros_like(log_q) if deterministic else draws.gumbel(log_q)
        tokens, valid = gumbel_top_k(log_q, noise, width)
        missing = (0, width - tokens.shape[-1])  # more children asked for than there are tokens
        tokens, valid = pad(tokens, missing).flatten(1), pad(valid, missing).flatten(1)
        tree.add_level(tokens, parent, valid, None, None if deterministic else log_q)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (
            AuditTree(cls((2, 1), replacement=True)),
            AuditTree(cls((3,), replacement=True)),
            AuditTree(cls((2,), replacement=True), drafts=2),
            AuditTree(cls((2, 1), replacement=False)),
            AuditTree(cls((3, 1), replacement=False)),
        )


def grow_iid(tree: Tree, scores: Tensor, draws: Draws, width: int) -> None:
    """Adds a level of i.i.d. children.

    Child j of a node comes from draft j mod D, so that every draft gets its share.

    Args:
        tree: grown up to its frontier of F nodes.
        scores: [R, F, D, V] warped log-probabilities of each draft.
        draws: randomness.
        width: children per node.
    """
    rows, nodes, drafts, _ = scores.shape
    q = scores.exp()
    drawn = draws.categorical(q.flatten(1, 2), -(-width // drafts))
    drawn = drawn.view(rows, nodes, drafts, -1).transpose(2, 3)
    tokens = drawn.reshape(rows, nodes, -1)[..., :width].flatten(1)
    parent = torch.arange(nodes, device=q.device).repeat_interleave(width)
    tree.add_level(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), q)
