"""Whole-path verification of a chain without a step per node: for devices where steps are launches.

A chain's quotas are a product clipped at 1 on the way, a_l = min(1, a_{l-1} r_l) with
r_l = p(x_l) / q(x_l). So with S the running sums of log r, S_0 = 0, a_l = exp(S_l - max S up to l),
all at once. The rest follows from each node's own quota. The numbers equal those of the loop in
``path_rule`` up to rounding; a CPU uses the loop.

Letters: R rows, L draft tokens, N = L + 1 nodes, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.transfer import constant, places
from spec_bench.core.tree import Tree, TreeShape


def is_chain(shape: TreeShape) -> bool:
    """Whether every level is one node."""
    return shape.size == shape.depth + 1 and max(shape.levels, default=0) == 1


def verified(tree: Tree, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Block verification (arXiv 2403.10444) of a chain in closed form.

    Args:
        tree: fully grown, a chain.
        p: [R, N, V] the target's distribution at every node.

    Returns:
        What a ``PathVerdict`` holds: order [R, N], success [R, N - 1], residual [R, N, V].
    """
    above, token, there = p[:, :-1], tree.tokens[:, 1:, None], tree.valid[:, 1:]
    law, at = _laws(tree), p[:, :-1].gather(-1, token)
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
    # As in the loop: nothing is left of a quota of 1 where p is the draft's law.
    changes = there.unsqueeze(-1) & (total > 0)
    residual = torch.where(changes, rest / total.to(p.dtype), left)
    chance = torch.where(changes, kept / total, mass)
    success = torch.cat([chance.squeeze(-1), quota[:, -1:]], dim=1)
    order = _from_the_end(tree)
    return order, success.gather(1, order)[:, :-1], torch.cat([residual, p[:, -1:]], dim=1)


def _laws(tree: Tree) -> Tensor | None:
    """[R, L, V] what each node's token was drawn from; None for one-hot proposals."""
    log_q, q = ([law for law in held if law is not None] for held in (tree.log_q, tree.q))
    if log_q:
        return torch.cat(log_q, dim=1).softmax(dim=-1)
    return torch.cat([law[:, :, 0] for law in q], dim=1) if q else None


def _from_the_end(tree: Tree) -> Tensor:
    """[R, N] the nodes from the deepest to the first, then absent ones, the root last."""
    size, device = tree.shape.size, tree.valid.device
    deepest = tree.valid.sum(dim=1, keepdim=True) - 1  # absent nodes are at the end
    behind = constant((*range(1, size), 0), device)
    nodes = deepest - places(size, device)
    return torch.where(nodes > 0, nodes, behind)
