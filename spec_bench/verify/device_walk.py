"""Walks the tree in the way that suits the device: level by level, or all nodes at once.

A CPU warps and judges only the visited nodes, a level at a time. On a GPU every small step costs a
launch, so all nodes are warped in one call and judged in another, and the walk looks up their
verdicts. Both ways give the same probabilities and the same path.

Letters: R rows, N nodes, n of them above the leaves, C children of one node, V vocabulary.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.host_device import cached_arange, cached_constant
from spec_bench.core.tree import Tree, TreeShape, VariableLevelShape
from spec_bench.core.warp import warped_probs
from spec_bench.verify.children import count_max_children, list_children
from spec_bench.verify.walk import PathVerdict, Rules, ScoredTree, Verdict, WalkResult, walk_down

Law = TypeVar("Law")
_MAX_NUMBERS = 2**29  # most numbers in the draft's distributions of all nodes' children


def walk_tree(scored_tree: ScoredTree, rule: Rules) -> WalkResult:
    """Finds the path of ``walk_down`` by the method that is faster on the device."""
    at_once = not scored_tree.logits.is_cpu and _can_walk_at_once(scored_tree.tree, rule)
    return (walk_at_once if at_once else walk_down)(scored_tree, rule)


def walk_at_once(scored_tree: ScoredTree, rule: Rules) -> WalkResult:
    """Judges all nodes at once, then follows the accepted children from the root. The result and
    the draws are those of ``walk_down``.
    """
    tree, logits, settings, draws, merge_copies = scored_tree
    shape = tree.shape
    device = logits.device
    rows = tree.tokens.shape[0]
    inner = shape.inner
    verdict_draws = draws.verdict(shape.children)
    p = warped_probs(logits, settings)
    children, valid = list_children(tree, merge_copies)
    width = children.shape[-1]
    tokens = tree.tokens.gather(1, children.flatten(1)).view(rows, inner, width)
    verdict = _judge_nodes(tree, p, rule, tokens, valid)
    acceptance = verdict.acceptance.view(rows, inner, width)
    is_accepted = verdict_draws.passes(_number_tests(tree, width), acceptance)
    path, accepted_count = follow_accepted_children(tree, children, is_accepted)
    residual = verdict.residual.view(rows, inner, -1)
    distribution = torch.cat([residual, p[:, inner:]], dim=1)[
        cached_arange(rows, device), path[:, -1]
    ]
    return WalkResult(path, accepted_count, verdict_draws.token(distribution))


def follow_accepted_children(
    tree: Tree, children: Tensor, is_accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """Follows the first accepted child of each node from the root; returns the path [R, L + 1] and
    the number of accepted nodes [R].

    ``children`` and ``is_accepted`` are [R, n, C], in the order drawn. A path that ends early
    repeats its last node.
    """
    shape = tree.shape
    (rows, inner, _) = children.shape
    # Children are in the order drawn, so the first accepted one has the lowest number.
    first_child = torch.where(is_accepted, children, shape.size).amin(dim=-1)
    leads_to = torch.where(
        first_child < shape.size, first_child, cached_arange(inner, first_child.device)
    )
    path = [cached_constant(((0,),) * rows, first_child.device)]
    for _ in range(shape.depth):
        # Leaves are never looked up: no path is longer than the tree is deep.
        path.append(leads_to.gather(1, path[-1]))
    accepted_count = tree.depths.expand(rows, -1).gather(1, path[-1]).squeeze(1)
    return torch.cat(path, dim=1), accepted_count


def _can_walk_at_once(tree: Tree, rule: Rules) -> bool:
    """Returns whether ``walk_at_once`` supports the tree: the rule of every node is known, all
    nodes have the same kind of draft distribution, and the distributions have at most
    ``_MAX_NUMBERS`` numbers.
    """
    if not tree.shape.depth or (tree.row_depths is not None and not callable(rule)):
        return False
    for level_q in (tree.log_q, tree.q):
        present = _drop_repeated_levels([q for q in level_q if q is not None], tree.shape)
        if len(present) not in (0, len(_drop_repeated_levels(level_q, tree.shape))):
            return False
        if sum(q.numel() for q in present) * count_max_children(tree.shape) > _MAX_NUMBERS:
            return False
    return True


def _judge_nodes(
    tree: Tree,
    p: Tensor,
    rule: Rules,
    tokens: Tensor,
    valid: Tensor,
) -> Verdict:
    """Applies the rule to every node above the leaves; returns a verdict of [R n, C] and [R n, V].

    p is [R, N, V]; tokens and valid are [R, n, C].
    """
    shape = tree.shape
    rows = p.shape[0]
    starts = [0, shape.inner] if callable(rule) else list(shape.starts[:-1])
    rules = [rule] if callable(rule) else list(rule)
    verdicts = []
    for judge, start, end in zip(rules, starts, starts[1:], strict=False):
        nodes = slice(start, end)
        node_tokens = tokens[:, nodes].flatten(0, 1)
        node_valid = valid[:, nodes].flatten(0, 1)
        q = _gather_q_of_children(tree, nodes, node_tokens)
        verdicts.append(judge(p[:, nodes].flatten(0, 1), q, node_tokens, node_valid))
    if len(verdicts) == 1:
        return verdicts[0]
    return Verdict(
        *(torch.cat([x.unflatten(0, (rows, -1)) for x in part], 1).flatten(0, 1)
          for part in zip(*verdicts, strict=True))
    )  # fmt: skip


def _drop_repeated_levels(level_q: Sequence[Law], shape: TreeShape) -> Sequence[Law]:
    """Drops the repeated entries of a tree with a ``VariableLevelShape``, which has one entry for
    the root and one for all other nodes.
    """
    return level_q[:2] if isinstance(shape, VariableLevelShape) else level_q


def _gather_q_of_children(tree: Tree, nodes: slice, tokens: Tensor) -> Tensor | None:
    """Gathers q of the nodes' children, [B, 1, V] or [B, C, V]; None for one-hot proposals."""
    if tree.log_q[0] is not None:
        parts = [
            node_q for node_q in _drop_repeated_levels(tree.log_q, tree.shape) if node_q is not None
        ]
        log_q = torch.cat(parts, dim=1)[:, nodes]
        return compute_sibling_distributions(log_q.flatten(0, 1), tokens)
    if tree.q[0] is None:
        return None
    node_q = torch.cat([node_q for node_q in tree.q if node_q is not None], dim=1)[
        :, nodes
    ].flatten(0, 1)
    drafts = node_q.shape[1]
    width = tokens.shape[1]
    if drafts == 1:
        return node_q
    return node_q[
        :, cached_constant(tuple(child % drafts for child in range(width)), node_q.device)
    ]


