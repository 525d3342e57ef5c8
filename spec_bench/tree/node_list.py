"""Trees given as lists of nodes, each node a path of ranks, and functions that build Medusa's and
Sequoia's lists.
"""

import functools
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated

from annotated_types import Interval, MinLen
from torch import Tensor

from spec_bench.core.draws import RandomSource
from spec_bench.core.host_device import cached_constant
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.configs import read_yaml
from spec_bench.settings.fields import MOST_NODES, Count, format_value
from spec_bench.system.errors import UsageError
from spec_bench.tree.base import (
    AuditTree,
    GrownTree,
    get_distinct_siblings,
    parse_total_for_keys,
    policy,
    refuse_too_many_nodes,
)
from spec_bench.tree.widths import draw_distinct_children
from spec_bench.vocabulary.spec import Spec

Ranks = tuple[Annotated[int, Interval(ge=0, le=MOST_NODES)], ...]
RankPath = Annotated[Ranks, MinLen(1)]

_FILE = Path(__file__).with_name("node_lists.yaml")


@functools.cache
def load_packaged_node_lists() -> dict[str, tuple[tuple[int, ...], ...]]:
    """Loads the node lists that ship with the package: published lists, and those of the embedded
    heads.
    """
    paths_by_name = read_yaml(_FILE)
    return {name: tuple(tuple(node) for node in nodes) for name, nodes in paths_by_name.items()}


