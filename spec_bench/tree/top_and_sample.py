"""Children of which some are drawn and the others are the draft's best: SpecHub's trees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count
from spec_bench.tree.base import AuditTree, policy
from spec_bench.tree.sizes import Branching


@policy("top_and_sample", forms=("number", "levels"), takes="children per level such as 3-2-1")
@dataclass(frozen=True)
class TopAndSample(Branching):
    """``widths[l]`` children for every node of level l: drawn ones first, then the draft's best.

    The drawn ones come from the draft's law without the best (arXiv 2502.18779; SpecHub, arXiv
    2411.05289, with two children). At draft temperature 0 all are the best.

    Attributes:
        widths: children per node at each level.
        sampled: how many of them are drawn; all, if there are fewer.
    """

    sampled: Count = 1

    shared = ("sampled",)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic" if settings.for_draft().temperature == 0 else "top_and_sampled"

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        log_q, width = scores.squeeze(2), self.widths[tree.grown]
        rows, nodes, vocab = log_q.shape
        parent = torch.arange(nodes, device=log_q.device).repeat_interleave(width)
        drawn = 0 if tree.siblings == "deterministic" else min(self.sampled, width)
        values, best = log_q.topk(min(width - drawn, vocab), dim=-1)
        parts, there = [best], [values > -torch.inf]
        if missing := width - drawn - best.shape[-1]:  # more asked for than there are tokens
            parts.append(best.new_zeros((rows, nodes, missing)))
            there.append(torch.zeros_like(parts[-1], dtype=torch.bool))
        w: Tensor | None = None
        if drawn:
            # In log space: the best may have all the mass that probabilities can tell from 1.
            rest = log_q.scatter(-1, best, -torch.inf)
            some = rest.amax(dim=-1, keepdim=True) > -torch.inf
            w = torch.where(some, rest, 0.0).softmax(dim=-1)
            parts.insert(0, draws.categorical(w, drawn))
            there.insert(0, some.expand(-1, -1, drawn))
            w = torch.where(some, w, 0.0).unsqueeze(2)
        tokens, valid = torch.cat(parts, dim=-1).flatten(1), torch.cat(there, dim=-1).flatten(1)
        tree.sampled = self.sampled
        tree.add_level(tokens, parent, valid, w)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls((2, 1))), AuditTree(cls((3,), sampled=2)))
