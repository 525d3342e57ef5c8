"""Stochastic beam search over the draft: RSD-S."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import truncated_gumbel
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.tree.base import AuditTree, distinct, policy
from spec_bench.tree.widths import Rectangle


@policy("stochastic_beam", forms=("product",), takes="KxL: beam width K, length L, such as 4x3")
@dataclass(frozen=True)
class StochasticBeam(Rectangle):
    """The W sequences with the largest perturbed log-probability at every level.

    RSD Algorithm 8 with its Algorithm 9 corrected: the beam keeps the best (parent, token) pairs by
    the *truncated* value psi. A level's nodes are in decreasing psi, so siblings are met in
    decreasing psi, the one order for which recursive rejection is exact. Nothing that follows may
    depend on how many children a node got.

    At temperature 0 (deterministic siblings) it is a beam search whose score is the sum of
    (logit - largest logit) along the path, which is the limit of the stochastic beam.
    """

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return distinct(settings)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        log_q = scores.squeeze(2)
        deterministic = tree.siblings == "deterministic"
        rows, _, vocab = log_q.shape
        if tree.grown == 0:
            tree.carried = (log_q.new_zeros((rows, 1)),) * 2
        # [R, F] sum of log q (or of scores) along each frontier node's path, and its truncated
        # perturbed value; -inf for absent ones
        phi_above, psi_above = tree.carried
        phi = phi_above.unsqueeze(-1) + log_q
        noisy = phi if deterministic else phi + draws.gumbel(log_q)
        # Only a parent's W best can enter the beam. psi increases with the perturbed value, so
        # its order is known before truncation, which in floating point can make ties.
        best, tokens = noisy.topk(min(self.width, vocab), dim=-1)
        psi = best if deterministic else truncated_gumbel(best, psi_above)
        phi = phi.gather(-1, tokens)
        ordered = psi.flatten(1).sort(dim=-1, descending=True, stable=True)
        psi, chosen = ordered.values[:, : self.width], ordered.indices[:, : self.width]
        parent = chosen // tokens.shape[-1]
        tokens, phi = tokens.flatten(1).gather(1, chosen), phi.flatten(1).gather(1, chosen)
        missing = self.width - chosen.shape[1]
        if missing:  # the vocabulary is smaller than the beam
            parent, tokens = pad(parent, (0, missing)), pad(tokens, (0, missing))
            phi, psi = (pad(part, (0, missing), value=-torch.inf) for part in (phi, psi))
        tree.carried = (phi, psi)
        tree.add_level(tokens, parent, psi > -torch.inf, None, None if deterministic else log_q)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        # What it grows depends on the Gumbel values, not only on their order.
        return (AuditTree(cls(3, 2), enumerable=False),)
