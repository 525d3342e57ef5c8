"""Dynamic trees: drafted wider than they are verified, with a new form in every iteration.

Each node of a level's frontier proposes candidates; the likeliest candidates are the next frontier,
which the drafter runs. The candidates of largest value are kept and verified. The policy defines
the value, which never exceeds that of the parent or an earlier sibling, so that the kept nodes form
a tree. Letters: R rows, F frontier nodes, W children of each, C = F W candidates of a level, N
nodes kept, L levels, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core import processes
from spec_bench.core.draws import RandomSource
from spec_bench.core.host_device import cached_arange, cached_constant
from spec_bench.core.tree import Siblings, Tree, TreeShape, VariableLevelShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count, Share
from spec_bench.tree.base import (
    AuditTree,
    GrowthContext,
    get_distinct_siblings,
    parse_total_for_keys,
    policy,
    refuse_too_many_nodes,
)
from spec_bench.tree.widths import RectangularTree, draw_distinct_children
from spec_bench.vocabulary.spec import Spec


class ProposedChildren(NamedTuple):
    """Children of a level's F frontier nodes, at most W per node."""

    tokens: Tensor  # [R, F, W]
    score: Tensor  # [R, F, W] log of the draft's probability of the path; -inf if absent
    value: Tensor  # [R, F, W] value by which candidates are kept; -inf if absent
    log_q: Tensor | None  # [R, F, V] distributions they were drawn from; None if one-hot


class LevelCandidates(NamedTuple):
    """The candidates of one level."""

    tokens: Tensor  # [R, C] children of the first frontier node, then of the next
    score: Tensor  # [R, C] log of the draft's probability of the path; -inf if absent
    value: Tensor  # [R, C] value by which candidates are kept; -inf if absent
    parent_places: Tensor  # [R, F] frontier nodes' places among the candidates of the level above
    log_q: Tensor | None  # [R, F, V] distributions they were drawn from; None if one-hot


@dataclass(frozen=True)
class DynamicTree(RectangularTree):
    """At most N nodes on at most L levels, ``WxL@N``: the drafter runs W nodes of a level and
    proposes W children of each. ``shape`` is that of the frontiers; each verified tree has its own
    shape.
    """

    total: Count  # N, nodes of the tree, the root not counted

    varies = True

    def __post_init__(self) -> None:
        refuse_too_many_nodes("width", 1 + self.width * (1 + self.width * (self.depth - 1)))

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        if spec.threshold is None or spec.threshold != int(spec.threshold):
            return None
        return {
            "width": spec.width,
            "depth": spec.depth,
            "total": int(spec.threshold),
        }

    @property
    def spec(self) -> str:
        return f"{self.width}x{self.depth}@{self.total}"

    @property
    def max_draft_nodes(self) -> int:
        return min(self.total, sum(self.max_kept_nodes))

    @property
    def cache_slots(self) -> int:
        return 1 + max(self.shape.size, self.max_draft_nodes)

    @cached_property
    def max_kept_nodes(self) -> tuple[int, ...]:
        """Maximum number of kept nodes of each level."""
        candidates = (self.width, *(self.width**2,) * (self.depth - 1))
        return tuple(min(count, self.total) for count in candidates)

    @cached_property
    def max_children_and_rest(self) -> tuple[int, ...]:
        """Maximum number of children per node by level. A last entry raises the sum to the maximum
        number of nodes, because the same number of random numbers is drawn for every tree.
        """
        bounds = self.shape.children
        return (*bounds, max(sum(self.max_kept_nodes) - sum(bounds), 0))

    @abstractmethod
    def propose_children(
        self,
        tree: Tree,
        scores: Tensor,
        parent_scores: Tensor,
        draws: RandomSource,
    ) -> ProposedChildren:
        """Proposes children of the frontier nodes. ``scores`` [R, F, V] are the draft's
        log-probabilities, or its logits if siblings are deterministic; ``parent_scores`` [R, F, 1]
        is -inf for absent nodes.
        """

    def keeps_drafting(self, levels: Sequence[LevelCandidates]) -> Tensor | None:
        """Returns whether each row drafts another level after ``levels``, [R];
        None if all rows do.
        """
        return None

    def grow_tree(self, context: GrowthContext) -> Tree:
        tree = Tree(self.shape, context.root_tokens, self.siblings(context.settings))
        frontier = torch.zeros_like(tree.tokens[:, :1])
        frontier_scores = frontier.to(context.settings.dtype)
        levels = list[LevelCandidates]()
        for _ in range(self.depth):
            scores = context.compute_scores_noting_largest(tree)[:, :, 0]
            children = self.propose_children(
                tree,
                scores,
                frontier_scores.unsqueeze(-1),
                context.draws,
            )
            levels.append(self.pad_and_flatten_children(children, frontier))
            level = levels[-1]
            active = self.keeps_drafting(levels)
            if active is not None:
                processes.copy_from_first_process(active)
            if active is not None and active.is_cpu and not active.any():
                break  # on a GPU this check would wait for the device
            by_score = level.score.sort(dim=-1, descending=True, stable=True)
            frontier = by_score.indices[:, : self.width]
            frontier_scores = by_score.values[:, : self.width]
            if active is not None:
                frontier_scores = frontier_scores.masked_fill(~active.unsqueeze(1), -torch.inf)
            tree.add_level(
                level.tokens.gather(1, frontier),
                frontier // self.width,
                frontier_scores > -torch.inf,
                None,
            )
        return build_best_tree(levels, self.total, tree, self.max_children_and_rest)

    def pad_and_flatten_children(
        self, children: ProposedChildren, parent_places: Tensor
    ) -> LevelCandidates:
        """Builds a level's candidates from proposed children, padded with absent ones to W per
        node. ``parent_places`` [R, F] are the frontier nodes' places among the candidates of the
        level above.
        """
        tokens, score, value, log_q = children
        padding = (0, self.width - tokens.shape[-1])
        score, value = (pad(values, padding, value=-torch.inf) for values in (score, value))
        tokens, score, value = (
            values.flatten(1) for values in (pad(tokens, padding), score, value)
        )
        return LevelCandidates(tokens, score, value, parent_places, log_q)


