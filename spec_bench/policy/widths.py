"""A fixed number of children per level: chains, SpecInfer's and MCSD's trees, RSD-C."""

from __future__ import annotations

import torch
from torch import Tensor

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

    def __init__(self, widths: tuple[int, ...], siblings: Siblings) -> None:
        self.widths = widths
        self.siblings = siblings
        self.shape = _shape(widths)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        rows, nodes, drafts, vocab = scores.shape
        width = self.widths[tree.grown]
        device = scores.device
        parent = torch.arange(nodes, device=device).repeat_interleave(width)
        if self.siblings == "iid":
            q = scores.exp().flatten(1, 2)
            # Child j of a node comes from draft j mod D, so that every draft gets its share.
            source = torch.arange(width, device=device) % drafts
            drawn = draws.categorical(q, -(-width // drafts)).view(rows, nodes, drafts, -1)
            tokens = drawn.transpose(2, 3).reshape(rows, nodes, -1)[..., :width]
            q_row = (torch.arange(nodes, device=device).unsqueeze(1) * drafts + source).flatten()
            valid = torch.ones_like(tokens, dtype=torch.bool)
        else:
            log_q = scores.squeeze(2)
            deterministic = self.siblings == "deterministic"
            noise = torch.zeros_like(log_q) if deterministic else draws.gumbel(log_q)
            tokens, valid = gumbel_top_k(log_q, noise, width)
            q, q_row = (None, None) if deterministic else (log_q.exp(), parent)
            if tokens.shape[-1] < width:
                missing = width - tokens.shape[-1]
                tokens = torch.nn.functional.pad(tokens, (0, missing))
                valid = torch.nn.functional.pad(valid, (0, missing))
        tree.add_level(tokens.flatten(1), parent, valid.flatten(1), q, q_row)
