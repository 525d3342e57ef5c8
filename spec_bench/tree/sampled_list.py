"""A listed tree whose siblings are drawn: Sequoia's (arXiv 2402.12374, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import gumbel_top_k
from spec_bench.core.transfer import constant
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.tree.base import AuditTree, distinct, policy
from spec_bench.tree.node_list import NodeList


@policy("sampled_list", forms=("name",), takes="the name of a node list")
@dataclass(frozen=True)
class SampledList(NodeList):
    """Node (1, 0) is the first child drawn of the second child drawn; siblings are distinct.

    The list is fixed before anything is drawn, and ranks are the order of drawing, so a node's
    presence does not depend on its token: recursive rejection and traversal verification are exact.

    Attributes:
        nodes: the name of a list that ships, or paths of ranks; every node's parent and earlier
            siblings are nodes too.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        known = set(self.paths)
        for node in self.paths:
            if node[-1] > 0 and (*node[:-1], node[-1] - 1) not in known:
                raise ValueError(
                    f"nodes: node {list(node)} is drawn after its sibling of rank {node[-1] - 1}, "
                    "which is not in the list"
                )

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return distinct(settings)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        log_q = scores[:, :, 0]
        ranks_here, parents_here = self.levels[tree.grown]
        ranks, parent = constant(ranks_here, log_q.device), constant(parents_here, log_q.device)
        most = max(ranks_here) + 1
        deterministic = tree.siblings == "deterministic"
        noise = torch.zeros_like(log_q) if deterministic else draws.gumbel(log_q)
        tokens, valid = gumbel_top_k(log_q, noise, most)  # [R, F, most]
        missing = (0, most - tokens.shape[-1])  # more children asked for than there are tokens
        tokens, valid = (
            pad(tokens, missing)[:, parent, ranks],
            pad(valid, missing)[:, parent, ranks],
        )
        tree.add_level(tokens, parent, valid, None, None if deterministic else log_q)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)))), AuditTree(cls(((0,), (1,), (1, 0), (1, 1)))))
