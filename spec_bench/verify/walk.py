"""What a node rule is given and what it decides.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] where all children share one draft
distribution, [B, C, V] where each has its own, None where proposals are one-hot.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from spec_bench.core.draws import Draws, VerdictDraws
from spec_bench.core.gumbel import laws_without_replacement
from spec_bench.core.transfer import places
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, argmax_lowest, probs


class Verdict(NamedTuple):
    """What a node rule decides."""

    # [B, C] P(accept child j | children before j rejected); 0 for absent children
    acceptance: Tensor
    residual: Tensor  # [B, V] distribution of the token if every child is rejected


class NodeRule(Protocol):
    """p [B, V], q [B, 1 or C, V] or None, tokens [B, C], valid [B, C] -> Verdict."""

    def __call__(self, p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict: ...


Rules = NodeRule | Sequence[NodeRule]
"""One for all nodes, or one per level above the leaves."""


class Steps(NamedTuple):
    """A node rule child by child, for one node on a host: the numbers of its verdict, no others."""

    # p [1, V] after the children rejected so far, q [1, V] that this one was drawn from (None: one-
    # hot), its token -> P(it is accepted)
    accepts: Callable[[Tensor, Tensor | None, int], float]
    # the same -> p [1, V] after its rejection too
    leaves: Callable[[Tensor, Tensor | None, int], Tensor]


@dataclass(frozen=True)
class OneByOne:
    """A node rule that can also be asked child by child."""

    whole: NodeRule  # the rule
    steps: Steps  # the same, child by child

    def __call__(self, p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
        return self.whole(p, q, tokens, valid)


# The walk from the root down the tree: one node rule per level, one verdict per row.
#
# All rows walk together and nothing leaves the device: the caller copies the result once.


class Scored(NamedTuple):
    """What a walk is given: a batch's trees and what the target made of them."""

    tree: Tree  # fully grown, N nodes
    logits: Tensor  # [R, N, V] the target's logits at every node
    settings: SamplingSettings  # the target's
    draws: Draws  # randomness
    merge_copies: bool = False  # whether nodes with equal prefixes count as one (K i.i.d. paths)


@dataclass(frozen=True)
class WalkResult:
    """Where each row's walk ended."""

    # [R, L + 1] nodes accepted in order, the root first; only the first `accepted + 1` entries of a
    # row mean anything
    path: Tensor
    accepted: Tensor  # [R] number of draft tokens accepted
    token: Tensor  # [R] the residual or bonus token


def walk_down(scored: Scored, rule: Rules) -> WalkResult:
    """Walks top-down, at every node testing the children in order.

    If all children are rejected (or there are none) the token comes from the residual; at a leaf
    where everything was accepted the bonus token comes from p at that leaf.
    """
    tree, logits, settings, draws, merge_copies = scored
    shape, rows = tree.shape, places(tree.tokens.shape[0], tree.tokens.device)
    chosen = draws.verdict(shape.children)
    if not shape.depth:
        at_root, nothing = logits[:, 0], torch.zeros_like(tree.tokens)
        if settings.temperature == 0:  # nothing to draw
            return WalkResult(nothing, nothing[:, 0], argmax_lowest(at_root))
        return WalkResult(nothing, nothing[:, 0], chosen.token(probs(at_root, settings)))
    node = place = accepted = torch.zeros_like(rows)  # place: of the node within its level
    copies: Tensor | None = None
    going = torch.ones_like(rows, dtype=torch.bool)
    path = [node]
    outcome = probs(logits[rows, node], settings)
    for level in range(shape.depth):
        order, valid = candidates(tree, level, place, copies)
        tokens = tree.tokens[:, shape.level(level + 1)].gather(1, order)
        judge = rule if callable(rule) else rule[level]
        q = draft_law(tree, level, rows, place, tokens)
        acceptance, residual = judge(outcome, q, tokens, valid)
        first = chosen.first_accepted(level, acceptance)
        picked = first.clamp(max=order.shape[1] - 1).unsqueeze(1)
        outcome = torch.where(going.unsqueeze(1), residual, outcome)
        going = going & (first < order.shape[1])
        if going.is_cpu and not going.any():  # elsewhere asking would stall the device
            break
        # Where a walk has ended, the places below it mean nothing and change nothing.
        place = order.gather(1, picked).squeeze(1)
        node = torch.where(going, place + shape.starts[level + 1], node)
        path.append(node)
        accepted = accepted + going
        outcome = torch.where(going.unsqueeze(1), probs(logits[rows, node], settings), outcome)
        if merge_copies:
            copies = copies_below(tree, level, copies, tokens.gather(1, picked))
    path += [node] * (shape.depth + 1 - len(path))
    return WalkResult(torch.stack(path, dim=1), accepted, chosen.token(outcome))


