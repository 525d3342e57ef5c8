"""A fixed number of children per level: chains, SpecInfer's and MCSD's trees, RSD-C."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import gumbel_top_k
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.policy.base import Siblings


def _shape(widths: tuple[int, ...]) -> TreeShape:
    levels, count = [], 1
    for width in widths:
        count *= width
        levels.append(count)
    return TreeShape(tuple(levels), widths)


class Widths:
    """``widths[l]`` children for every node of level l.

    With one draft and without replacement this is RSD-C (RSD Algorithm 3, Gumbel-top-k) and MCSD's
    sampling without replacement; i.i.d. it is SpecInfer's and MCSD's tree; with no widths at all it
    is the root alone, which makes the decoding loop autoregressive.

    Args:
        widths: children per node at each level, each at least 1.
        siblings: ``iid`` (several drafts share the children in turn), ``without_replacement``, or
            ``deterministic`` (the draft's best tokens in rank order: the limit at temperature 0).
    """

    merge_copies = False
    fixed_parents = True

    def __init__(self, widths: tuple[int, ...], siblings: Siblings) -> None:
        self.widths = widths
        self.siblings = siblings
        self.shape = _shape(widths)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        width = self.widths[tree.grown]
        if self.siblings == "iid":
            self._grow_iid(tree, scores, draws, width)
            return
        log_q = scores.squeeze(2)
        parent = torch.arange(log_q.shape[1], device=log_q.device).repeat_interleave(width)
        deterministic = self.siblings == "deterministic"
        noise = torch.zeros_like(log_q) if deterministic else draws.gumbel(log_q)
        tokens, valid = gumbel_top_k(log_q, noise, width)
        missing = (0, width - tokens.shape[-1])  # more children asked for than there are tokens
        tokens, valid = pad(tokens, missing).flatten(1), pad(valid, missing).flatten(1)
        tree.add_level(tokens, parent, valid, None if deterministic else scores.exp())

    def _grow_iid(self, tree: Tree, scores: Tensor, draws: Draws, width: int) -> None:
        """Child j of a node comes from draft j mod D, so that every draft gets its share."""
        rows, nodes, drafts, _ = scores.shape
        q = scores.exp()
        drawn = draws.categorical(q.flatten(1, 2), -(-width // drafts))
        drawn = drawn.view(rows, nodes, drafts, -1).transpose(2, 3)
        tokens = drawn.reshape(rows, nodes, -1)[..., :width].flatten(1)
        parent = torch.arange(nodes, device=q.device).repeat_interleave(width)
        tree.add_level(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), q)
