"""Which walk a device gets: node by node where that is cheap, all nodes at once elsewhere.

A CPU warps and judges only the visited nodes, a level at a time. On a GPU every small step takes as
long as the host needs to ask for it; so all nodes are warped in one call and judged in one, and the
walk only looks up what was decided. The numbers are the same, and so is the path.

Letters: R rows, N nodes, n of them above the leaves, C children of one node, V vocabulary.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.transfer import cached_arange, constant
from spec_bench.core.tree import FlatShape, Tree, TreeShape
from spec_bench.core.warp import probs
from spec_bench.verify.family import list_children, max_children
from spec_bench.verify.walk import Rules, ScoredTree, Verdict, WalkResult, walk_down

Law = TypeVar("Law")
_MOST = 2**29  # most numbers that the draft's distributions of all nodes may hold


def walk(scored: ScoredTree, rule: Rules) -> WalkResult:
    """``walk_down``, in the way that is fast on the device."""
    at_once = not scored.logits.is_cpu and _fits(scored.tree, rule)
    return (look_up if at_once else walk_down)(scored, rule)


def look_up(scored: ScoredTree, rule: Rules) -> WalkResult:
    """Judges all nodes at once, then looks up where each leads from the root on; the result and the
    draws, which must know their choices in advance, are those of ``walk_down``.
    """
    tree, logits, settings, draws, merge_copies = scored
    shape = tree.shape
    device = logits.device
    rows = tree.tokens.shape[0]
    inner = shape.inner
    chosen = draws.verdict(shape.children)
    p = probs(logits, settings)
    children, valid = list_children(tree, merge_copies)
    width = children.shape[-1]
    tokens = tree.tokens.gather(1, children.flatten(1)).view(rows, inner, width)
    verdict = _judge_nodes(tree, p, rule, tokens, valid)
    acceptance = verdict.acceptance.view(rows, inner, width)
    passed = chosen.passes(_tests(tree, width), acceptance)
    path, accepted = follow_path(tree, children, passed)
    residual = verdict.residual.view(rows, inner, -1)
    law = torch.cat([residual, p[:, inner:]], dim=1)[cached_arange(rows, device), path[:, -1]]
    return WalkResult(path, accepted, chosen.token(law))


def follow_path(tree: Tree, children: Tensor, passed: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the path from the root down while a child has passed, and its length [R].

    Of children [R, n, C], in the order drawn, ``passed`` says which did. The path [R, L + 1]
    repeats its last node where it ends early.
    """
    shape = tree.shape
    (rows, inner, _) = children.shape
    # Children are in the order drawn, so the first that passes has the lowest number.
    first = torch.where(passed, children, shape.size).amin(dim=-1)
    leads_to = torch.where(first < shape.size, first, cached_arange(inner, first.device))
    path = [constant(((0,),) * rows, first.device)]
    for _ in range(shape.depth):
        # A leaf leads nowhere and is never asked: no path is longer than the tree is deep.
        path.append(leads_to.gather(1, path[-1]))
    accepted = tree.depths.expand(rows, -1).gather(1, path[-1]).squeeze(1)
    return torch.cat(path, dim=1), accepted


def _fits(tree: Tree, rule: Rules) -> bool:
    """Returns whether all nodes' distributions are of one kind and not too large, and each node's
    rule is known.
    """
    if not tree.shape.depth or (tree.own_depths is not None and not callable(rule)):
        return False
    for held in (tree.log_q, tree.q):
        there = _split_levels([law for law in held if law is not None], tree.shape)
        if len(there) not in (0, len(_split_levels(held, tree.shape))):
            return False
        if sum(law.numel() for law in there) * max_children(tree.shape) > _MOST:
            return False
    return True


def _judge_nodes(tree: Tree, p: Tensor, rule: Rules, tokens: Tensor, valid: Tensor) -> Verdict:
    """The verdict of every node above the leaves, [R n, C] and [R n, V], of p [R, N, V], tokens and
    valid [R, n, C].
    """
    shape = tree.shape
    rows = p.shape[0]
    starts = [0, shape.inner] if callable(rule) else list(shape.starts[:-1])
    rules = [rule] if callable(rule) else list(rule)
    parts = []
    for judge, first, behind in zip(rules, starts, starts[1:], strict=False):
        nodes = slice(first, behind)
        tokens_here = tokens[:, nodes].flatten(0, 1)
        valid_here = valid[:, nodes].flatten(0, 1)
        q = _draft_laws(tree, nodes, tokens_here)
        parts.append(judge(p[:, nodes].flatten(0, 1), q, tokens_here, valid_here))
    if len(parts) == 1:
        return parts[0]
    return Verdict(
        *(torch.cat([x.unflatten(0, (rows, -1)) for x in part], 1).flatten(0, 1)
          for part in zip(*parts, strict=True))
    )  # fmt: skip


def _split_levels(laws: Sequence[Law], shape: TreeShape) -> Sequence[Law]:
    """The distributions of a tree's levels, or of a flat one's root and of all nodes below it."""
    return laws[:2] if isinstance(shape, FlatShape) else laws


