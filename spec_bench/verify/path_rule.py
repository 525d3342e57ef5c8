"""Whole-path rules: the accepted path is chosen among all of a tree's nodes at once.

Traversal verification (arXiv 2505.12398) of a tree; of a chain it is block verification
(arXiv 2403.10444). Every node has a quota, at most 1: the share of its own drawing that a lossless
verifier may carry through it. This and the quotas that its children may use up give the chance that
a node is accepted as the last one, and the distribution of the token after it. Both follow from the
tree alone. The random part tests nodes one by one, each after its descendants, and the
first success is the last node accepted.

It is exact wherever a node's existence is settled before its token is drawn and siblings are
tested in the order drawn. Letters: R rows, N nodes, F nodes of a level, C children, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.transfer import cached_arange, constant
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import probs
from spec_bench.verify import simultaneous
from spec_bench.verify.base import TreeVerifier, rule
from spec_bench.verify.family import ParentNodes, find_parents, list_children, post_order
from spec_bench.verify.rules import normalise
from spec_bench.verify.walk import ScoredTree, WalkResult


class PathVerdict(NamedTuple):
    """What a whole-path rule decides."""

    order: Tensor  # [R, N] nodes in the order tested, absent ones after all others, the root last
    # [R, N - 1] float64, P(a node is the last accepted | all before it in the order failed); 0 for
    # absent ones. The root succeeds where all others fail.
    success: Tensor
    # [R, N, V] by node: the token after the last accepted node is drawn from it; not normalised
    residual: Tensor


PathRule = Callable[[Tree, Tensor], PathVerdict]
_NOTHING = 1e-30  # no total that is met is as small, and float32 can divide by it


def traversal(tree: Tree, p: Tensor) -> PathVerdict:
    """Quotas top-down, then chances of success bottom-up (arXiv 2505.12398; 2403.10444), of p [R,
    N, V], the target's distribution at every node of a fully grown tree.

    In a node with quota a and residual P, each child v with token x, drawn from ``law``, has the
    quota min(1, a P(x) / law(x)). If v is not accepted, m = max(0, a P - distribution) is left:
    with S = sum m, P becomes m / S and a becomes S / (S + 1 - a). The last such a is the node's
    chance of success; a leaf's is its quota. Only the product a P is carried along.
    """
    shape = tree.shape
    if not shape.depth:  # nothing was proposed
        return PathVerdict(torch.zeros_like(tree.tokens), p.new_zeros((len(p), 0)), p)
    if simultaneous.is_chain(shape) and not p.is_cpu:
        return PathVerdict(*simultaneous.verify_chain(tree, p))
    children, exist = list_children(tree, merge_copies=False)
    tokens = tree.tokens.gather(1, children.flatten(1)).view_as(children)
    success = torch.zeros(tree.tokens.shape, dtype=torch.float64, device=p.device)
    success[:, 0] = 1.0
    residual = p.clone()
    for level in range(shape.depth):
        parents = find_parents(tree, level)
        above = parents.at
        width = min(shape.children[level], shape.levels[level])
        child, token, there = (part[above][..., :width] for part in (children, tokens, exist))
        if parents.real is not None:
            there = there & parents.real.unsqueeze(-1)
        parent_quota = success[above]
        left = p[above] * parent_quota.unsqueeze(-1).to(p.dtype)
        mass = parent_quota.unsqueeze(-1)
        laws = compute_child_distributions(tree, level, parents, token)
        drawn = 0 if laws is None else laws.shape[2]
        asked = []
        for place in range(width):
            law = laws[:, :, place] if laws is not None and place < drawn else None
            one = slice(place, place + 1)
            at, left, mass = _test_order(left, mass, law, token[..., one], there[..., one])
            asked.append(at)
        quota = _quotas(torch.cat(asked, dim=-1), laws, token, there)
        chance = mass.squeeze(-1)
        if parents.real is not None:
            chance = torch.where(parents.real, chance, parent_quota)
            left = torch.where(parents.real.unsqueeze(-1), left, residual[above])
        success[above] = chance
        residual[above] = left
        # Each node has one parent; the places of absent children add 0.
        success.scatter_add_(1, child.flatten(1), quota.flatten(1))
    order = post_order(tree)
    return PathVerdict(order, success.gather(1, order)[:, :-1], residual)


def _test_order(
    left: Tensor, mass: Tensor, law: Tensor | None, token: Tensor, there: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what a child finds at its token, a P(x) [R, F, 1], and what its failure leaves of its
    parent's.

    That is ``left`` a P [R, F, V] and ``mass`` a [R, F, 1], float64. An absent child's law is
    zeros: it takes nothing, and S / (S + 1 - a) is a. A one-hot child has none.
    """
    at = left.gather(-1, token)
    if law is None:
        left = left.scatter(-1, token, at.masked_fill(there, 0.0))
    else:
        left = torch.addcmul(left, law, there.to(left.dtype), value=-1).clamp_(min=0.0)
    sums = left.sum(dim=-1, keepdim=True, dtype=torch.float64)
    # Nothing is left of a quota of 1 where p is the draft's law: the child surely succeeds.
    total = (sums + (1 - mass)).clamp_(min=_NOTHING)
    return at, left.div_(total.to(left.dtype)), sums / total


