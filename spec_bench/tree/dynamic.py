"""Dynamic trees: drafted wider than they are verified, of another form in every iteration.

Below each node of a level's frontier hang candidates; the likeliest of them are the next frontier,
which the drafter runs. The candidates of largest value are kept and verified. The policy defines
the value; it never exceeds the parent's, nor an earlier sibling's, so that the kept nodes form a
tree. Letters: R rows, F frontier nodes, W children of each, C = F W candidates of a level,
N nodes kept, L levels, V vocabulary.
"""

import re
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
from spec_bench.core.transfer import cached_arange, constant
from spec_bench.core.tree import FlatShape, Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count, Share
from spec_bench.tree.base import AuditTree, GrowthContext, distinct, policy, within_bounds
from spec_bench.tree.widths import Rectangle, sample_distinct
from spec_bench.vocabulary.spec import Spec


class LevelCandidates(NamedTuple):
    """One level of candidates."""

    tokens: Tensor  # [R, C] child by child of the first frontier node, then of the next
    # [R, C] log of the draft's probability of the path; -inf where there is no candidate
    score: Tensor
    value: Tensor  # [R, C] by which candidates are kept; -inf where there is none
    frontier: Tensor  # [R, F] which candidates of the level above they hang below
    log_q: Tensor | None  # [R, F, V] what they were drawn from; None where they are one-hot


@dataclass(frozen=True)
class DynamicTree(Rectangle):
    """At most N nodes on at most L levels, ``WxL@N``: W children of a node are considered, and W
    nodes of a level run. Its shape is that of the frontiers that the drafter runs; verified trees
    have their own.
    """

    total: Count  # N, nodes of the tree, the root not counted

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
        """Returns the candidates below the frontier of the frontiers' tree: tokens, score and value
        [R, F, W], absent ones with -inf, and ``log_q``. ``scores`` [R, F, V] are log-probabilities,
        for deterministic siblings logits; ``above`` [R, F, 1] each frontier node's score, -inf of
        absent ones.
        """

    def keeps_drafting(self, levels: Sequence[LevelCandidates]) -> Tensor | None:
        """[R] whether a row drafts on after these levels; None if all do."""
        return None

    def plant(self, ground: GrowthContext) -> Tree:
        tree = Tree(self.shape, ground.roots, self.siblings(ground.settings))
        frontier = torch.zeros_like(tree.tokens[:, :1])
        above = frontier.to(ground.settings.dtype)
        levels = list[LevelCandidates]()
        for _ in range(self.depth):
            scores = ground.scores_below(tree)[:, :, 0]
            below = self.children(tree, scores, above.unsqueeze(-1), ground.draws)
            levels.append(self.candidates(*below, frontier))
            level = levels[-1]
            going = self.keeps_drafting(levels)
            if going is not None:
                processes.broadcast_tensors(going)
            if going is not None and going.is_cpu and not going.any():
                break  # elsewhere asking would stall the device
            ordered = level.score.sort(dim=-1, descending=True, stable=True)
            frontier = ordered.indices[:, : self.width]
            above = ordered.values[:, : self.width]
            if going is not None:
                above = above.masked_fill(~going.unsqueeze(1), -torch.inf)
            tree.add_level(
                level.tokens.gather(1, frontier), frontier // self.width, above > -torch.inf, None
            )
        return tree_of_best(levels, self.total, tree, self.bounds)

    def candidates(
        self, tokens: Tensor, score: Tensor, value: Tensor, log_q: Tensor | None, frontier: Tensor
    ) -> LevelCandidates:
        """Makes a level of them below candidates ``frontier`` [R, F] of the level above, absent
        ones where there are fewer tokens [R, F, W or fewer] than W.
        """
        missing = (0, self.width - tokens.shape[-1])
        score, value = (pad(part, missing, value=-torch.inf) for part in (score, value))
        tokens, score, value = (part.flatten(1) for part in (pad(tokens, missing), score, value))
        return LevelCandidates(tokens, score, value, frontier, log_q)


