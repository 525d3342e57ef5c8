"""The walk from the root down the tree: one node rule a level, one verdict a row.

All rows walk together and nothing leaves the device: the caller copies the result once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.verify.rules import NodeRule


@dataclass(frozen=True)
class WalkResult:
    """Where each row's walk ended.

    Attributes:
        path: [R, L + 1] nodes accepted in order, the root first; only the first
            ``accepted + 1`` entries of a row mean anything.
        accepted: [R] number of draft tokens accepted.
        token: [R] the residual or bonus token.
    """

    path: Tensor
    accepted: Tensor
    token: Tensor


def walk(
    tree: Tree,
    logits: Tensor,
    settings: SamplingSettings,
    rule: NodeRule | Sequence[NodeRule],
    draws: Draws,
    *,
    merge_copies: bool = False,
) -> WalkResult:
    """Walks top-down, at every node testing the children in order.

    If all children are rejected (or there are none) the token comes from the residual; at a leaf
    where everything was accepted the bonus token comes from p at that leaf.

    Args:
        tree: fully grown, N nodes.
        logits: [R, N, V] the target's logits at every node.
        settings: the target's sampling settings.
        rule: the node rule, or one per level above the leaves.
        draws: randomness.
        merge_copies: treat nodes with equal prefixes as one (K i.i.d. paths).

    Returns:
        The path, its length and the last token.
    """
    rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
    chosen = draws.verdict(tree.shape.children)
    node = torch.zeros_like(rows)
    here = torch.ones_like(tree.valid[:, :1])  # [R, n] which nodes of this level the walk is at
    stopped = torch.zeros_like(rows, dtype=torch.bool)
    accepted = torch.zeros_like(rows)
    path = [node]
    outcome = log_probs(logits[rows, node], settings).exp()
    for level, most in enumerate(tree.shape.children):
        width = min(most, tree.shape.levels[level])
        order, valid = _candidates(tree, level, here, width)
        tokens = tree.tokens[:, tree.shape.level(level + 1)].gather(1, order)
        q = _draft_law(tree, level, order, rows)
        judge = rule if callable(rule) else rule[level]
        acceptance, residual = judge(outcome, q, tokens, valid)
        first = chosen.first_accepted(level, acceptance)
        hit = (first < width) & ~stopped
        picked = first.clamp(max=width - 1).unsqueeze(1)
        child = order.gather(1, picked).squeeze(1)
        outcome = torch.where(stopped.unsqueeze(1), outcome, residual)
        stopped = ~hit
        accepted = accepted + hit
        node = torch.where(hit, child + tree.shape.starts[level + 1], node)
        path.append(node)
        at_node = log_probs(logits[rows, node], settings).exp()
        outcome = torch.where(hit.unsqueeze(1), at_node, outcome)
        here = _where_now(tree, level, here, child, tokens.gather(1, picked), merge_copies)
    return WalkResult(torch.stack(path, dim=1), accepted, chosen.token(outcome))


def _candidates(tree: Tree, level: int, here: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Children of the current node, in the order drawn.

    Args:
        tree: the tree.
        level: of the current node.
        here: [R, n_level].
        width: the most children there can be.

    Returns:
        order [R, width] positions within the next level, and valid [R, width].
    """
    below = tree.shape.level(level + 1)
    parent = tree.parent[:, below] - tree.shape.starts[level]
    mine = here.gather(1, parent) & tree.valid[:, below]
    if here.shape[1] == 1:  # one node above: all below are its children, in order
        return torch.arange(width, device=mine.device).expand_as(mine), mine
    order = (~mine).byte().sort(dim=1, stable=True).indices[:, :width]
    return order, mine.gather(1, order)


def _draft_law(tree: Tree, level: int, order: Tensor, rows: Tensor) -> Tensor | None:
    """q of the candidates: [R, 1, V] with one draft, [R, C, V] with several, None if one-hot."""
    q, q_row = tree.q[level], tree.q_row[level]
    if q is None or q_row is None:
        return None
    single_draft = q.shape[1] == tree.shape.level(level).stop - tree.shape.level(level).start
    index = q_row.gather(1, order[:, :1] if single_draft else order)
    return q[rows.unsqueeze(1), index]


def _where_now(
    tree: Tree, level: int, here: Tensor, child: Tensor, token: Tensor, merge_copies: bool
) -> Tensor:
    """[R, n_below] the nodes of the level below that the accepted child stands for."""
    below = tree.shape.level(level + 1)
    position = torch.arange(below.stop - below.start, device=child.device)
    if not merge_copies:
        return position == child.unsqueeze(1)
    parent = tree.parent[:, below] - tree.shape.starts[level]
    return here.gather(1, parent) & (tree.tokens[:, below] == token)
