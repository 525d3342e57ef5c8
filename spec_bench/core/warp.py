"""From logits to the distribution that is sampled: temperature, top-k, top-p, temperature 0.

The same warping is applied to the target and to the draft. Everything is kept in log space,
where float32 does not lose the support of a sharp distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PROBABILITY_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are sampled, from target and draft alike.

    Attributes:
        temperature: 0 is greedy: the exact limit, with ties broken to the lowest token id.
        top_k: keep the k largest logits; 0 keeps all.
        top_p: keep the smallest set of tokens with at least this mass; 1 keeps all.
        draft_temperature: the draft's own temperature; None means the target's.
        probability_dtype: ``float32``, or ``float64`` for audits.

    Raises:
        ValueError: for a value outside its range, naming it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    draft_temperature: float | None = None
    probability_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("temperature", "draft_temperature"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number >= 0, got {value}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 keeps every token), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.probability_dtype not in PROBABILITY_DTYPES:
            raise ValueError(
                f"probability_dtype must be one of {', '.join(PROBABILITY_DTYPES)}, "
                f"got {self.probability_dtype!r}"
            )

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of every probability."""
        return PROBABILITY_DTYPES[self.probability_dtype]

    def for_draft(self) -> SamplingSettings:
        """The settings that the draft's logits are warped with."""
        if self.draft_temperature is None:
            return self
        return SamplingSettings(
            self.draft_temperature, self.top_k, self.top_p, None, self.probability_dtype
        )


def argmax_lowest(scores: Tensor) -> Tensor:
    """Index of the largest entry of the last axis, the lowest index where several tie.

    ``torch.argmax`` documents that rule for all devices; baseline and decoders must share one.

    Args:
        scores: [..., V].

    Returns:
        [...] token ids.
    """
    return scores.argmax(dim=-1)


def log_probs(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Log-probabilities of the warped distribution; -inf outside its support.

    Temperature first, then top-k, then top-p on what is left, then normalised.

    Args:
        logits: [..., V], any float dtype.
        settings: temperature, top-k and top-p.

    Returns:
        [..., V] in the settings' dtype; at temperature 0 the log of a one-hot vector.
    """
    if settings.temperature == 0:
        one_hot = torch.full_like(logits, -torch.inf, dtype=settings.dtype)
        return one_hot.scatter_(-1, argmax_lowest(logits).unsqueeze(-1), 0.0)
    return _scores(logits, settings).log_softmax(dim=-1)


def probs(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Probabilities of the warped distribution; see ``log_probs``."""
    if settings.temperature == 0:
        return log_probs(logits, settings).exp()
    return _scores(logits, settings).softmax(dim=-1)


def _scores(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Logits over a temperature above 0, -inf for the tokens that top-k and top-p leave out."""
    scores = logits.to(settings.dtype)
    if settings.temperature != 1:
        scores = scores / settings.temperature
    if 0 < settings.top_k < scores.shape[-1]:
        kth = scores.topk(settings.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if settings.top_p < 1:
        scores = _keep_top_p(scores, settings.top_p)
    return scores


def raw_log_probs(logits: Tensor, node: Tensor, token: Tensor) -> Tensor:
    """Log-probabilities of tokens at temperature 1, nothing truncated: what perplexity counts.

    Args:
        logits: [R, N, V].
        node: [R, T] at which nodes.
        token: [R, T] which token at each.

    Returns:
        [R, T], float32 at least.
    """
    at = logits.gather(1, node.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    at = at.to(torch.promote_types(at.dtype, torch.float32))
    chosen = at.gather(-1, token.unsqueeze(-1)).squeeze(-1)
    return chosen - at.logsumexp(dim=-1)


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Masks tokens that are not needed to reach mass ``top_p``; the largest always stays."""
    ordered, index = scores.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(dim=-1)
    mass_before = probs.cumsum(dim=-1) - probs
    ordered = ordered.masked_fill(mass_before >= top_p, -torch.inf)
    return torch.empty_like(scores).scatter_(-1, index, ordered)