def _quotas(at: Tensor, laws: Tensor | None, tokens: Tensor, there: Tensor) -> Tensor:
    """The quotas of all children, min(1, a P(x) / law(x)) [R, F, C], float64; 0 for absent ones.

    ``at`` is a P(x) of each child as its earlier siblings left it; ``laws`` [R, F, D, V] are of the
    first D children; others are one-hot.
    """
    quota = at.double()
    if laws is not None:
        drawn = laws.gather(-1, tokens[..., : laws.shape[2], None]).squeeze(-1)
        drawn = pad(drawn, (0, tokens.shape[-1] - drawn.shape[-1]), value=1.0)
        quota = torch.where(drawn > 0, quota / drawn, 0.0)
    return quota.clamp(max=1.0) * there


def compute_child_distributions(
    tree: Tree, level: int, parents: ParentNodes, tokens: Tensor
) -> Tensor | None:
    """What each of the level's children, tokens [R, F, C], was drawn from, given its earlier
    siblings.

    [R, F, D, V] of the first D; the others are one-hot. None where all are.
    """
    q = tree.q[level]
    log_q = tree.log_q[level]
    count = tokens.shape[-1]
    if tree.siblings == "without_replacement":
        if log_q is None:
            assert q is not None
            log_q = q[:, :, 0].log()
        if parents.real is not None and level:
            rows, nodes = parents.at
            log_q = log_q[rows, nodes - 1]  # where the root stands in any distribution will do
        laws = compute_sibling_distributions(log_q.flatten(0, 1), tokens.flatten(0, 1))
        return laws.unflatten(0, log_q.shape[:2])
    if q is None:
        return None
    if tree.siblings == "top_and_sampled":
        count = min(count, tree.sampled)
    if q.shape[2] == 1:
        return q.expand(-1, -1, count, -1)
    return q[:, :, constant(tuple(child % q.shape[2] for child in range(count)), q.device)]


def path_walk(scored: ScoredTree, rule: PathRule) -> WalkResult:
    """Tests all nodes by a whole-path rule; the token comes from the last accepted one's residual.
    Nodes with equal prefixes stay apart: each is a draw.
    """
    tree, logits, settings, draws, _ = scored
    shape = tree.shape
    p = probs(logits, settings)
    order, success, residual = rule(tree, p)
    # As many tests for a row as for its neighbours, whose trees may have more absent nodes.
    tests = max(shape.size - 1, sum(shape.children))
    chosen = draws.verdict((tests,))
    first = chosen.first_accepted(0, success)
    last = order.gather(1, first.unsqueeze(1)).squeeze(1)
    rows = cached_arange(len(last), last.device)
    depth = tree.depths
    token = chosen.token(normalise(residual[rows, last], p[rows, last]))
    level = cached_arange(shape.depth + 1, last.device).unsqueeze(1)
    on_path = tree.ancestors[rows, last].unsqueeze(1)  # [R, 1, N]
    path = (on_path & (depth.unsqueeze(1) == level)).byte().argmax(dim=2)
    accepted = depth.expand(len(rows), -1).gather(1, last.unsqueeze(1)).squeeze(1)
    return WalkResult(path, accepted, token)


@rule("traversal", siblings=get_args(Siblings), mark="exact", several_drafts=True)
@dataclass(frozen=True)
class Traversal(TreeVerifier):
    """Traversal verification; of a chain, block verification."""

    walk = staticmethod(path_walk)

    def judge(self, depth: int) -> PathRule:
        return traversal
