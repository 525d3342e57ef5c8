"""The walk from the root down the tree: one node rule per level, one verdict per row.

All rows walk together and nothing leaves the device: the caller copies the result once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import laws_without_replacement
from spec_bench.core.transfer import places
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, argmax_lowest, probs
from spec_bench.verify.verdict import NodeRule


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


def walk_down(
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
    """Children of the current node, in the order drawn; absent ones come last.

    Args:
        tree: the tree.
        level: of the current node.
        place: [R] of the current node within its level.
        copies: [R, n_level] all nodes that count as the current one; None where it is alone.

    Returns:
        order [R, C] places within the next level, and valid [R, C].
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
    """q of the candidates: [R, 1, V] if they share one, [R, C, V] if each has its own.

    Args:
        tree: the tree.
        level: of the current nodes.
        rows: of the trees, R of them.
        place: of each row's current node within the level.
        tokens: [R, C] the candidates'.
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
