"""The walk of a single row on a host: a loop over the nodes that it visits.

A tensor operation on one number takes a CPU as long as one on a thousand. So only laws over the
vocabulary are tensors here, and children are judged one at a time where the rule allows that: none
after the accepted one is looked at. Numbers, draws and path are ``walk_down``'s.

Letters: C children of a node, D drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from spec_bench.core.draws import Draws, VerdictDraws
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, probs
from spec_bench.verify.verdict import NodeRule, OneByOne
from spec_bench.verify.walk import WalkResult, draft_law


def walk_one_row(
    tree: Tree,
    logits: Tensor,
    settings: SamplingSettings,
    rule: NodeRule | Sequence[NodeRule],
    draws: Draws,
    *,
    merge_copies: bool = False,
) -> WalkResult:
    """Arguments and result as in ``walk_down``; one row on a CPU, of a tree with levels."""
    row, shape = _Row(tree), tree.shape
    chosen = draws.verdict(shape.children)
    path, alike = [0], {0}  # alike: all nodes that count as the path's last one
    p = probs(logits[:, 0], settings)
    for level in range(shape.depth):
        children, there = row.children(level, path[-1], alike)
        judge = rule if callable(rule) else rule[level]
        place = path[-1] - shape.starts[level]
        tokens = [row.tokens[child] for child in children]
        if isinstance(judge, OneByOne) and row.draws_in_turn(level):
            present = [(number, tokens[number]) for number, exists in enumerate(there) if exists]
            laws = row.laws_in_turn(level, place, present)
            first, p = _in_turn(judge, p, laws, level, chosen)
        else:
            ids = torch.tensor([tokens])
            q = draft_law(tree, level, slice(None), place, ids)
            chances, rest = judge(p, q, ids, torch.tensor([there]))
            first, p = _first(chances, level, chosen), rest
        if first is None:
            break
        path.append(children[first])
        alike = {path[-1]}
        if merge_copies:
            mine = zip(children, tokens, there, strict=True)
            alike = {child for child, token, exists in mine if exists and token == tokens[first]}
        p = probs(logits[:, path[-1]], settings)
    accepted = len(path) - 1
    path += path[-1:] * (shape.depth - accepted)
    return WalkResult(torch.tensor([path]), torch.tensor([accepted]), chosen.token(p))


class _Row:
    """The one row of a tree, on the host.

    Attributes:
        tokens: of all nodes.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree, self.tokens = tree, tree.tokens[0].tolist()
        self._parent, self._valid = tree.parent[0].tolist(), tree.valid[0].tolist()

    def children(
        self, level: int, node: int, alike: Collection[int]
    ) -> tuple[Sequence[int], list[bool]]:
        """Numbers of a node's children in the order drawn, and which of them are there.

        Args:
            level: of the node.
            node: its number.
            alike: all nodes that count as it.
        """
        shape = self._tree.shape
        first, count = shape.starts[level + 1], shape.levels[level]
        width = min(shape.children[level], count)
        if shape.in_equal_shares(level):
            first += (node - shape.starts[level]) * width
            order: Sequence[int] = range(first, first + width)
            return order, [self._valid[child] for child in order]
        below = range(first, first + count)
        mine = [child for child in below if self._valid[child] and self._parent[child] in alike]
        existing = len(mine)
        # If a node has fewer children, other nodes fill up the list, marked as absent.
        if existing < width:
            listed = set(mine)
            mine += [child for child in below if child not in listed]
        return mine[:width], [number < existing for number in range(width)]

    def draws_in_turn(self, level: int) -> bool:
        """Whether each child's own law is known: what its earlier siblings left of the draft's."""
        tree = self._tree
        one_hot = tree.q[level] is None
        return one_hot or tree.siblings != "without_replacement"

    def laws_in_turn(
        self, level: int, place: int, children: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[int, int, Tensor | None]]:
        """Each child with the law that it was drawn from, made when it is asked for.

        Args:
            level: of the parent.
            place: of the parent within its level.
            children: number among its siblings and token, of those that are there.

        Yields:
            Number, token and law [1, V]; None for one-hot proposals.
        """
        log_q, q = self._tree.log_q[level], self._tree.q[level]
        if log_q is not None:
            left = log_q[:, place].clone()
            gone = torch.finfo(left.dtype).min  # the softmax of nothing but -inf is NaN
            for number, token in children:
                yield number, token, left.softmax(dim=-1)
                left.numpy()[0, token] = gone
            return
        for number, token in children:
            yield number, token, None if q is None else q[:, place, number % q.shape[2]]


def _in_turn(
    rule: OneByOne,
    p: Tensor,
    children: Iterable[tuple[int, int, Tensor | None]],
    level: int,
    chosen: VerdictDraws,
) -> tuple[int | None, Tensor]:
    """The first accepted child, and the law that the rejected ones left [1, V]."""
    for number, token, q in children:
        if chosen.accepts(level, number, rule.steps.accepts(p, q, token)):
            return number, p
        p = rule.steps.leaves(p, q, token)
    return None, p


def _first(chances: Tensor, level: int, chosen: VerdictDraws) -> int | None:
    """The first child that is accepted; chances [1, C]."""
    for number, chance in enumerate(chances[0].tolist()):
        if chosen.accepts(level, number, chance):
            return number
    return None
