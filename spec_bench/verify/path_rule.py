"""Whole-path rules: choose the accepted path among all nodes of a tree at once.

Traversal verification (arXiv 2505.12398) of a tree; on a chain it is block verification (arXiv
2403.10444). Every node has a quota, at most 1: the probability, given that it was drawn, with which
a lossless verifier may pass through it. The quotas of a node and its children give the probability
that the node is the last one accepted, and the distribution of the token after it. These two follow
from the tree alone. The random part tests nodes one by one, each after its descendants; the first
success is the last node accepted.

It is exact if a node's existence does not depend on its token and siblings are tested in the order
drawn. Letters: R rows, N nodes, F nodes of a level, C children, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.host_device import cached_arange, cached_constant
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import warped_probs
from spec_bench.verify import device_walk
from spec_bench.verify.base import TreeVerifier, rule
from spec_bench.verify.children import (
    ParentNodes,
    find_nodes_with_children,
    list_children,
    sort_post_order,
)
from spec_bench.verify.rules import normalise_or_fallback
from spec_bench.verify.walk import PathVerdict, ScoredTree, WalkResult

PathRule = Callable[[Tree, Tensor], PathVerdict]
_TINY = 1e-30  # below any total that occurs, and float32 can divide by it


def traversal(tree: Tree, p: Tensor) -> PathVerdict:
    """Computes quotas and success probabilities (arXiv 2505.12398; 2403.10444) from p [R, N, V],
    the target's distribution at every node of a fully grown tree.

    At a node with quota a and residual P, a child with token x drawn from q has the quota
    min(1, a P(x) / q(x)). If it is not accepted, m = max(0, a P - q) remains: with S = sum m, P
    becomes m / S and a becomes S / (S + 1 - a). The a after the last child is the node's success
    probability; a leaf's is its quota. Only the product a P is carried along.
    """
    shape = tree.shape
    if not shape.depth:  # nothing was proposed
        return PathVerdict(torch.zeros_like(tree.tokens), p.new_zeros((len(p), 0)), p)
    if device_walk.is_chain(shape) and not p.is_cpu:
        return device_walk.verify_chain_by_blocks(tree, p)
    children, exist = list_children(tree, merge_copies=False)
    tokens = tree.tokens.gather(1, children.flatten(1)).view_as(children)
    success = torch.zeros(tree.tokens.shape, dtype=torch.float64, device=p.device)
    success[:, 0] = 1.0
    residual = p.clone()
    for level in range(shape.depth):
        parents = find_nodes_with_children(tree, level)
        parent_index = parents.indices
        width = min(shape.children[level], shape.levels[level])
        child, token, present = (
            values[parent_index][..., :width] for values in (children, tokens, exist)
        )
        if parents.exists is not None:
            present = present & parents.exists.unsqueeze(-1)
        parent_quota = success[parent_index]
        scaled_p = p[parent_index] * parent_quota.unsqueeze(-1).to(p.dtype)
        mass = parent_quota.unsqueeze(-1)
        child_q = compute_child_distributions(tree, level, parents, token)
        drawn_count = 0 if child_q is None else child_q.shape[2]
        p_tokens = []
        for place in range(width):
            q = child_q[:, :, place] if child_q is not None and place < drawn_count else None
            column = slice(place, place + 1)
            p_tokens.append(scaled_p.gather(-1, token[..., column]))
            scaled_p, mass = _subtract_child(
                scaled_p, mass, q, token[..., column], present[..., column]
            )
        quota = _compute_child_quotas(torch.cat(p_tokens, dim=-1), child_q, token, present)
        chance = mass.squeeze(-1)
        if parents.exists is not None:
            chance = torch.where(parents.exists, chance, parent_quota)
            scaled_p = torch.where(parents.exists.unsqueeze(-1), scaled_p, residual[parent_index])
        success[parent_index] = chance
        residual[parent_index] = scaled_p
        # Each node has one parent; absent children add 0.
        success.scatter_add_(1, child.flatten(1), quota.flatten(1))
    order = sort_post_order(tree)
    return PathVerdict(order, success.gather(1, order)[:, :-1], residual)


def _subtract_child(
    scaled_p: Tensor,
    mass: Tensor,
    q: Tensor | None,
    token: Tensor,
    present: Tensor,
) -> tuple[Tensor, Tensor]:
    """Subtracts a child's q from its parent's a P; returns the parent's new a P and a.

    ``scaled_p`` is a P [R, F, V], ``mass`` is a [R, F, 1] in float64. An absent child changes
    neither. q is None for a one-hot child.
    """
    if q is None:
        p_token = scaled_p.gather(-1, token)
        scaled_p = scaled_p.scatter(-1, token, p_token.masked_fill(present, 0.0))
    else:
        scaled_p = torch.addcmul(scaled_p, q, present.to(scaled_p.dtype), value=-1).clamp_(min=0.0)
    sums = scaled_p.sum(dim=-1, keepdim=True, dtype=torch.float64)
    # If a is 1 and P is q, nothing remains: the child succeeds with certainty.
    total = (sums + (1 - mass)).clamp_(min=_TINY)
    return scaled_p.div_(total.to(scaled_p.dtype)), sums / total


def _compute_child_quotas(
    p_tokens: Tensor,
    child_q: Tensor | None,
    tokens: Tensor,
    present: Tensor,
) -> Tensor:
    """Computes all children's quotas min(1, a P(x) / q(x)) [R, F, C], float64; 0 for absent ones.

    ``p_tokens`` is a P(x) of each child after its earlier siblings; ``child_q`` [R, F, D, V] is for
    the first D children; the others are one-hot.
    """
    quota = p_tokens.double()
    if child_q is not None:
        q_tokens = child_q.gather(-1, tokens[..., : child_q.shape[2], None]).squeeze(-1)
        q_tokens = pad(q_tokens, (0, tokens.shape[-1] - q_tokens.shape[-1]), value=1.0)
        quota = torch.where(q_tokens > 0, quota / q_tokens, 0.0)
    return quota.clamp(max=1.0) * present


def compute_child_distributions(
    tree: Tree,
    level: int,
    parents: ParentNodes,
    tokens: Tensor,
) -> Tensor | None:
    """Computes the distributions [R, F, D, V] from which the first D children of each node, with
    tokens [R, F, C], were drawn, given their earlier siblings. The other children are one-hot;
    returns None if all children are.
    """
    q = tree.q[level]
    log_q = tree.log_q[level]
    count = tokens.shape[-1]
    if tree.siblings == "without_replacement":
        if log_q is None:
            assert q is not None
            log_q = q[:, :, 0].log()
        if parents.exists is not None and level:
            rows, nodes = parents.indices
            log_q = log_q[rows, nodes - 1]  # the root can only be padding here: any entry will do
        distributions = compute_sibling_distributions(log_q.flatten(0, 1), tokens.flatten(0, 1))
        return distributions.unflatten(0, log_q.shape[:2])
    if q is None:
        return None
    if tree.siblings == "top_and_sampled":
        count = min(count, tree.sampled)
    if q.shape[2] == 1:
        return q.expand(-1, -1, count, -1)
    return q[:, :, cached_constant(tuple(child % q.shape[2] for child in range(count)), q.device)]


def walk_by_path_rule(scored_tree: ScoredTree, rule: PathRule) -> WalkResult:
    """Tests all nodes by a whole-path rule; draws the token from the last accepted node's residual.
    Nodes with equal prefixes stay separate: each is a draw.
    """
    tree, logits, settings, draws, _ = scored_tree
    shape = tree.shape
    p = warped_probs(logits, settings)
    order, success, residual = rule(tree, p)
    # The same number of tests for every row, however many absent nodes its tree has.
    tests = max(shape.size - 1, sum(shape.children))
    verdict_draws = draws.verdict((tests,))
    success_index = verdict_draws.first_accepted(0, success)
    last_node = order.gather(1, success_index.unsqueeze(1)).squeeze(1)
    rows = cached_arange(len(last_node), last_node.device)
    depth = tree.depths
    token = verdict_draws.token(
        normalise_or_fallback(residual[rows, last_node], p[rows, last_node])
    )
    level = cached_arange(shape.depth + 1, last_node.device).unsqueeze(1)
    on_path = tree.ancestors[rows, last_node].unsqueeze(1)  # [R, 1, N]
    path = (on_path & (depth.unsqueeze(1) == level)).byte().argmax(dim=2)
    accepted_count = depth.expand(len(rows), -1).gather(1, last_node.unsqueeze(1)).squeeze(1)
    return WalkResult(path, accepted_count, token)


@rule("traversal", siblings=get_args(Siblings), mark="exact", several_drafts=True)
@dataclass(frozen=True)
class Traversal(TreeVerifier):
    """Traversal verification of a tree; block verification of a chain."""

    walk = staticmethod(walk_by_path_rule)

    def judge(self, depth: int) -> PathRule:
        return traversal