def select_best(levels: Sequence[LevelCandidates], total: int) -> Tensor:
    """Returns which candidates of all levels [R, all C] have the ``total`` largest values, of equal
    ones the shallower, then the earlier one, so that parents come along.
    """
    value = torch.cat([level.value for level in levels], dim=1)
    best = value.sort(dim=1, descending=True, stable=True).indices[:, :total]
    keep = torch.zeros_like(value, dtype=torch.bool).scatter_(1, best, True)
    return keep & (value > -torch.inf)


def tree_of_best(
    levels: Sequence[LevelCandidates], total: int, grown: Tree, children: tuple[int, ...]
) -> Tree:
    """Makes the tree of the N candidates of largest value, its nodes level by level, with the roots
    of the frontiers' tree. Which they are stays on the device: there are N nodes, wherever they
    hang. Only a CPU is asked how many there really are and how deep.
    """
    keep = select_best(levels, total)
    sizes = tuple((level.value.shape[1], level.frontier.shape[1]) for level in levels)
    count = min(total, keep.shape[1])
    most = len(levels)
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
            1, ran, cached_arange(ran.shape[1], ran.device).expand_as(ran)
        )
        law = pad(place.gather(1, order + 1), (1, 0)).unsqueeze(-1)
        given = torch.cat([level.log_q for level in levels if level.log_q is not None], dim=1)
        laws = given.gather(1, law.expand(-1, -1, given.shape[-1]))
    shape = FlatShape.of(count, most, children, max(grown.shape.levels, default=1))
    tree = Tree.from_nodes(shape, grown.tokens[:, 0], (tokens, parent, depth, valid), laws)
    tree.siblings = grown.siblings
    tree.rearranged = True
    tree.largest = grown.largest
    return tree


@lru_cache(maxsize=256)
def _layout(sizes: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], ...]:
    """Says where candidates hang, all levels in one row, by each level's numbers of candidates and
    of nodes above that ran.

    For every candidate the node it hangs below, among all that ran, and its depth; for every node
    that ran what to add to its place among its level's candidates to get its number among all,
    whose first is 1. The root, which ran first, has the number 0.
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


# The nodes that the draft finds likeliest: EAGLE-2's and OPT-Tree's trees.


@policy(
    "best_nodes",
    forms=("threshold",),
    takes="WxL@N: frontier W, L levels, N nodes kept, such as 10x6@59",
)
@dataclass(frozen=True)
class BestNodes(DynamicTree):
    """The N nodes of largest path probability under the draft, siblings in order of rank.

    EAGLE-2 (arXiv 2406.16858, section 4): the likeliest W nodes of a level are run, each with its W
    likeliest children; of all W + (L - 1) W^2 candidates the best N are kept. OPT-Tree (arXiv
    2406.17276, Algorithm 1) keeps the same, the tree that would have the most expected accepted
    tokens if the draft were the target, and drafts on only while that number grows.
    Probabilities are those of temperature 1, whatever the text is sampled at. Nothing is drawn:
    the proposals are one-hot, and any choice among them is allowed.
    EAGLE-2 takes W = 10, L = 6 (its "depth" 5 counts the levels after the first) and N = 59 (its 60
    counts the root).
    """

    # drafts on only while the last level raised the expected number of accepted tokens by more than
    # this (OPT-Tree's threshold); null: always
    gain: Share | None = None

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def children(
        self, tree: Tree, scores: Tensor, above: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        log_q = scores.log_softmax(dim=-1)
        best, tokens = log_q.topk(min(self.width, log_q.shape[-1]), dim=-1)
        score = above + best
        return tokens, score, score, None

    def keeps_drafting(self, levels: Sequence[LevelCandidates]) -> Tensor | None:
        if self.gain is None:
            return None
        if len(levels) == 1:
            return torch.isfinite(levels[0].value[:, 0])
        return (
            estimate_accepted_tokens(levels, self.total)
            - estimate_accepted_tokens(levels[:-1], self.total)
            > self.gain
        )

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2, 2, 4)), AuditTree(cls(2, 3, 3, gain=0.2)))


def estimate_accepted_tokens(levels: Sequence[LevelCandidates], total: int) -> Tensor:
    """Returns [R] how many of the best ``total`` the draft's own distribution would accept."""
    sizes = [level.value.shape[1] for level in levels]
    parts = zip(levels, select_best(levels, total).split(sizes, dim=1), strict=True)
    return sum(
        (torch.where(keep, level.value.exp(), 0.0).sum(dim=1) for level, keep in parts),
        start=torch.zeros_like(levels[0].value[:, 0]),
    )