def candidates(
    tree: Tree, level: int, place: Tensor, copies: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns the current node's children in the order drawn, absent ones last where nodes have
    unequal shares: their places [R, C] within the next level, and which exist. ``place`` [R] is the
    node's within its level; ``copies`` [R, n_level] are all that count as it, None where it is
    alone.
    """
    above, below = tree.shape.level(level), tree.shape.level(level + 1)
    most, count = tree.shape.children[level], tree.shape.levels[level]
    width = min(most, count)
    if tree.shape.in_equal_shares(level):
        order = place.unsqueeze(1) * width + torch.arange(width, device=place.device)
        return order, tree.valid[:, below].gather(1, order)
    parent = tree.parent[:, below] - above.start
    mine = parent == place.unsqueeze(1) if copies is None else copies.gather(1, parent)
    mine = mine & tree.valid[:, below]
    order = mine.byte().sort(dim=1, descending=True, stable=True).indices[:, :width]
    return order, mine.gather(1, order)


def draft_law(
    tree: Tree, level: int, rows: Tensor | slice, place: Tensor | int, tokens: Tensor
) -> Tensor | None:
    """Returns q of the candidates, tokens [R, C], below each row's node at ``place``: [R, 1, V] if
    they share one, [R, C, V] if each has its own.
    """
    log_q, q = tree.log_q[level], tree.q[level]
    if log_q is not None:
        return laws_without_replacement(log_q[rows, place], tokens)
    if q is None:
        return None
    law = q[rows, place]
    drafts, width = law.shape[1], tokens.shape[1]
    return law if drafts == 1 else law[:, torch.arange(width, device=law.device) % drafts]


def copies_below(tree: Tree, level: int, copies: Tensor | None, token: Tensor) -> Tensor:
    """[R, n_below] the nodes below the current node's copies that hold the accepted token."""
    below = tree.shape.level(level + 1)
    same = tree.tokens[:, below] == token
    if copies is None:
        return same
    return same & copies.gather(1, tree.parent[:, below] - tree.shape.starts[level])


# The walk of a single row on a host: a loop over the nodes that it visits.
#
# A tensor operation on one number takes a CPU as long as one on a thousand. So only distributions
# over the vocabulary are tensors here, and children are judged one at a time where the rule allows
# that: none after the accepted one is looked at. Numbers, draws and path are `walk_down`'s.
#
# Letters: C children of a node, D drafts, V vocabulary.


def walk_one_row(scored: Scored, rule: Rules) -> WalkResult:
    """``walk_down`` of one row on a CPU, of a tree with levels."""
    tree, logits, settings, draws, merge_copies = scored
    row, shape = _Row(tree), tree.shape
    chosen = draws.verdict(shape.children)
    path, alike = [0], {0}  # alike: all nodes that count as the path's last one
    p = probs(logits[:, 0], settings)
    for level in range(shape.depth):
        children, there = row.children(level, path[-1], alike)
        judge = rule if callable(rule) else rule[level]
        place = path[-1] - shape.starts[level]
        tokens = [row.tokens[child] for child in children]
        # A drafter that gives q of distinct siblings does not say what is left after each.
        known = tree.q[level] is None or tree.siblings != "without_replacement"
        if isinstance(judge, OneByOne) and known:
            present = [(number, tokens[number]) for number, exists in enumerate(there) if exists]
            laws = row.laws_in_turn(level, place, present)
            first, p = _in_turn(judge, p, laws, level, chosen)
        else:
            ids = torch.tensor([tokens])
            q = draft_law(tree, level, slice(None), place, ids)
            chances, p = judge(p, q, ids, torch.tensor([there]))
            tested = enumerate(chances[0].tolist())
            first = next((n for n, chance in tested if chosen.accepts(level, n, chance)), None)
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
    """The one row of a tree, on the host."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self.tokens = tree, tree.tokens[0].tolist()
        self._parent, self._valid = tree.parent[0].tolist(), tree.valid[0].tolist()

    def children(
        self, level: int, node: int, alike: Collection[int]
    ) -> tuple[Sequence[int], list[bool]]:
        """``candidates`` of one node, ``alike`` being all that count as it."""
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

    def laws_in_turn(
        self, level: int, place: int, children: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[int, int, Tensor | None]]:
        """Yields each child's number, token and distribution [1, V] that it was drawn from, which
        its earlier siblings left of the draft's; None for one-hot ones.
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
    """Returns the first accepted child, and the distribution that the rejected ones left [1, V]."""
    for number, token, q in children:
        if chosen.accepts(level, number, rule.steps.accepts(p, q, token)):
            return number, p
        p = rule.steps.leaves(p, q, token)
    return None, p
