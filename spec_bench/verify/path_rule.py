"""Whole-path rules: the accepted path is chosen among all of a tree's nodes at once.

Traversal verification (arXiv 2505.12398) of a tree; of a chain it is block verification
(arXiv 2403.10444). Every node has a quota, at most 1: the share of its own drawing that a lossless
verifier may carry through it. This and the quotas that its children may use up give the chance that
a node is accepted as the last one, and the law of the token after it. Both follow from the tree
alone. The random part tests nodes one by one, each after its descendants, and the
first success is the last node accepted.

It is exact wherever a node's existence is settled before its token is drawn and siblings are
tested in the order drawn. Letters: R rows, N nodes, F nodes of a level, C children, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.transfer import places
from spec_bench.core.tree import FlatShape, Siblings, Tree
from spec_bench.core.warp import SamplingSettings, probs
from spec_bench.verify import chain
from spec_bench.verify.base import TreeVerifier, rule
from spec_bench.verify.rules import normalised
from spec_bench.verify.walk import WalkResult


class PathVerdict(NamedTuple):
    """What a whole-path rule decides.

    Attributes:
        order: [R, N] nodes in the order tested, absent ones after all others, the root last.
        success: [R, N - 1] float64, P(a node is the last accepted | all before it in the order
            failed); 0 for absent ones. The root succeeds where all others fail.
        residual: [R, N, V] by node: the token after the last accepted node is drawn from it; not
            normalised.
    """

    order: Tensor
    success: Tensor
    residual: Tensor


PathRule = Callable[[Tree, Tensor], PathVerdict]


def traversal(tree: Tree, p: Tensor) -> PathVerdict:
    """Quotas top-down, then chances of success bottom-up (arXiv 2505.12398; 2403.10444).

    In a node with quota a and residual P, each child v with token x, drawn from ``law``, has the
    quota min(1, a P(x) / law(x)). If v is not accepted, m = max(0, a P - law) is left: with
    S = sum m, P becomes m / S and a becomes S / (S + 1 - a). The last such a is the node's chance
    of success; a leaf's is its quota. Only the product a P is carried along.

    Args:
        tree: fully grown.
        p: [R, N, V] the target's distribution at every node.

    Returns:
        The verdict.
    """
    shape = tree.shape
    if chain.is_chain(shape) and not p.is_cpu:
        return PathVerdict(*chain.verified(tree, p))
    success = torch.ones(tree.tokens.shape, dtype=torch.float64, device=p.device)
    residual = torch.empty_like(p) if tree.own_depths is None else p.clone()
    for level in range(shape.depth):
        parents, below = parents_of(tree, level), shape.level(level + 1)
        above = parents.at
        place, there = children_of(tree, level, parents)
        tokens = tree.tokens[:, below].unsqueeze(1).expand(-1, place.shape[1], -1)
        tokens = tokens.gather(-1, place)
        mass = success[above].unsqueeze(-1)
        left = p[above] * mass.to(p.dtype)
        quotas = torch.zeros_like(success[:, below])
        laws = sibling_laws(tree, level, parents, tokens)
        for child, law in enumerate(laws):
            token, exists = tokens[..., child, None], there[..., child, None]
            quota, left, mass = _tested(left, mass, law, token, exists)
            # Each node has one parent; the places of absent children add 0.
            quotas = quotas.scatter_add(1, place[..., child], quota)
        success[above] = mass.squeeze(-1)
        if parents.real is None:
            success[:, below], residual[above] = quotas, left
        else:
            mine = tree.depths[:, below] == level + 1
            success[:, below] = torch.where(mine, quotas, success[:, below])
            residual[above] = torch.where(parents.real.unsqueeze(-1), left, residual[above])
    if tree.own_depths is None:
        leaves = shape.level(shape.depth)
        residual[:, leaves] = p[:, leaves]
    order = post_order(tree)
    return PathVerdict(order, success.gather(1, order)[:, :-1], residual)


def _tested(
    left: Tensor, mass: Tensor, law: Tensor | None, token: Tensor, there: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One child's quota, and what its failure leaves of its parent's.

    Args:
        left: [R, F, V] a P.
        mass: [R, F, 1] a, float64.
        law: [R, F, V] that the child was drawn from; None where it is one-hot.
        token: [R, F, 1] the child's.
        there: [R, F, 1] whether it exists.

    Returns:
        quota [R, F], and ``left`` and ``mass`` without it.
    """
    at = left.gather(-1, token).double()
    if law is None:
        quota, rest = at, left.scatter(-1, token, 0.0)
    else:
        drawn = law.gather(-1, token).double()
        quota, rest = torch.where(drawn > 0, at / drawn, 0.0), (left - law).clamp_(min=0.0)
    sums = rest.sum(dim=-1, keepdim=True, dtype=torch.float64)
    total = sums + (1 - mass)
    # Nothing is left of a quota of 1 where p is the draft's law: the child surely succeeds.
    changes = there & (total > 0)
    scale = torch.where(changes, 1 / total, 0.0)
    rest = rest.mul_(scale.to(rest.dtype))
    if not (changes.is_cpu and changes.all()):  # elsewhere asking would stall the device
        rest = torch.where(changes, rest, left)
    mass = torch.where(changes, sums * scale, mass)
    return (quota.clamp(max=1.0) * there).squeeze(-1), rest, mass