# A dynamic tree whose siblings are drawn without replacement: DySpec's.


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
    """

    def __post_init__(self) -> None:
        if self.is_bounded_by_total:
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
        return f"@{self.total}" if self.is_bounded_by_total else super().spec

    @property
    def is_bounded_by_total(self) -> bool:
        """Whether neither W nor L bounds the tree, but N alone."""
        return min(self.width, self.depth) >= self.total

    @property
    def as_deep_as_drafted(self) -> bool:
        return self.is_bounded_by_total

    @property
    def asks(self) -> bool:  # type: ignore[override]
        return self.is_bounded_by_total

    @cached_property
    def shape(self) -> TreeShape:
        """The most that can run. Unbounded: of level l at most (N - l + 1) / 2 nodes, for each of
        them, the slot below it, and one node on every level above are among the N best.
        """
        if not self.is_bounded_by_total:
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
        tokens, there, law = sample_distinct(tree, log_q, draws, self.width, counts)
        drawn = log_q.gather(-1, tokens)
        mass = drawn.exp()
        left = (1 - (mass.cumsum(dim=-1) - mass)).clamp(min=0.0)
        value = torch.where(there, above + left.log(), -torch.inf)
        # By a rounding error a token may have more mass than was left.
        score = torch.minimum(above + drawn, value)
        return tokens, score, value, law

    def plant(self, ground: GrowthContext) -> Tree:
        if not self.is_bounded_by_total:
            return super().plant(ground)
        tree = Tree(TreeShape((), ()), ground.roots, self.siblings(ground.settings))
        frontier = torch.zeros_like(tree.tokens)
        above = frontier.to(ground.settings.dtype)
        levels = list[LevelCandidates]()
        counts = [1] * len(frontier)
        while True:
            scores = ground.scores_below(tree)[:, :, 0]
            below = self.children(tree, scores, above.unsqueeze(-1), ground.draws, counts=counts)
            levels.append(self.candidates(*below, frontier))
            ordered = levels[-1].score.sort(dim=-1, descending=True, stable=True)
            running = self._count_running(levels, ordered.values[:, : self.total])
            processes.broadcast_tensors(running)
            counts = running.tolist()  # the one question of a level: what is worth a pass?
            if not any(counts):
                return tree_of_best(levels, self.total, tree, self.bounds)
            most = max(counts)
            if not tree.tokens.is_cpu:  # passes of few sizes
                most = min(1 << (most - 1).bit_length(), self.shape.levels[0])
            frontier = ordered.indices[:, :most]
            there = cached_arange(frontier.shape[1], frontier.device) < running.unsqueeze(1)
            above = ordered.values[:, :most].masked_fill(~there, -torch.inf)
            tree.make_room(frontier.shape[1])
            tokens = levels[-1].tokens.gather(1, frontier)
            tree.add_level(tokens, frontier // self.width, there, None)

    def _count_running(self, levels: Sequence[LevelCandidates], below: Tensor) -> Tensor:
        """[R] how many of a level's nodes, likeliest first, have the slot below them, of value
        ``below`` [R, C], among the N best.
        """
        known = torch.cat([level.value for level in levels], dim=1)
        known = known.sort(dim=1, descending=True).values[:, : self.total]
        # Of equal slots the shallower is taken.
        ahead = (known.unsqueeze(1) >= below.unsqueeze(2)).sum(dim=2)
        fits = ahead + cached_arange(below.shape[1], below.device) < self.total
        return (fits & torch.isfinite(below)).sum(dim=1)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (
            AuditTree(cls(2, 3, 4), vocab=2),
            AuditTree(cls(2, 2, 3)),
            AuditTree(cls(3, 3, 3), vocab=2),
        )
