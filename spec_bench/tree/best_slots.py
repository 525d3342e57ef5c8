"""A dynamic tree whose siblings are drawn without replacement: DySpec's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spec_bench.core import processes
from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import gumbel_top_k
from spec_bench.core.transfer import Committed, places
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import Drafting
from spec_bench.tree.base import AuditTree, distinct, policy, scores_below, within_bounds
from spec_bench.tree.dynamic import Candidates, DynamicTree, best_of
from spec_bench.vocabulary.spec import Spec

_NODES = re.compile("@([0-9]{1,9})")


@policy(
    "best_slots",
    forms=("threshold", "name"),
    takes="@N: N nodes, DySpec's own, such as @24; or WxL@N: at most W siblings and frontier "
    "nodes, L levels, N nodes kept, such as 8x6@24",
)
@dataclass(frozen=True)
class BestSlots(DynamicTree):
    """The N slots of largest value, each filled with a drawn token.

    DySpec (arXiv 2410.11744, section 4) keeps a heap of open slots (node, next sibling), worth the
    draft's probability of the node's path times its mass not drawn yet; the best slot is taken, a
    token drawn into it, and two slots open: below the new node and beside it. Neither is worth more
    than the slot taken, so the heap's N slots are the N of largest value and can be found level by
    level: below each node W siblings are drawn, and the best of all slots stay.

    A slot is chosen by what was drawn before it, never by its own token, so every rule for siblings
    drawn without replacement is exact. Choosing by the probability of the drawn token is not.

    With W and L at least N, ``@N``, this is DySpec's own tree, bounded by its nodes alone. A node
    then runs only if the slot below it, whose value is known beforehand, is among the N best so
    far; the likeliest one's stays there, so that every level run is a level of the tree. A smaller
    W draws at most W siblings of a node, and only below the W likeliest nodes of a level; a smaller
    L ends the tree there.

    Attributes:
        width: W.
        depth: L.
        total: N.
    """

    def __post_init__(self) -> None:
        if self.unbounded:
            within_bounds("total", self.shape.size - 1)
        else:
            super().__post_init__()

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        if match := _NODES.fullmatch(spec.name):
            return dict.fromkeys(("width", "depth", "total"), int(match[1]))
        return super().of_spec(spec)

    @property
    def spec(self) -> str:
        return f"@{self.total}" if self.unbounded else super().spec

    @property
    def unbounded(self) -> bool:
        """Whether neither W nor L bounds the tree, but N alone."""
        return min(self.width, self.depth) >= self.total

    @property
    def as_deep_as_drafted(self) -> bool:
        return self.unbounded

    @property
    def asks(self) -> bool:  # type: ignore[override]
        return self.unbounded

    @cached_property
    def shape(self) -> TreeShape:
        """The most that can run. Unbounded: of level l at most (N - l + 1) / 2 nodes, for each of
        them, the slot below it, and one node on every level above are among the N best.
        """
        if not self.unbounded:
            return super().shape
        most = (max((self.total - level) // 2, 1) for level in range(self.total))
        return TreeShape(tuple(most), (self.total,) * self.total)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return distinct(settings)

    def children(
        self,
        tree: Tree,
        scores: Tensor,
        above: Tensor,
        draws: Draws,
        counts: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        log_q = scores.log_softmax(dim=-1)
        deterministic = tree.siblings == "deterministic"
        noise = torch.zeros_like(log_q) if deterministic else draws.gumbel(log_q, counts)
        tokens, there = gumbel_top_k(log_q, noise, self.width)
        drawn = log_q.gather(-1, tokens)
        mass = drawn.exp()
        left = (1 - (mass.cumsum(dim=-1) - mass)).clamp(min=0.0)
        value = torch.where(there, above + left.log(), -torch.inf)
        # By a rounding error a token may have more mass than was left.
        score = torch.minimum(above + drawn, value)
        return tokens, score, value, None if deterministic else log_q

    def plant(
        self,
        drafting: Drafting,
        committed: Committed,
        device: torch.device,
        settings: SamplingSettings,
        draws: Draws,
    ) -> Tree:
        if not self.unbounded:
            return super().plant(drafting, committed, device, settings, draws)
        tree = Tree(TreeShape((), ()), committed.roots.on(device), self.siblings(settings))
        above, frontier = (tree.tokens.new_zeros((len(committed), 1)) for _ in range(2))
        above, counts = above.to(settings.dtype), [1] * len(committed)
        levels: list[Candidates] = []
        while True:
            scores = scores_below(tree, drafting, committed, settings)[:, :, 0]
            below = self.children(tree, scores, above.unsqueeze(-1), draws, counts=counts)
            levels.append(self.candidates(*below, frontier))
            ordered = levels[-1].score.sort(dim=-1, descending=True, stable=True)
            running = self._running(levels, ordered.values[:, : self.total])
            processes.agree(running)
            counts = running.tolist()  # the one question of a level: what is worth a pass?
            if not any(counts):
                return best_of(levels, self.total, tree, self.bounds)
            most = max(counts)
            if not tree.tokens.is_cpu:  # passes of few sizes
                most = min(1 << (most - 1).bit_length(), self.shape.levels[0])
            frontier = ordered.indices[:, :most]
            there = places(frontier.shape[1], device) < running.unsqueeze(1)
            above = ordered.values[:, :most].masked_fill(~there, -torch.inf)
            tree.make_room(frontier.shape[1])
            tokens = levels[-1].tokens.gather(1, frontier)
            tree.add_level(tokens, frontier // self.width, there, None)

    def _running(self, levels: Sequence[Candidates], below: Tensor) -> Tensor:
        """[R] how many of a level's nodes, likeliest first, have the slot below them among the N
        best.

        Args:
            levels: all candidates so far.
            below: [R, C] value of the slot below each node of the last level, in that order.
        """
        known = torch.cat([level.value for level in levels], dim=1)
        known = known.sort(dim=1, descending=True).values[:, : self.total]
        # Of equal slots the shallower is taken.
        ahead = (known.unsqueeze(1) >= below.unsqueeze(2)).sum(dim=2)
        fits = ahead + places(below.shape[1], below.device) < self.total
        return (fits & torch.isfinite(below)).sum(dim=1)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (
            AuditTree(cls(2, 3, 4), vocab=2),
            AuditTree(cls(2, 2, 3)),
            AuditTree(cls(3, 3, 3), vocab=2),
        )
