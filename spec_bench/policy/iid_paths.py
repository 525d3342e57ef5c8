"""K independent paths from the root: SpecTr's drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.policy.base import Siblings


class IidPaths:
    """K i.i.d. paths of length L (SpecTr, arXiv 2310.15141; RSD section 5).

    Paths are kept apart even where they agree; the walk treats equal prefixes as one node whose
    candidates are the next tokens of all paths still alive, with multiplicity.

    Args:
        paths: K, at least 1.
        depth: L, at least 1.
    """

    siblings: Siblings = "iid"
    merge_copies = True
    fixed_parents = True

    def __init__(self, paths: int, depth: int) -> None:
        self.paths = paths
        self.shape = TreeShape((paths,) * depth, (paths,) * depth)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        q = scores.exp()
        first = tree.grown == 0
        tokens = draws.categorical(q.squeeze(2), self.paths if first else 1).flatten(1)
        path = torch.arange(self.paths, device=q.device)
        parent = torch.zeros_like(path) if first else path
        tree.add_level(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), q)
