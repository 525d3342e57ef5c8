"""A tree given as a list of nodes, each a path of ranks: Medusa's sparse tree, and its making."""

import functools
import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.transfer import constant
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.configs import read_yaml
from spec_bench.settings.fields import MOST_NODES, Count, Range, format_value
from spec_bench.system.errors import UsageError
from spec_bench.tree.base import AuditTree, GrownTree, distinct, policy, within_bounds
from spec_bench.tree.widths import sample_distinct
from spec_bench.vocabulary.spec import Spec

RankPath = tuple[Annotated[int, Range(0, MOST_NODES)], ...]

_FILE = Path(__file__).with_name("node_lists.yaml")


@functools.cache
def node_lists() -> dict[str, tuple[tuple[int, ...], ...]]:
    """The named lists shipped here: published ones and those built for the embedded heads."""
    named = read_yaml(_FILE)
    return {name: tuple(tuple(node) for node in nodes) for name, nodes in named.items()}


@policy("node_list", forms=("name",), takes="the name of a node list, such as mc_sim_7b_63")
@dataclass(frozen=True)
class NodeList(GrownTree):
    """The same nodes in every iteration; node (1, 0) is the best child of the second-best child."""

    # the name of a list that ships, or paths of ranks, counted from 0; every node's parent is a
    # node too
    nodes: str | tuple[RankPath, ...]

    def __post_init__(self) -> None:
        if isinstance(self.nodes, str) and self.nodes not in node_lists():
            raise UsageError(
                f"nodes {format_value(self.nodes)} is no node list; known: "
                f"{', '.join(node_lists())}, or give paths of ranks such as [[0], [1], [0, 0]]"
            )
        within_bounds("nodes", len(self.paths))
        if len(set(self.paths)) < len(self.paths):
            raise UsageError(f"nodes must be distinct, got one of {len(self.paths)} twice")
        known = {(), *self.paths}
        for node in self.paths:
            if node[:-1] not in known:
                raise UsageError(
                    f"nodes: node {format_value(list(node))} has no parent "
                    f"{format_value(list(node[:-1]))} in the list"
                )

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"nodes": spec.name} if spec.name in node_lists() else None

    @property
    def spec(self) -> str:
        return self.nodes if isinstance(self.nodes, str) else f"{len(self.nodes)} nodes"

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The nodes by depth and then by rank."""
        nodes = node_lists()[self.nodes] if isinstance(self.nodes, str) else self.nodes
        return tuple(sorted(nodes, key=lambda node: (len(node), node)))

    @cached_property
    def levels(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Per level each node's rank and its parent's place in the level above."""
        above: list[tuple[int, ...]] = [()]
        levels = []
        for depth in range(1, len(self.paths[-1]) + 1):
            level = [node for node in self.paths if len(node) == depth]
            place = {node: index for index, node in enumerate(above)}
            ranks = tuple(node[-1] for node in level)
            levels.append((ranks, tuple(place[node[:-1]] for node in level)))
            above = level
        return levels

    @cached_property
    def shape(self) -> TreeShape:
        most = [max(map(parents.count, parents)) for _, parents in self.levels]
        return TreeShape(tuple(len(ranks) for ranks, _ in self.levels), tuple(most))

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        level = self.levels[tree.grown]
        ranks, parent = (constant(part, scores.device) for part in level)
        best = scores[:, :, 0].topk(max(level[0]) + 1, dim=-1).indices  # [R, F, ranks]
        tokens = best[:, parent, ranks]
        tree.add_level(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), None)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)))),)


def greedy_node_list(accuracies: Sequence[Sequence[float]], nodes: int) -> list[tuple[int, ...]]:
    """Medusa's sparse tree: the nodes that add most to the expected accepted length.

    Medusa (arXiv 2401.10774, section 2.3.3): with a_k(n) the accuracy of head k's n-th guess, a
    node is worth the product of the accuracies along its path, as if heads erred independently.
    Each step adds the node of largest worth among those whose parent is in the tree.

    ``accuracies``: per head, per rank from the best on, the share of positions whose right token
    has this rank. ``nodes``: without the root. Returns paths of ranks, by depth and then by rank.
    Raises ValueError: nodes that these heads and ranks do not make, or an accuracy that is none.
    """
    widths = [len(head) for head in accuracies]
    most = sum(prod(widths[: depth + 1]) for depth in range(len(widths)))
    if not 1 <= nodes <= most:
        raise UsageError(
            f"a tree of {nodes} nodes was asked for; {len(widths)} heads of {widths} ranks make "
            f"trees of 1 to {most}"
        )
    if wrong := [each for head in accuracies for each in head if not 0 <= each <= 1]:
        raise UsageError(f"accuracies are shares between 0 and 1, got {wrong[0]}")
    chosen: list[tuple[int, ...]] = []
    # Among equals the shallower node is taken, then the better ranked one.
    waiting: list[tuple[float, int, tuple[int, ...]]] = [
        (-accuracy, 1, (rank,)) for rank, accuracy in enumerate(accuracies[0])
    ]
    heapq.heapify(waiting)
    while len(chosen) < nodes:
        worth, depth, path = heapq.heappop(waiting)
        chosen.append(path)
        if depth < len(widths):
            for rank, accuracy in enumerate(accuracies[depth]):
                heapq.heappush(waiting, (worth * accuracy, depth + 1, (*path, rank)))
    return sorted(chosen, key=lambda path: (len(path), path))