@policy("node_list", forms=("name",), takes="the name of a node list, such as mc_sim_7b_63")
@dataclass(frozen=True)
class NodeList(GrownTree):
    """The same nodes in every iteration; node (1, 0) is the best child of the second-best child."""

    # name of a packaged list, or paths of ranks from 0 on; each node's parent must be listed
    nodes: str | Annotated[tuple[RankPath, ...], MinLen(1)]

    def __post_init__(self) -> None:
        if isinstance(self.nodes, str) and self.nodes not in load_packaged_node_lists():
            raise UsageError(
                f"nodes {format_value(self.nodes)} is no node list; known: "
                f"{', '.join(load_packaged_node_lists())}, or give paths of ranks such as [[0], "
                "[1], [0, 0]]"
            )
        refuse_too_many_nodes("nodes", len(self.rank_paths))
        if len(set(self.rank_paths)) < len(self.rank_paths):
            raise UsageError(f"nodes must be distinct, got one of {len(self.rank_paths)} twice")
        path_set = {(), *self.rank_paths}
        for node in self.rank_paths:
            if node[:-1] not in path_set:
                raise UsageError(
                    f"nodes: node {format_value(list(node))} has no parent "
                    f"{format_value(list(node[:-1]))} in the list"
                )

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"nodes": spec.name} if spec.name in load_packaged_node_lists() else None

    @property
    def spec(self) -> str:
        return self.nodes if isinstance(self.nodes, str) else f"{len(self.nodes)} nodes"

    @cached_property
    def rank_paths(self) -> tuple[tuple[int, ...], ...]:
        """The nodes sorted by depth, then by rank."""
        nodes = (
            load_packaged_node_lists()[self.nodes] if isinstance(self.nodes, str) else self.nodes
        )
        return tuple(sorted(nodes, key=lambda node: (len(node), node)))

    @cached_property
    def level_ranks_and_parents(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Each level's ranks, and its nodes' parents as indices into the level above."""
        parents: list[tuple[int, ...]] = [()]
        levels = []
        for depth in range(1, len(self.rank_paths[-1]) + 1):
            level = [node for node in self.rank_paths if len(node) == depth]
            parent_index = {node: index for index, node in enumerate(parents)}
            ranks = tuple(node[-1] for node in level)
            levels.append((ranks, tuple(parent_index[node[:-1]] for node in level)))
            parents = level
        return levels

    @cached_property
    def shape(self) -> TreeShape:
        max_children = [
            max(map(parents.count, parents)) for _, parents in self.level_ranks_and_parents
        ]
        return TreeShape(
            tuple(len(ranks) for ranks, _ in self.level_ranks_and_parents), tuple(max_children)
        )

    @cached_property
    def parents(self) -> tuple[int, ...]:
        starts = zip(self.shape.starts, self.level_ranks_and_parents, strict=False)
        return (0, *(start + place for start, (_, places) in starts for place in places))

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        level = self.level_ranks_and_parents[tree.grown]
        ranks, parent = (cached_constant(part, scores.device) for part in level)
        best = scores[:, :, 0].topk(max(level[0]) + 1, dim=-1).indices  # [R, F, ranks]
        tokens = best[:, parent, ranks]
        tree.add_level(tokens, parent, None, None)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)))),)


def build_medusa_list(accuracies: Sequence[Sequence[float]], nodes: int) -> list[tuple[int, ...]]:
    """Builds Medusa's sparse tree: the nodes that add most to the expected accepted length.

    Medusa (arXiv 2401.10774, section 2.3.3): with a_k(n) the accuracy of head k's n-th guess, a
    node's value is the product of the accuracies along its path, as if heads erred independently.
    Each step adds the node of largest value among those whose parent is in the tree.

    ``accuracies[k][n]`` is the share of positions where the right token is head k's n-th guess,
    best first. ``nodes`` does not count the root. Returns paths of ranks, by depth and then by
    rank. Raises UsageError if these heads and ranks cannot make a tree of ``nodes`` nodes, or if an
    accuracy is outside of [0, 1].
    """
    widths = [len(head) for head in accuracies]
    max_nodes = sum(prod(widths[: depth + 1]) for depth in range(len(widths)))
    if not 1 <= nodes <= max_nodes:
        raise UsageError(
            f"a tree of {nodes} nodes was asked for; {len(widths)} heads of {widths} ranks make "
            f"trees of 1 to {max_nodes}"
        )
    if wrong := [share for head in accuracies for share in head if not 0 <= share <= 1]:
        raise UsageError(f"accuracies are shares between 0 and 1, got {wrong[0]}")
    tree_paths: list[tuple[int, ...]] = []
    # Ties go to the shallower node, then to the better rank.
    heap: list[tuple[float, int, tuple[int, ...]]] = [
        (-accuracy, 1, (rank,)) for rank, accuracy in enumerate(accuracies[0])
    ]
    heapq.heapify(heap)
    while len(tree_paths) < nodes:
        worth, depth, path = heapq.heappop(heap)
        tree_paths.append(path)
        if depth < len(widths):
            for rank, accuracy in enumerate(accuracies[depth]):
                heapq.heappush(heap, (worth * accuracy, depth + 1, (*path, rank)))
    return sorted(tree_paths, key=lambda path: (len(path), path))


def compute_expected_accepted_tokens(
    nodes: Sequence[tuple[int, ...]], acceptance: Sequence[float]
) -> float:
    """Computes the expected accepted tokens of an iteration if rank k is accepted with probability
    ``acceptance[k]``.

    With positional acceptance (Sequoia, arXiv 2402.12374, Definition 3.1) a node's k-th child is
    accepted with probability a[k] once the node is reached, whatever the tokens and the depth. The
    expectation is then the sum over all nodes of the product of a[k] along the node's path.
    Recursive rejection without replacement fits this model, because a rank's acceptance does not
    depend on siblings drawn later.
    """
    return sum(prod(acceptance[rank] for rank in node) for node in nodes)


def pool_rising_rates(acceptance: Sequence[float]) -> list[float]:
    """Averages neighbouring acceptance rates that rise with rank (isotonic regression).

    Draws are exchangeable, so a later sibling is never accepted more often than an earlier one. A
    rise is noise, and the expected acceptance of a tree chosen by it would be too high.
    """
    from scipy.optimize import isotonic_regression

    rates: list[float] = isotonic_regression(acceptance, increasing=False).x.tolist()
    return rates


def build_sequoia_list(acceptance: Sequence[float], nodes: int) -> list[tuple[int, ...]]:
    """Builds Sequoia's tree: the tree of ``nodes`` nodes, the root not counted, with the most
    expected accepted tokens, whatever its depth.

    Its dynamic programme (section 3.1.2) is not needed: if acceptance falls with rank, no node has
    a larger value than its parent or an earlier sibling, so the n nodes of largest value form a
    tree. Rising acceptance rates are pooled first. Paths are sorted by depth, then by rank. Raises
    UsageError for fewer than one node, or an acceptance outside of [0, 1].
    """
    return build_medusa_list([pool_rising_rates(acceptance)] * max(nodes, 1), nodes)


@policy("sampled_list", forms=("name",), takes="the name of a node list")
@dataclass(frozen=True)
class SampledList(NodeList):
    """A node list with distinct drawn siblings (Sequoia, arXiv 2402.12374, section 3.1).

    Node (1, 0) is the first child drawn below the second child drawn. The list is fixed before
    anything is drawn, so a node's presence does not depend on its token: recursive rejection and
    traversal verification are exact. Every node's parent and earlier siblings are nodes too.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        path_set = set(self.rank_paths)
        for node in self.rank_paths:
            if node[-1] > 0 and (*node[:-1], node[-1] - 1) not in path_set:
                raise UsageError(
                    f"nodes: node {list(node)} is drawn after its sibling of rank {node[-1] - 1}, "
                    "which is not in the list"
                )

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return get_distinct_siblings(settings)

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        level = self.level_ranks_and_parents[tree.grown]
        ranks, parent = (cached_constant(part, scores.device) for part in level)
        tokens, valid, proposal = draw_distinct_children(
            tree, scores[:, :, 0], draws, max(level[0]) + 1
        )
        tree.add_level(tokens[:, parent, ranks], parent, valid[:, parent, ranks], None, proposal)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)))), AuditTree(cls(((0,), (1,), (1, 0), (1, 1)))))


@policy("fitted_list", forms=("name",), takes="@N: a number of nodes such as @14")
@dataclass(frozen=True)
class FittedList(SampledList):
    """Sequoia's best tree of N nodes for a pair (arXiv 2402.12374, section 3.1).

    A job fills in the nodes from the acceptance measured on the pair, task and sampling
    (``spec-bench fit``). Growing a tree without them raises UsageError.
    """

    nodes: tuple[RankPath, ...] = ()  # paths of ranks; empty: not filled in
    total: Count = 14  # N

    drafters = ("language_model",)

    def __post_init__(self) -> None:
        if not self.nodes:
            return
        super().__post_init__()
        if len(self.nodes) != self.total:
            raise UsageError(f"nodes must be as many as total, {self.total}, got {len(self.nodes)}")

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return parse_total_for_keys(spec.name, "total")

    @property
    def spec(self) -> str:
        return f"@{self.total}"

    @cached_property
    def rank_paths(self) -> tuple[tuple[int, ...], ...]:
        if not self.nodes:
            raise UsageError(f"no tree of {self.total} nodes was fitted to these models")
        return super().rank_paths

    @cached_property
    def shape(self) -> TreeShape:
        """Shape of the tree; before its nodes are filled in, a shape of N siblings, for checks."""
        return super().shape if self.nodes else TreeShape((self.total,), (self.total,))

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)), 3)),)