def mark_best_candidates(levels: Sequence[LevelCandidates], total: int) -> Tensor:
    """Marks the ``total`` candidates of largest value among those of all levels, [R, sum of C].
    Ties go to the shallower candidate, then to the earlier one, so that the parents of marked
    candidates are marked too.
    """
    value = torch.cat([level.value for level in levels], dim=1)
    best = value.sort(dim=1, descending=True, stable=True).indices[:, :total]
    keep = torch.zeros_like(value, dtype=torch.bool).scatter_(1, best, True)
    return keep & (value > -torch.inf)


def build_best_tree(
    levels: Sequence[LevelCandidates],
    total: int,
    frontier_tree: Tree,
    children: tuple[int, ...],
) -> Tree:
    """Builds each row's tree from its N candidates of largest value, level by level, below the root
    of ``frontier_tree``. On a GPU it always has N nodes and all levels, so that the host need not
    wait; on a CPU absent nodes and levels are left out.
    """
    keep = mark_best_candidates(levels, total)
    sizes = tuple((level.value.shape[1], level.parent_places.shape[1]) for level in levels)
    count = min(total, keep.shape[1])
    max_depth = len(levels)
    if keep.is_cpu:  # on a GPU this would wait for the device
        count = max(int(keep.sum(dim=1).amax()), 1)
    order = (~keep).byte().sort(dim=1, stable=True).indices[:, :count]
    valid = keep.gather(1, order)
    parent_runs, depths, offsets = (
        cached_constant(numbers, keep.device) for numbers in _compute_parents_depths_offsets(sizes)
    )
    depth = torch.where(valid, depths[order], 1)
    if keep.is_cpu:
        max_depth = int(depth.amax())
    # Candidates are numbered level by level from 1 on; the root is 0.
    run_numbers = torch.cat([level.parent_places for level in levels], dim=1) + offsets
    node_numbers = pad(keep.cumsum(dim=1), (1, 0))  # [R, 1 + C] node of each candidate
    parent = node_numbers.gather(1, run_numbers.gather(1, parent_runs[order]))
    tokens = torch.cat([level.tokens for level in levels], dim=1).gather(1, order)
    node_log_q = None
    if levels[0].log_q is not None:
        run_places = torch.zeros_like(node_numbers).scatter_(
            1,
            run_numbers,
            cached_arange(run_numbers.shape[1], run_numbers.device).expand_as(run_numbers),
        )
        run_index = pad(run_places.gather(1, order + 1), (1, 0)).unsqueeze(-1)
        run_log_q = torch.cat([level.log_q for level in levels if level.log_q is not None], dim=1)
        node_log_q = run_log_q.gather(1, run_index.expand(-1, -1, run_log_q.shape[-1]))
    max_parents = max(frontier_tree.shape.levels, default=1)
    shape = VariableLevelShape((count,) * max_depth, children, max_parents=max_parents)
    tree = Tree.from_nodes(
        shape,
        torch.cat([frontier_tree.tokens[:, :1], tokens], dim=1),
        torch.cat([frontier_tree.parent[:, :1], parent], dim=1),
        torch.cat([frontier_tree.valid[:, :1], valid], dim=1),
        frontier_tree.siblings,
    )
    tree.row_depths = torch.cat([frontier_tree.parent[:, :1], depth], dim=1)
    if node_log_q is not None:
        tree.log_q = [node_log_q[:, :1], *[node_log_q[:, 1:]] * (max_depth - 1)]
    tree.rearranged = True
    tree.largest_logits = frontier_tree.largest_logits
    return tree


