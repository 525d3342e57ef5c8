"""The interface of node rules, and the walk down the tree by such a rule.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] if all children share one draft
distribution, [B, C, V] if each has its own, None if proposals are one-hot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from spec_bench.core.draws import RandomSource
from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.host_device import cached_arange
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, first_argmax, warped_probs


class Verdict(NamedTuple):
    """Acceptance of a node's children, and the residual distribution."""

    # [B, C] P(accept child j | children before j rejected); 0 for absent children
    acceptance: Tensor
    residual: Tensor  # [B, V] distribution of the token if every child is rejected


class PathVerdict(NamedTuple):
    """The tests of a whole-path rule and the residual distributions."""

    order: Tensor  # [R, N] nodes in the order tested, absent ones after all others, the root last
    # [R, N - 1] float64, P(a node is the last accepted | all before it in the order failed); 0 for
    # absent ones. The root succeeds if all others fail.
    success: Tensor
    residual: Tensor  # [R, N, V] distribution of the token after each node, not normalised


class NodeRule(Protocol):
    """Computes the verdict on B nodes from p [B, V], q [B, 1 or C, V] or None, and tokens and
    presence of the children [B, C].
    """

    def __call__(
        self,
        p: Tensor,
        q: Tensor | None,
        tokens: Tensor,
        valid: Tensor,
    ) -> Verdict: ...


Rules = NodeRule | Sequence[NodeRule]
"""One rule for all nodes, or one per level above the leaves."""


class ScoredTree(NamedTuple):
    """A batch's trees with the target's logits."""

    tree: Tree  # fully grown, N nodes
    logits: Tensor  # [R, N, V] the target's logits at every node
    settings: SamplingSettings  # the target's
    draws: RandomSource
    merge_copies: bool = False  # whether nodes with equal prefixes count as one (K i.i.d. paths)


@dataclass(frozen=True)
class WalkResult:
    """Accepted path of each row, and the token after it."""

    # [R, L + 1] accepted nodes in order, the root first; a row uses its first `accepted + 1`
    # entries
    path: Tensor
    accepted: Tensor  # [R] number of accepted draft tokens
    token: Tensor  # [R] the residual or bonus token


def walk_down(scored_tree: ScoredTree, rule: Rules) -> WalkResult:
    """Walks from the root down and tests the children of each node in order.

    If all children are rejected, or there are none, the token is drawn from the residual; at an
    accepted leaf the bonus token is drawn from p. All rows walk together. Nothing is copied to the
    host, so that the caller can copy the result once.
    """
    tree, logits, settings, draws, merge_copies = scored_tree
    shape = tree.shape
    rows = cached_arange(tree.tokens.shape[0], tree.tokens.device)
    verdict_draws = draws.verdict(shape.children)
    if not shape.depth:
        root_logits = logits[:, 0]
        root_path = torch.zeros_like(tree.tokens)
        if settings.temperature == 0:  # nothing to draw
            return WalkResult(root_path, root_path[:, 0], first_argmax(root_logits))
        return WalkResult(
            root_path, root_path[:, 0], verdict_draws.token(warped_probs(root_logits, settings))
        )
    node = place = accepted_count = torch.zeros_like(rows)  # place: index within the node's level
    copies: Tensor | None = None
    active = torch.ones_like(rows, dtype=torch.bool)
    path = [node]
    outcome = warped_probs(logits[rows, node], settings)
    for level in range(shape.depth):
        order, valid = list_child_places(tree, level, place, copies)
        tokens = tree.tokens[:, shape.level(level + 1)].gather(1, order)
        judge = rule if callable(rule) else rule[level]
        q = compute_draft_distribution(tree, level, rows, place, tokens)
        acceptance, residual = judge(outcome, q, tokens, valid)
        child_index = verdict_draws.first_accepted(level, acceptance)
        child_column = child_index.clamp(max=order.shape[1] - 1).unsqueeze(1)
        outcome = torch.where(active.unsqueeze(1), residual, outcome)
        active = active & (child_index < order.shape[1])
        if active.is_cpu and not active.any():  # on a GPU this would wait for the device
            break
        # In rows whose walk has ended, ``place`` is arbitrary and unused.
        place = order.gather(1, child_column).squeeze(1)
        node = torch.where(active, place + shape.starts[level + 1], node)
        path.append(node)
        accepted_count = accepted_count + active
        outcome = torch.where(
            active.unsqueeze(1), warped_probs(logits[rows, node], settings), outcome
        )
        if merge_copies:
            copies = mark_accepted_copies(tree, level, copies, tokens.gather(1, child_column))
    path += [node] * (shape.depth + 1 - len(path))
    return WalkResult(torch.stack(path, dim=1), accepted_count, verdict_draws.token(outcome))


def list_child_places(
    tree: Tree,
    level: int,
    place: Tensor,
    copies: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Lists the current node's children in the order drawn: their places [R, C] within the next
    level, and whether they exist. ``place`` [R] is the node's place within its level. ``copies``
    [R, n_level] marks all nodes that count as the current node; None if there is only one.
    """
    parents = tree.shape.level(level)
    children = tree.shape.level(level + 1)
    bound = tree.shape.children[level]
    count = tree.shape.levels[level]
    width = min(bound, count)
    if tree.shape.has_uniform_children(level):
        order = place.unsqueeze(1) * width + torch.arange(width, device=place.device)
        return order, tree.valid[:, children].gather(1, order)
    parent = tree.parent[:, children] - parents.start
    is_candidate = parent == place.unsqueeze(1) if copies is None else copies.gather(1, parent)
    is_candidate = is_candidate & tree.valid[:, children]
    order = is_candidate.byte().sort(dim=1, descending=True, stable=True).indices[:, :width]
    return order, is_candidate.gather(1, order)


def compute_draft_distribution(
    tree: Tree,
    level: int,
    rows: Tensor,
    place: Tensor,
    tokens: Tensor,
) -> Tensor | None:
    """Computes q of the children of each row's node at ``place``, with tokens [R, C]: [R, 1, V] if
    the children share one, [R, C, V] if each has its own. Returns None if proposals are one-hot.
    """
    log_q = tree.log_q[level]
    q = tree.q[level]
    if log_q is not None:
        return compute_sibling_distributions(log_q[rows, place], tokens)
    if q is None:
        return None
    node_q = q[rows, place]
    drafts = node_q.shape[1]
    width = tokens.shape[1]
    return node_q if drafts == 1 else node_q[:, torch.arange(width, device=node_q.device) % drafts]


def mark_accepted_copies(tree: Tree, level: int, copies: Tensor | None, token: Tensor) -> Tensor:
    """Marks the children [R, n_below] of the current node and its copies that hold the accepted
    token.
    """
    children = tree.shape.level(level + 1)
    has_token = tree.tokens[:, children] == token
    if copies is None:
        return has_token
    return has_token & copies.gather(1, tree.parent[:, children] - tree.shape.starts[level])
