"""The beam law: which (parent, token) pair comes next, over all parents at once.

DSBD (arXiv 2409.16560), eq. 1. Letters: R rows, W parents, V vocabulary; a *cell* is a pair
(parent, token), numbered ``parent * V + token``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spec_bench.core.warp import SamplingSettings, log_probs


def next_token_log_probs(logits: Tensor, stopped: Tensor, token: Tensor) -> Tensor:
    """Raw log-probabilities [R, W, V] after each parent, temperature 1, nothing truncated, in the
    dtype of the logits [R, W, V]; one that is ``stopped`` [R, W] repeats its ``token`` [R, W] for
    ever.

    So a beam that has ended keeps its likelihood and goes on competing with the others, and every
    layer is a full step of the same chain.
    """
    only = torch.full_like(logits, -torch.inf).scatter_(-1, token.unsqueeze(-1), 0.0)
    return torch.where(stopped.unsqueeze(-1), only, logits.log_softmax(dim=-1))


def beam_probs(likelihood: Tensor, log_p: Tensor, settings: SamplingSettings) -> Tensor:
    """The distribution [R, W V] of the next beam: the warp of the flattened joint vector, not of
    each parent's; zeros where all parents are absent.

    Given are each parent's raw log-likelihood [R, W], -inf where there is none, and the raw
    log-probabilities after it [R, W, V]. Parents are counted by index: two equal ones have twice
    the weight.
    """
    largest = likelihood.amax(dim=-1, keepdim=True)
    present = largest > -torch.inf
    relative = (likelihood - torch.where(present, largest, 0.0)).to(log_p.dtype)
    joint = (relative.unsqueeze(-1) + log_p).flatten(1)
    # Without any parent there is no distribution; a flat one keeps the warp finite and is zeroed
    # below.
    return log_probs(torch.where(present, joint, 0.0), settings).exp() * present
