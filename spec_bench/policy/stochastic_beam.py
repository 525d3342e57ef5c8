"""Stochastic beam search over the draft: RSD-S."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import truncated_gumbel
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.policy.base import Siblings


class StochasticBeam:
    """The W sequences with the largest perturbed log-probability at every level.

    RSD Algorithm 8 with its Algorithm 9 corrected: the beam keeps the best (parent, token) pairs by
    the *truncated* value psi. Nodes of a level stand in decreasing psi, so siblings are met in
    decreasing psi, the one order for which recursive rejection is exact. Nothing that follows may
    depend on how many children a node got.

    At temperature 0 (``deterministic``) it is a beam search whose score is the sum of
    (logit - largest logit) along the path, which is the limit of the stochastic beam.

    Args:
        width: W, at least 1.
        depth: L, at least 1.
        siblings: ``without_replacement`` or ``deterministic``.
    """

    merge_copies = False
    fixed_parents = False

    def __init__(self, width: int, depth: int, siblings: Siblings) -> None:
        self.width = width
        self.siblings = siblings
        self.shape = TreeShape((width,) * depth, (width,) * depth)
        # [R, F] sum of log q (or of scores) along each frontier node's path; -inf for absent ones
        self._phi: Tensor
        self._psi: Tensor  # [R, F] its truncated perturbed value

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        log_q = scores.squeeze(2)
        deterministic = self.siblings == "deterministic"
        rows, _, vocab = log_q.shape
        if tree.grown == 0:
            self._phi = self._psi = log_q.new_zeros((rows, 1))
        phi = self._phi.unsqueeze(-1) + log_q
        noisy = phi if deterministic else phi + draws.gumbel(log_q)
        # Only a parent's W best can enter the beam. psi increases with the perturbed value, so
        # its order is known before truncation, which in floating point can make ties.
        best, tokens = noisy.topk(min(self.width, vocab), dim=-1)
        psi = best if deterministic else truncated_gumbel(best, self._psi)
        chosen = psi.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, : self.width]
        self._psi = psi.flatten(1).gather(1, chosen)
        parent = chosen // tokens.shape[-1]
        tokens = tokens.flatten(1).gather(1, chosen)
        self._phi = phi.flatten(1).gather(1, parent * vocab + tokens)
        missing = self.width - chosen.shape[1]
        if missing:  # the vocabulary is smaller than the beam
            parent, tokens = pad(parent, (0, missing)), pad(tokens, (0, missing))
            self._phi, self._psi = (
                pad(part, (0, missing), value=-torch.inf) for part in (self._phi, self._psi)
            )
        valid = self._psi > -torch.inf
        tree.add_level(tokens, parent, valid, None if deterministic else scores.exp())