class Parents(NamedTuple):
    """The nodes of a level that may have children.

    Attributes:
        at: picks them out of [R, N, ...].
        real: [R, F] which of them have children; others are fillers. None: any may.
    """

    at: tuple[Any, Any]
    real: Tensor | None


def parents_of(tree: Tree, level: int) -> Parents:
    """A level's nodes; in a flat tree, as many as may have children."""
    shape = tree.shape
    if not isinstance(shape, FlatShape):
        return Parents((slice(None), shape.level(level)), None)
    counts = torch.zeros_like(tree.parent).scatter_add(1, tree.parent, tree.valid.long())
    wanted = (tree.depths == level) & (counts > 0)
    nodes = (~wanted).byte().sort(dim=1, stable=True).indices[:, : shape.busy if level else 1]
    rows = places(len(nodes), nodes.device).unsqueeze(1)
    return Parents((rows, nodes), wanted.gather(1, nodes))


def children_of(tree: Tree, level: int, parents: Parents) -> tuple[Tensor, Tensor]:
    """Every node's children in the order drawn.

    Args:
        tree: the tree.
        level: of the parents.
        parents: the level's nodes.

    Returns:
        place [R, F, C] within the next level and there [R, F, C]; the place of a
        missing child is arbitrary.
    """
    above, below = tree.shape.level(level), tree.shape.level(level + 1)
    valid, most = tree.valid[:, below], tree.shape.children[level]
    rows, count = valid.shape
    nodes, width = above.stop - above.start, min(most, count)
    if parents.real is not None:
        wanted = torch.where(parents.real, parents.at[1], -1).unsqueeze(2)
        mine = (tree.parent[:, below].unsqueeze(1) == wanted) & valid.unsqueeze(1)
        place = (~mine).byte().sort(dim=2, stable=True).indices[..., :width]
        return place, mine.gather(2, place)
    if tree.shape.in_equal_shares(level):
        place = torch.arange(count, device=valid.device).view(1, nodes, width)
        return place.expand(rows, -1, -1), valid.view(rows, nodes, width)
    parent = torch.where(valid, tree.parent[:, below] - above.start, nodes)
    parent, index = parent.sort(dim=1, stable=True)
    wanted = torch.arange(nodes + 1, device=valid.device).expand(rows, -1).contiguous()
    start = torch.searchsorted(parent.contiguous(), wanted)
    rank = start[:, :-1, None] + torch.arange(width, device=valid.device)
    place = index.unsqueeze(1).expand(-1, nodes, -1).gather(2, rank.clamp(max=count - 1))
    return place, rank < start[:, 1:, None]


