"""What a node rule is given and what it decides.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] where all children share one draft
distribution, [B, C, V] where each has its own, None where proposals are one-hot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.transfer import cached_arange
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


# The walk from the root down the tree: one node rule per level, one verdict per row.
#
# All rows walk together and nothing leaves the device: the caller copies the result once.


class ScoredTree(NamedTuple):
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


def walk_down(scored: ScoredTree, rule: Rules) -> WalkResult:
    """Walks top-down, at every node testing the children in order.

    If all children are rejected (or there are none) the token comes from the residual; at a leaf
    where everything was accepted the bonus token comes from p at that leaf.
    """
    tree, logits, settings, draws, merge_copies = scored
    shape = tree.shape
    rows = cached_arange(tree.tokens.shape[0], tree.tokens.device)
    chosen = draws.verdict(shape.children)
    if not shape.depth:
        at_root = logits[:, 0]
        nothing = torch.zeros_like(tree.tokens)
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
        q = draft_distribution(tree, level, rows, place, tokens)
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
            copies = find_copies(tree, level, copies, tokens.gather(1, picked))
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
    above = tree.shape.level(level)
    below = tree.shape.level(level + 1)
    most = tree.shape.children[level]
    count = tree.shape.levels[level]
    width = min(most, count)
    if tree.shape.has_uniform_children(level):
        order = place.unsqueeze(1) * width + torch.arange(width, device=place.device)
        return order, tree.valid[:, below].gather(1, order)
    parent = tree.parent[:, below] - above.start
    mine = parent == place.unsqueeze(1) if copies is None else copies.gather(1, parent)
    mine = mine & tree.valid[:, below]
    order = mine.byte().sort(dim=1, descending=True, stable=True).indices[:, :width]
    return order, mine.gather(1, order)


def draft_distribution(
    tree: Tree, level: int, rows: Tensor, place: Tensor, tokens: Tensor
) -> Tensor | None:
    """Returns q of the candidates, tokens [R, C], below each row's node at ``place``: [R, 1, V] if
    they share one, [R, C, V] if each has its own.
    """
    log_q = tree.log_q[level]
    q = tree.q[level]
    if log_q is not None:
        return compute_sibling_distributions(log_q[rows, place], tokens)
    if q is None:
        return None
    law = q[rows, place]
    drafts = law.shape[1]
    width = tokens.shape[1]
    return law if drafts == 1 else law[:, torch.arange(width, device=law.device) % drafts]


def find_copies(tree: Tree, level: int, copies: Tensor | None, token: Tensor) -> Tensor:
    """[R, n_below] the nodes below the current node's copies that hold the accepted token."""
    below = tree.shape.level(level + 1)
    same = tree.tokens[:, below] == token
    if copies is None:
        return same
    return same & copies.gather(1, tree.parent[:, below] - tree.shape.starts[level])
