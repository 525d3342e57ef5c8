"""Dynamic trees: drafted wider than they are verified, of another form in every iteration.

Below each node of a level's frontier hang candidates; the likeliest of them are the next frontier,
which the drafter runs. The candidates of largest value are kept and verified. The policy defines
the value; it never exceeds the parent's, nor an earlier sibling's, so that the kept nodes form a
tree. Letters: R rows, F frontier nodes, W children of each, C = F W candidates of a level,
N nodes kept, L levels, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core import processes
from spec_bench.core.draws import Draws
from spec_bench.core.transfer import Committed, constant, places
from spec_bench.core.tree import FlatShape, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import Drafting
from spec_bench.settings.fields import Count
from spec_bench.tree.base import GrownTree, scores_below, within_bounds
from spec_bench.vocabulary.spec import Spec


class Candidates(NamedTuple):
    """One level of candidates.

    Attributes:
        tokens: [R, C] child by child of the first frontier node, then of the next.
        score: [R, C] log of the draft's probability of the path; -inf where there is no candidate.
        value: [R, C] by which candidates are kept; -inf where there is none.
        frontier: [R, F] which candidates of the level above they hang below.
        log_q: [R, F, V] what they were drawn from; None where they are one-hot.
    """

    tokens: Tensor
    score: Tensor
    value: Tensor
    frontier: Tensor
    log_q: Tensor | None


@dataclass(frozen=True)
class DynamicTree(GrownTree):
    """At most N nodes on at most L levels, ``WxL@N``.

    Attributes:
        width: W, children considered per node, and nodes run per level.
        depth: L.
        total: N, nodes of the tree, the root not counted.
    """

    width: Count
    depth: Count
    total: Count

    varies = True

    def __post_init__(self) -> None:
        within_bounds("width", 1 + self.width * (1 + self.width * (self.depth - 1)))

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        if spec.threshold is None or spec.threshold != int(spec.threshold):
            return None
        return {"width": spec.width, "depth": spec.depth, "total": int(spec.threshold)}

    @property
    def spec(self) -> str:
        return f"{self.width}x{self.depth}@{self.total}"

    @cached_property
    def shape(self) -> TreeShape:
        """The shape of the frontiers that the drafter runs; verified trees have their own."""
        return TreeShape((self.width,) * self.depth, (self.width,) * self.depth)

    @property
    def node_count(self) -> int:
        return min(self.total, sum(self._most))

    @property
    def slots(self) -> int:
        return 1 + max(self.shape.size, self.node_count)

    @cached_property
    def _most(self) -> tuple[int, ...]:
        """Most nodes of each level that may be kept."""
        candidates = (self.width, *(self.width**2,) * (self.depth - 1))
        return tuple(min(count, self.total) for count in candidates)

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Bounds on children by level, and an entry that makes them as many as all levels' nodes:
        random numbers are drawn for that many, whatever a tree looks like.
        """
        bounds = self.shape.children
        return (*bounds, max(sum(self._most) - sum(bounds), 0))

    @abstractmethod
    def children(
        self, tree: Tree, scores: Tensor, above: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The candidates below the frontier.

        Args:
            tree: of the frontiers so far.
            scores: [R, F, V] log-probabilities; for deterministic siblings logits.
            above: [R, F, 1] score of each frontier node, -inf of absent ones.
            draws: randomness.

        Returns:
            tokens, score and value [R, F, W], absent ones with -inf, and ``log_q``.
        """

    def going(self, levels: Sequence[Candidates]) -> Tensor | None:
        """[R] whether a row drafts on after these levels; None if all do."""
        return None

    def plant(
        self,
        drafting: Drafting,
        committed: Committed,
        device: torch.device,
        settings: SamplingSettings,
        draws: Draws,
    ) -> Tree:
        tree = Tree(self.shape, committed.roots.on(device), self.siblings(settings))
        above, frontier = (tree.tokens.new_zeros((len(committed), 1)) for _ in range(2))
        above = above.to(settings.dtype)
        levels: list[Candidates] = []
        for _ in range(self.depth):
            scores = scores_below(tree, drafting, committed, settings)[:, :, 0]
            below = self.children(tree, scores, above.unsqueeze(-1), draws)
            levels.append(self.candidates(*below, frontier))
            level = levels[-1]
            going = self.going(levels)
            if going is not None:
                processes.agree(going)
            if going is not None and going.is_cpu and not going.any():
                break  # elsewhere asking would stall the device
            ordered = level.score.sort(dim=-1, descending=True, stable=True)
            frontier = ordered.indices[:, : self.width]
            above = ordered.values[:, : self.width]
            if going is not None:
                above = above.masked_fill(~going.unsqueeze(1), -torch.inf)
            tree.add_level(
                level.tokens.gather(1, frontier),
                frontier // self.width,
                above > -torch.inf,
                None,
            )
        return best_of(levels, self.total, tree, self.bounds)

    def candidates(
        self, tokens: Tensor, score: Tensor, value: Tensor, log_q: Tensor | None, frontier: Tensor
    ) -> Candidates:
        """A level of them, absent ones where there are fewer tokens than W.

        Args:
            tokens: [R, F, W or fewer], as are ``score`` and ``value``.
            score: log of the draft's probability of the path.
            value: by which candidates are kept.
            log_q: [R, F, V] what they were drawn from; None where they are one-hot.
            frontier: [R, F] which candidates of the level above they hang below.
        """
        missing = (0, self.width - tokens.shape[-1])
        score, value = (pad(part, missing, value=-torch.inf) for part in (score, value))
        tokens, score, value = (part.flatten(1) for part in (pad(tokens, missing), score, value))
        return Candidates(tokens, score, value, frontier, log_q)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        """Not grown by levels alone."""
        raise AssertionError("a dynamic tree is cut back at its end")


def kept(levels: Sequence[Candidates], total: int) -> Tensor:
    """[R, all C] which candidates of all levels have the ``total`` largest values.

    Of equal values the shallower one is taken, then the earlier one, so that parents come along.
    """
    value = torch.cat([level.value for level in levels], dim=1)
    best = value.sort(dim=1, descending=True, stable=True).indices[:, :total]
    keep = torch.zeros_like(value, dtype=torch.bool).scatter_(1, best, True)
    return keep & (value > -torch.inf)


def best_of(
    levels: Sequence[Candidates], total: int, grown: Tree, children: tuple[int, ...]
) -> Tree:
    """The tree of the candidates of largest value, its nodes level by level.

    Which they are stays on the device; the host need not know: there are N nodes, wherever they
    hang. Only a CPU is asked how many there really are and how deep.

    Args:
        levels: all candidates.
        total: N, how many are kept.
        grown: the tree of the frontiers, whose roots the new one has.
        children: of the new tree's shape.
    """
    keep = kept(levels, total)
    sizes = tuple((level.value.shape[1], level.frontier.shape[1]) for level in levels)
    count, most = min(total, keep.shape[1]), len(levels)
    if keep.is_cpu:  # elsewhere asking would stall the device
        count = max(int(keep.sum(dim=1).amax()), 1)
    order = (~keep).byte().sort(dim=1, stable=True).indices[:, :count]
    valid = keep.gather(1, order)
    hangs_below, depths, firsts = (constant(part, keep.device) for part in _layout(sizes))
    depth = torch.where(valid, depths[order], 1)
    if keep.is_cpu:
        most = int(depth.amax())
    # Candidates are numbered from 1 on, level by level, after the root; so are those that ran.
    ran = torch.cat([level.frontier for level in levels], dim=1) + firsts
    number = pad(keep.cumsum(dim=1), (1, 0))  # [R, 1 + C] of a candidate's node
    parent = number.gather(1, ran.gather(1, hangs_below[order]))
    tokens = torch.cat([level.tokens for level in levels], dim=1).gather(1, order)
    laws = None
    if levels[0].log_q is not None:
        place = torch.zeros_like(number).scatter_(
            1, ran, places(ran.shape[1], ran.device).expand_as(ran)
        )
        law = pad(place.gather(1, order + 1), (1, 0)).unsqueeze(-1)
        given = torch.cat([level.log_q for level in levels if level.log_q is not None], dim=1)
        laws = given.gather(1, law.expand(-1, -1, given.shape[-1]))
    shape = FlatShape.of(count, most, children, max(grown.shape.levels, default=1))
    tree = Tree.of_nodes(shape, grown.tokens[:, 0], (tokens, parent, depth, valid), laws)
    tree.siblings, tree.rearranged, tree.largest = grown.siblings, True, grown.largest
    return tree


@lru_cache(maxsize=256)
def _layout(
    sizes: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Where candidates hang, all levels in one row.

    Args:
        sizes: of each level the candidates and the nodes above that ran.

    Returns:
        For every candidate the node it hangs below, among all that ran, and its depth; for every
        node that ran what to add to its place among its level's candidates to get its number among
        all, whose first is 1. The root, which ran first, has the number 0.
    """
    hangs_below: list[int] = []
    depths: list[int] = []
    firsts: list[int] = []
    start = 0  # of the candidates of the level above
    for level, (count, above) in enumerate(sizes):
        hangs_below += [len(firsts) + place * above // count for place in range(count)]
        depths += [level + 1] * count
        firsts += [1 + start if level else 0] * above
        start += sizes[level - 1][0] if level else 0
    return tuple(hangs_below), tuple(depths), tuple(firsts)