def _draft_laws(tree: Tree, nodes: slice, tokens: Tensor) -> Tensor | None:
    """q of some nodes' children: [B, 1, V] or [B, C, V]; None for one-hot proposals."""
    if tree.log_q[0] is not None:
        laws = [law for law in _split_levels(tree.log_q, tree.shape) if law is not None]
        log_q = torch.cat(laws, dim=1)[:, nodes]
        return compute_sibling_distributions(log_q.flatten(0, 1), tokens)
    if tree.q[0] is None:
        return None
    law = torch.cat([law for law in tree.q if law is not None], dim=1)[:, nodes].flatten(0, 1)
    drafts = law.shape[1]
    width = tokens.shape[1]
    if drafts == 1:
        return law
    return law[:, constant(tuple(child % drafts for child in range(width)), law.device)]


def _tests(tree: Tree, width: int) -> Tensor:
    """[n, C] or [R, n, C] which of a walk's tests decides about a child; only its level matters."""
    shape = tree.shape
    device = tree.tokens.device
    by_level = _tests_of_levels(shape, width)
    if tree.own_depths is not None:
        return constant(by_level, device)[tree.own_depths[:, : shape.inner]]
    return constant(tuple(by_level[depth] for depth in shape.node_depth[: shape.inner]), device)


@lru_cache(maxsize=256)
def _tests_of_levels(shape: TreeShape, width: int) -> tuple[tuple[int, ...], ...]:
    """[L + 1, C] the tests of each level's children; arbitrary for the deepest, which has none."""
    before = 0
    tests = []
    for most in shape.children[: shape.depth]:
        tests.append(tuple(before + min(child, most - 1) for child in range(width)))
        before += most
    return (*tests, tests[-1])


# Whole-path verification of a chain without a step per node: for devices where steps are launches.
#
# A chain's quotas are a product clipped at 1 on the way, a_l = min(1, a_{l-1} r_l) with r_l =
# p(x_l) / q(x_l). So with S the running sums of log r, S_0 = 0, a_l = exp(S_l - max S up to l), all
# at once. The rest follows from each node's own quota. The numbers equal those of the loop in
# `path_rule` up to rounding; a CPU uses the loop.
#
# Letters: R rows, L draft tokens, N = L + 1 nodes, V vocabulary.


def is_chain(shape: TreeShape) -> bool:
    """Returns whether every level is one node."""
    return shape.size == shape.depth + 1 and max(shape.levels, default=0) == 1


def verify_chain(tree: Tree, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Block verification (arXiv 2403.10444) of a chain in closed form, of p [R, N, V] at every
    node.

    What a ``PathVerdict`` holds: order [R, N], success [R, N - 1], residual [R, N, V].
    """
    above = p[:, :-1]
    token = tree.tokens[:, 1:, None]
    there = tree.valid[:, 1:]
    law = _laws(tree)
    at = p[:, :-1].gather(-1, token)
    if law is None:
        ratio = at.squeeze(-1).double()
    else:
        drawn = law.gather(-1, token).double()
        ratio = torch.where(drawn > 0, at / drawn, 0.0).squeeze(-1)
    sums = pad(torch.where(there, ratio, 0.0).log_().cumsum(dim=1), (1, 0))
    quota = (sums - sums.cummax(dim=1).values).exp_()  # [R, N]
    mass = quota[:, :-1, None]
    left = above * mass.to(p.dtype)
    rest = left.scatter(-1, token, 0.0) if law is None else (left - law).clamp_(min=0.0)
    kept = rest.sum(dim=-1, keepdim=True, dtype=torch.float64)
    total = kept + (1 - mass)
    # As in the loop: nothing is left of a quota of 1 where p is the draft's distribution.
    changes = there.unsqueeze(-1) & (total > 0)
    residual = torch.where(changes, rest / total.to(p.dtype), left)
    chance = torch.where(changes, kept / total, mass)
    success = torch.cat([chance.squeeze(-1), quota[:, -1:]], dim=1)
    order = _nodes_from_end(tree)
    return order, success.gather(1, order)[:, :-1], torch.cat([residual, p[:, -1:]], dim=1)


def _laws(tree: Tree) -> Tensor | None:
    """[R, L, V] what each node's token was drawn from; None for one-hot proposals."""
    log_q, q = ([law for law in held if law is not None] for held in (tree.log_q, tree.q))
    if log_q:
        return torch.cat(log_q, dim=1).softmax(dim=-1)
    return torch.cat([law[:, :, 0] for law in q], dim=1) if q else None


def _nodes_from_end(tree: Tree) -> Tensor:
    """[R, N] the nodes from the deepest to the first, then absent ones, the root last."""
    size = tree.shape.size
    device = tree.valid.device
    deepest = tree.valid.sum(dim=1, keepdim=True) - 1  # absent nodes are at the end
    behind = constant((*range(1, size), 0), device)
    nodes = deepest - cached_arange(size, device)
    return torch.where(nodes > 0, nodes, behind)