# Which tree of n nodes to list: the most expected accepted tokens for given acceptances.
#
# With positional acceptance (Sequoia, arXiv 2402.12374, Definition 3.1) a node's k-th child is
# accepted with probability a[k] once the node is reached, whatever the tokens and the depth. A tree
# is then worth the sum over its nodes of the product along each path. Recursive rejection without
# replacement fits that: a rank's acceptance does not depend on siblings drawn later.


def compute_expected_accepted(
    nodes: Sequence[tuple[int, ...]], acceptance: Sequence[float]
) -> float:
    """Returns E[accepted tokens] of a listed tree in one iteration, by a[k] of rank k."""
    return sum(prod(acceptance[rank] for rank in node) for node in nodes)


def pool_rates(acceptance: Sequence[float]) -> list[float]:
    """Estimates made to fall with rank, by averaging neighbours that do not (isotonic).

    Where draws are exchangeable, a later sibling cannot truly be worth more than an earlier one;
    an estimate that says so is noise, which taking the best would turn into a promise.
    """
    from scipy.optimize import isotonic_regression

    fitted: list[float] = isotonic_regression(acceptance, increasing=False).x.tolist()
    return fitted


def best_list(acceptance: Sequence[float], nodes: int) -> list[tuple[int, ...]]:
    """Sequoia's tree: the best one of that many nodes, however deep.

    Its dynamic programme (section 3.1.2) is not needed: where acceptance falls with rank, no node
    is worth more than its parent or an earlier sibling, so the n nodes of largest worth are a tree.
    The a[k] are pooled first; the root is not counted; paths come by depth and then by rank. Raises
    ValueError: fewer than one node, or an acceptance that is no probability.
    """
    return greedy_node_list([pool_rates(acceptance)] * max(nodes, 1), nodes)


# A listed tree whose siblings are drawn: Sequoia's (arXiv 2402.12374, section 3.1).


@policy("sampled_list", forms=("name",), takes="the name of a node list")
@dataclass(frozen=True)
class SampledList(NodeList):
    """Node (1, 0) is the first child drawn of the second child drawn; siblings are distinct.

    The list is fixed before anything is drawn, and ranks are the order of drawing, so a node's
    presence does not depend on its token: recursive rejection and traversal verification are exact.
    Every node's parent and earlier siblings are nodes too.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        known = set(self.paths)
        for node in self.paths:
            if node[-1] > 0 and (*node[:-1], node[-1] - 1) not in known:
                raise UsageError(
                    f"nodes: node {list(node)} is drawn after its sibling of rank {node[-1] - 1}, "
                    "which is not in the list"
                )

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return distinct(settings)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        level = self.levels[tree.grown]
        ranks, parent = (constant(part, scores.device) for part in level)
        tokens, valid, law = sample_distinct(tree, scores[:, :, 0], draws, max(level[0]) + 1)
        tree.add_level(tokens[:, parent, ranks], parent, valid[:, parent, ranks], None, law)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)))), AuditTree(cls(((0,), (1,), (1, 0), (1, 1)))))


# Sequoia's tree: a listed tree that is the best one for a pair's own acceptances.


_NODES = re.compile("@([0-9]{1,9})")


@policy("fitted_list", forms=("name",), takes="@N: a number of nodes such as @14")
@dataclass(frozen=True)
class FittedList(SampledList):
    """The N nodes that are worth most to a pair (arXiv 2402.12374, section 3.1).

    Which nodes they are follows from acceptances that were measured on the pair, task and sampling
    (``spec_bench fit_tree``); a job fills them in. Without them it grows nothing.
    """

    nodes: tuple[RankPath, ...] = ()  # paths of ranks; none: not filled in
    total: Count = 14  # N

    drafters = ("language_model",)

    def __post_init__(self) -> None:
        if not self.nodes:
            return
        super().__post_init__()
        if len(self.nodes) != self.total:
            raise UsageError(f"nodes must be as many as total, {self.total}, got {len(self.nodes)}")

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        match = _NODES.fullmatch(spec.name)
        return {"total": int(match[1])} if match else None

    @property
    def spec(self) -> str:
        return f"@{self.total}"

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        if not self.nodes:
            raise UsageError(f"no tree of {self.total} nodes was fitted to these models")
        return super().paths

    @cached_property
    def shape(self) -> TreeShape:
        """The tree's; not filled in, that of as many siblings, to be checked by."""
        return super().shape if self.nodes else TreeShape((self.total,), (self.total,))

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)), 3)),)