@lru_cache(maxsize=256)
def _compute_parents_depths_offsets(
    sizes: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, ...], ...]:
    """Computes parents, depths and offsets of all candidates, level by level.

    ``sizes`` lists for each level the number of candidates and the number of nodes above them that
    the drafter ran. Returns each candidate's parent as an index into all nodes run, each
    candidate's depth, and for each node run the offset from its place in its level to its number
    among all candidates (root 0, then 1, 2, ...).
    """
    parent_runs: list[int] = []
    depths: list[int] = []
    offsets: list[int] = []
    start = 0  # number of candidates before those of the level above
    for level, (count, run_count) in enumerate(sizes):
        parent_runs += [len(offsets) + place * run_count // count for place in range(count)]
        depths += [level + 1] * count
        offsets += [1 + start if level else 0] * run_count
        start += sizes[level - 1][0] if level else 0
    return tuple(parent_runs), tuple(depths), tuple(offsets)


@policy(
    "best_nodes",
    forms=("threshold",),
    takes="WxL@N: frontier W, L levels, N nodes kept, such as 10x6@59",
)
@dataclass(frozen=True)
class BestNodes(DynamicTree):
    """The N nodes of largest path probability under the draft, siblings in order of rank.

    EAGLE-2 (arXiv 2406.16858, section 4) runs the W likeliest nodes of a level, each with its W
    likeliest children, and keeps the best N of all W + (L - 1) W^2 candidates. OPT-Tree (arXiv
    2406.17276, Algorithm 1) keeps the same nodes, which maximise the expected number of accepted
    tokens if the draft were the target, and stops drafting when that number stops growing.
    Probabilities are those of temperature 1, whatever the sampling temperature. Nothing is drawn:
    the proposals are one-hot, so that they may be chosen in any way.
    EAGLE-2 takes W = 10, L = 6 (its "depth" 5 counts the levels after the first) and N = 59 (its 60
    counts the root).
    """

    # stops drafting after a level that raised the expected number of accepted tokens by no more
    # than this (OPT-Tree's threshold); null: never
    gain: Share | None = None

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def propose_children(
        self,
        tree: Tree,
        scores: Tensor,
        parent_scores: Tensor,
        draws: RandomSource,
    ) -> ProposedChildren:
        log_q = scores.log_softmax(dim=-1)
        child_log_q, tokens = log_q.topk(min(self.width, log_q.shape[-1]), dim=-1)
        score = parent_scores + child_log_q
        return ProposedChildren(tokens, score, score, None)

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
    """Estimates each row's number of accepted tokens, [R], for a tree of the best ``total``
    candidates, taking the draft's probabilities for the target's.
    """
    sizes = [level.value.shape[1] for level in levels]
    parts = zip(levels, mark_best_candidates(levels, total).split(sizes, dim=1), strict=True)
    return sum(
        (torch.where(keep, level.value.exp(), 0.0).sum(dim=1) for level, keep in parts),
        start=torch.zeros_like(levels[0].value[:, 0]),
    )


@policy(
    "best_slots",
    forms=("threshold", "name"),
    takes="@N: N nodes, DySpec's own, such as @24; or WxL@N: at most W siblings and frontier "
    "nodes, L levels, N nodes kept, such as 8x6@24",
)
@dataclass(frozen=True)
class BestSlots(DynamicTree):
    """The N slots of largest value, each filled with a drawn token.

    DySpec (arXiv 2410.11744, section 4) keeps a heap of open slots (node, next sibling). A slot's
    value is the draft's probability of the node's path times the mass below the node that is not
    drawn yet. A token is drawn into the best slot, which opens two slots: the new node's first
    child and its next sibling. Neither has a larger value than the filled slot, so the heap's N
    slots are the N of largest value and can be found level by level: below each node W siblings are
    drawn, and the best of all slots are kept.

    A slot is chosen by what was drawn before it, never by its own token, so every rule for siblings
    drawn without replacement is exact. Choosing by the probability of the drawn token would not be
    exact.

    If W and L are at least N (``@N``), this is DySpec's own tree, bounded only by its number of
    nodes. A node then runs only if its first child slot, which has a known value, is among the N
    best so far. The first child slot of the likeliest node stays among them, so that every level
    run is a level of the tree. With a smaller W at most W siblings are drawn, and only below the W
    likeliest nodes of a level. A smaller L limits the depth.
    """

    def __post_init__(self) -> None:
        if self.is_bounded_by_total:
            refuse_too_many_nodes("total", self.shape.size - 1)
        else:
            super().__post_init__()

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return parse_total_for_keys(spec.name, "width", "depth", "total") or super().parse_spec(
            spec
        )

    @property
    def spec(self) -> str:
        return f"@{self.total}" if self.is_bounded_by_total else super().spec

    @property
    def is_bounded_by_total(self) -> bool:
        """Whether only N bounds the tree, not W or L."""
        return min(self.width, self.depth) >= self.total

    @property
    def lacks_fixed_depth(self) -> bool:
        return self.is_bounded_by_total

    @property
    def waits_for_device(self) -> bool:  # type: ignore[override]
        return self.is_bounded_by_total

    @cached_property
    def shape(self) -> TreeShape:
        """Upper bound on the nodes that run on each level. If only N bounds the tree, at most
        ``(N - l + 1) / 2`` nodes run on level l, because each of them, its first child slot, and
        one node on every level above are among the N best.
        """
        if not self.is_bounded_by_total:
            return super().shape
        level_sizes = (max((self.total - level) // 2, 1) for level in range(self.total))
        return TreeShape(tuple(level_sizes), (self.total,) * self.total)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return get_distinct_siblings(settings)

    def propose_children(
        self,
        tree: Tree,
        scores: Tensor,
        parent_scores: Tensor,
        draws: RandomSource,
        counts: Sequence[int] | None = None,
    ) -> ProposedChildren:
        log_q = scores.log_softmax(dim=-1)
        tokens, present, proposal = draw_distinct_children(tree, log_q, draws, self.width, counts)
        token_log_q = log_q.gather(-1, tokens)
        mass = token_log_q.exp()
        remaining_mass = (1 - (mass.cumsum(dim=-1) - mass)).clamp(min=0.0)
        value = torch.where(present, parent_scores + remaining_mass.log(), -torch.inf)
        # Rounding can give a token more mass than remains.
        score = torch.minimum(parent_scores + token_log_q, value)
        return ProposedChildren(tokens, score, value, proposal)

    def grow_tree(self, context: GrowthContext) -> Tree:
        if not self.is_bounded_by_total:
            return super().grow_tree(context)
        tree = Tree(TreeShape((), ()), context.root_tokens, self.siblings(context.settings))
        frontier = torch.zeros_like(tree.tokens)
        frontier_scores = frontier.to(context.settings.dtype)
        levels = list[LevelCandidates]()
        counts = [1] * len(frontier)
        while True:
            scores = context.compute_scores_noting_largest(tree)[:, :, 0]
            children = self.propose_children(
                tree,
                scores,
                frontier_scores.unsqueeze(-1),
                context.draws,
                counts=counts,
            )
            levels.append(self.pad_and_flatten_children(children, frontier))
            by_score = levels[-1].score.sort(dim=-1, descending=True, stable=True)
            run_counts = self._count_nodes_to_run(levels, by_score.values[:, : self.total])
            processes.copy_from_first_process(run_counts)
            counts = run_counts.tolist()  # the only wait for the device on a level
            if not any(counts):
                return build_best_tree(levels, self.total, tree, self.max_children_and_rest)
            widest = max(counts)
            if not tree.tokens.is_cpu:  # a power of two, so that few sizes of passes occur
                widest = min(1 << (widest - 1).bit_length(), self.shape.levels[0])
            frontier = by_score.indices[:, :widest]
            present = cached_arange(frontier.shape[1], frontier.device) < run_counts.unsqueeze(1)
            frontier_scores = by_score.values[:, :widest].masked_fill(~present, -torch.inf)
            tree.make_room_for_level(frontier.shape[1])
            tokens = levels[-1].tokens.gather(1, frontier)
            tree.add_level(tokens, frontier // self.width, present, None)

    def _count_nodes_to_run(self, levels: Sequence[LevelCandidates], slot_values: Tensor) -> Tensor:
        """Counts the nodes of a level to run, [R]: a node runs if its first child slot is among the
        N best. ``slot_values`` [R, C] are the values of these slots, of the likeliest node first.
        """
        kept_values = torch.cat([level.value for level in levels], dim=1)
        kept_values = kept_values.sort(dim=1, descending=True).values[:, : self.total]
        # Ties go to the shallower slot.
        better_count = (kept_values.unsqueeze(1) >= slot_values.unsqueeze(2)).sum(dim=2)
        fits = better_count + cached_arange(slot_values.shape[1], slot_values.device) < self.total
        return (fits & torch.isfinite(slot_values)).sum(dim=1)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (
            AuditTree(cls(2, 3, 4), vocab=2),
            AuditTree(cls(2, 2, 3)),
            AuditTree(cls(3, 3, 3), vocab=2),
        )