def _number_tests(tree: Tree, width: int) -> Tensor:
    """Returns the number of each child's test in the walk, [n, C] or [R, n, C],
    by level and place.
    """
    shape = tree.shape
    device = tree.tokens.device
    by_level = _number_level_tests(shape, width)
    if tree.row_depths is not None:
        return cached_constant(by_level, device)[tree.row_depths[:, : shape.inner]]
    return cached_constant(
        tuple(by_level[depth] for depth in shape.node_depths[: shape.inner]), device
    )


@lru_cache(maxsize=256)
def _number_level_tests(shape: TreeShape, width: int) -> tuple[tuple[int, ...], ...]:
    """Returns the number of each test in the walk by level and place, [L + 1, C]; the last level's
    numbers are arbitrary.
    """
    offset = 0
    tests = []
    for bound in shape.children[: shape.depth]:
        tests.append(tuple(offset + min(child, bound - 1) for child in range(width)))
        offset += bound
    return (*tests, tests[-1])


def is_chain(shape: TreeShape) -> bool:
    """Returns whether every level has exactly one node."""
    return shape.size == shape.depth + 1 and max(shape.levels, default=0) == 1


def verify_chain_by_blocks(tree: Tree, p: Tensor) -> PathVerdict:
    """Verifies a chain by blocks (arXiv 2403.10444) without a loop over nodes, from p [R, N, V].

    A chain's quotas are a running product that is clipped at 1 after every factor, a_l = min(1,
    a_{l-1} r_l) with r_l = p(x_l) / q(x_l). So with S the running sums of log r, S_0 = 0, a_l =
    exp(S_l - max S up to l), for all l at once. The rest follows from each node's own quota. The
    numbers equal those of the loop in ``path_rule`` up to rounding; a CPU uses the loop.

    Letters: R rows, L draft tokens, N = L + 1 nodes, V vocabulary.
    """
    parent_p = p[:, :-1]
    token = tree.tokens[:, 1:, None]
    present = tree.valid[:, 1:]
    q = _join_chain_q(tree)
    p_tokens = p[:, :-1].gather(-1, token)
    if q is None:
        ratio = p_tokens.squeeze(-1).double()
    else:
        q_tokens = q.gather(-1, token).double()
        ratio = torch.where(q_tokens > 0, p_tokens / q_tokens, 0.0).squeeze(-1)
    sums = pad(torch.where(present, ratio, 0.0).log_().cumsum(dim=1), (1, 0))
    quota = (sums - sums.cummax(dim=1).values).exp_()  # [R, N]
    mass = quota[:, :-1, None]
    scaled_p = parent_p * mass.to(p.dtype)
    remainder = scaled_p.scatter(-1, token, 0.0) if q is None else (scaled_p - q).clamp_(min=0.0)
    remaining_mass = remainder.sum(dim=-1, keepdim=True, dtype=torch.float64)
    total = remaining_mass + (1 - mass)
    # As in the loop: nothing remains of a quota of 1 where p is the draft's distribution.
    changes = present.unsqueeze(-1) & (total > 0)
    residual = torch.where(changes, remainder / total.to(p.dtype), scaled_p)
    chance = torch.where(changes, remaining_mass / total, mass)
    success = torch.cat([chance.squeeze(-1), quota[:, -1:]], dim=1)
    order = _sort_deepest_first(tree)
    residual = torch.cat([residual, p[:, -1:]], dim=1)
    return PathVerdict(order, success.gather(1, order)[:, :-1], residual)


def _join_chain_q(tree: Tree) -> Tensor | None:
    """Joins the distributions from which a chain's tokens were drawn, [R, L, V]; None if proposals
    are one-hot.
    """
    log_q, q = ([part for part in level_q if part is not None] for level_q in (tree.log_q, tree.q))
    if log_q:
        return torch.cat(log_q, dim=1).softmax(dim=-1)
    return torch.cat([part[:, :, 0] for part in q], dim=1) if q else None


def _sort_deepest_first(tree: Tree) -> Tensor:
    """Sorts the nodes [R, N] from the deepest to the first, then absent ones, the root last."""
    size = tree.shape.size
    device = tree.valid.device
    deepest = tree.valid.sum(dim=1, keepdim=True) - 1  # absent nodes are at the end
    absent_nodes = cached_constant((*range(1, size), 0), device)
    nodes = deepest - cached_arange(size, device)
    return torch.where(nodes > 0, nodes, absent_nodes)
