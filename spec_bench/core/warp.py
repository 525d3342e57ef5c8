"""From logits to the distribution that is sampled: temperature, top-k, top-p, min-p, temperature 0.

The same warping is applied to the target and to the draft. Everything is kept in log space,
where float32 does not lose the support of a sharp distribution.
"""

import math

import torch
from torch import Tensor

from spec_bench.records.sampling import SamplingSettings as SamplingSettings


def first_argmax(scores: Tensor) -> Tensor:
    """Index [...] of the largest entry of the last axis [..., V], the lowest index where several
    tie. ``torch.argmax`` documents that rule for all devices; baseline and decoders must share one.
    """
    return scores.argmax(dim=-1)


def is_distribution(logits: Tensor) -> Tensor:
    """Returns whether logits [..., V] make a distribution: none is NaN or +inf, and not all are
    -inf.
    """
    return logits.amax(dim=-1).abs() < torch.inf  # two kernels, where isfinite has four


def warped_log_probs(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Log-probabilities [..., V], in the settings' dtype, of the warped distribution of logits
    [..., V]; -inf outside its support, and at temperature 0 the log of a one-hot vector.

    Temperature first, then top-k, then top-p on what is left, then min-p, then normalised.
    """
    if settings.temperature == 0:
        one_hot = torch.full_like(logits, -torch.inf, dtype=settings.dtype)
        return one_hot.scatter_(-1, first_argmax(logits).unsqueeze(-1), 0.0)
    return _warp_logits(logits, settings).log_softmax(dim=-1)


def warped_probs(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Probabilities of the warped distribution; see ``warped_log_probs``."""
    if settings.temperature == 0:
        return warped_log_probs(logits, settings).exp()
    return _warp_logits(logits, settings).softmax(dim=-1)


def _warp_logits(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Logits over a temperature above 0, -inf for tokens that top-k, top-p and min-p leave out."""
    scores = logits.to(settings.dtype)
    if settings.temperature != 1:
        scores = scores / settings.temperature
    if 0 < settings.top_k < scores.shape[-1]:
        kth = scores.topk(settings.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if settings.top_p < 1:
        scores = _keep_top_p(scores, settings.top_p)
    if settings.min_p > 0:
        least = scores.amax(dim=-1, keepdim=True) + math.log(settings.min_p)
        scores = scores.masked_fill(scores < least, -torch.inf)
    return scores


def raw_token_log_probs(logits: Tensor, node: Tensor, token: Tensor) -> Tensor:
    """Log-probabilities [R, T], float32 at least, of tokens [R, T] at nodes [R, T] of logits [R, N,
    V]; at temperature 1, nothing truncated: what perplexity counts.
    """
    node_logits = logits  # at the root, where that is all there is
    if logits.shape[1] > 1:
        node_logits = logits.gather(1, node.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    log_p = node_logits.log_softmax(
        dim=-1, dtype=torch.promote_types(node_logits.dtype, torch.float32)
    )
    return log_p.gather(-1, token.unsqueeze(-1)).squeeze(-1)


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Masks the tokens not needed to reach mass ``top_p``; never the likeliest."""
    sorted_scores, index = scores.sort(dim=-1, descending=True, stable=True)
    probs = sorted_scores.softmax(dim=-1)
    mass_before = probs.cumsum(dim=-1) - probs
    sorted_scores.masked_fill_(mass_before >= top_p, -torch.inf)
    return torch.empty_like(scores).scatter_(-1, index, sorted_scores)


def raw_next_log_probs(logits: Tensor, stopped: Tensor, repeated_token: Tensor) -> Tensor:
    """Computes raw log-probabilities [R, W, V] after each parent, at temperature 1, untruncated, in
    the dtype of the logits [R, W, V]; a ``stopped`` parent [R, W] goes on with ``repeated_token``.

    So a stopped beam keeps its likelihood and competes with the others, and every layer is a full
    step of the same chain.
    """
    only = torch.full_like(logits, -torch.inf).scatter_(-1, repeated_token.unsqueeze(-1), 0.0)
    return torch.where(stopped.unsqueeze(-1), only, logits.log_softmax(dim=-1))


def warped_beam_probs(log_likelihood: Tensor, log_p: Tensor, settings: SamplingSettings) -> Tensor:
    """The distribution [R, W V] of the next beam (DSBD, arXiv 2409.16560, eq. 1): the warp of the
    flattened joint vector, not of each parent's; zeros where all parents are absent.

    Given are each parent's raw log-likelihood [R, W], -inf where there is none, and the raw
    log-probabilities after it [R, W, V]. Parents are counted by index: two equal ones have twice
    the weight.

    Letters: R rows, W parents, V vocabulary; entry ``parent * V + token`` is the pair (parent,
    token).
    """
    largest = log_likelihood.amax(dim=-1, keepdim=True)
    present = largest > -torch.inf
    relative = (log_likelihood - torch.where(present, largest, 0.0)).to(log_p.dtype)
    joint = (relative.unsqueeze(-1) + log_p).flatten(1)
    # Without any parent there is no distribution; a flat one keeps the warp finite and is zeroed
    # below.
    return warped_log_probs(torch.where(present, joint, 0.0), settings).exp() * present