def sibling_laws(
    tree: Tree, level: int, parents: Parents, tokens: Tensor
) -> Iterator[Tensor | None]:
    """What each child was drawn from, given its earlier siblings.

    Args:
        tree: the tree.
        level: of the parents.
        parents: the level's F nodes.
        tokens: [R, F, C] of the children.

    Yields:
        For each of C children [R, F, V]; None where it is one-hot.
    """
    q, log_q = tree.q[level], tree.log_q[level]
    if tree.siblings == "without_replacement":
        if log_q is None:
            assert q is not None
            log_q = q[:, :, 0].log()
        if parents.real is not None and level:
            rows, nodes = parents.at
            log_q = log_q[rows, nodes - 1]  # where the root is a filler any law will do
        gone = torch.finfo(log_q.dtype).min  # the softmax of nothing but -inf is NaN
        for token in tokens.unbind(-1):
            yield log_q.softmax(dim=-1)
            log_q = log_q.scatter(-1, token.unsqueeze(-1), gone)
    else:
        best = tree.sampled if tree.siblings == "top_and_sampled" else tokens.shape[-1]
        for child in range(tokens.shape[-1]):
            yield None if q is None or child >= best else q[:, :, child % q.shape[2]]


def post_order(tree: Tree) -> Tensor:
    """Nodes such that each comes after its descendants, siblings in the order drawn.

    A node's place depends only on the nodes that exist.

    Args:
        tree: the tree.

    Returns:
        [R, N]; absent nodes after the others, the root last.
    """
    size = tree.shape.size
    index = torch.arange(size, device=tree.tokens.device)
    below = (tree.ancestors & tree.valid.unsqueeze(2)).sum(dim=1)  # nodes of each one's subtree
    same = tree.parent.unsqueeze(2) == tree.parent.unsqueeze(1)
    earlier = same & (index < index.unsqueeze(1)) & (index > 0)  # [R, N, N] siblings before
    before = (earlier * below.unsqueeze(1)).sum(dim=2)
    behind = (tree.ancestors * before.unsqueeze(1)).sum(dim=2) + below
    behind = torch.where(tree.valid, behind, size + index)
    behind = torch.where(index > 0, behind, 2 * size)
    return behind.sort(dim=1, stable=True).indices


def path_walk(
    tree: Tree,
    logits: Tensor,
    settings: SamplingSettings,
    rule: PathRule,
    draws: Draws,
    *,
    merge_copies: bool = False,
) -> WalkResult:
    """Tests all nodes by a whole-path rule; the token comes from the last accepted one's residual.

    Args:
        tree: fully grown, N nodes.
        logits: [R, N, V] the target's logits at every node.
        settings: the target's sampling settings.
        rule: the whole-path rule.
        draws: randomness.
        merge_copies: ignored; nodes with equal prefixes stay apart: each is a draw.

    Returns:
        The path, its length and the last token.
    """
    shape = tree.shape
    p = probs(logits, settings)
    order, success, residual = rule(tree, p)
    # As many tests for a row as for its neighbours, whose trees may have more absent nodes.
    tests = max(shape.size - 1, sum(shape.children))
    chosen = draws.verdict((tests,))
    first = chosen.first_accepted(0, success)
    last = order.gather(1, first.unsqueeze(1)).squeeze(1)
    rows, depth = places(len(last), last.device), tree.depths
    token = chosen.token(normalised(residual[rows, last], p[rows, last]))
    level = places(shape.depth + 1, last.device).unsqueeze(1)
    own = tree.ancestors[rows, last].unsqueeze(1)  # [R, 1, N]
    path = (own & (depth.unsqueeze(1) == level)).byte().argmax(dim=2)
    accepted = depth.expand(len(rows), -1).gather(1, last.unsqueeze(1)).squeeze(1)
    return WalkResult(path, accepted, token)


WHOLE_PATH: tuple[Siblings, ...] = get_args(Siblings)


@rule("traversal", siblings=WHOLE_PATH, mark="exact", several_drafts=True)
@dataclass(frozen=True)
class Traversal(TreeVerifier):
    """Traversal verification; of a chain, block verification."""

    walk = staticmethod(path_walk)

    def judge(self, depth: int) -> PathRule:
        return traversal
