"""Whether two computations of the same logits agree up to rounding."""

from __future__ import annotations

import torch
from torch import Tensor

# How far apart logits may be: |difference| over |deviation from their mean|, over the vocabulary.
# A wrong mask moves them by a tenth and more.
TOLERANCE = {
    torch.float64: 1e-5,  # some modules compute attention or norms in float32 whatever the dtype
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}
NEAR_TIE_GAP = 1e-4  # of logits in float32 and finer


def near_tie_gap(dtype: torch.dtype, logit: float) -> float:
    """The largest gap between two logits, the larger one of this size, whose order rounding alone
    can reverse. In bfloat16 neighbours between 16 and 32 lie 0.125 apart, and passes of two shapes
    may round one logit each way.
    """
    return max(NEAR_TIE_GAP, 2 * torch.finfo(dtype).eps * abs(logit))


def apart(one: Tensor, other: Tensor) -> Tensor:
    """How far rows of logits [..., V] lie apart, in units of the second's spread: [...]."""
    lowest = torch.finfo(one.dtype).min
    one, other = (rows.nan_to_num(neginf=lowest).double() for rows in (one, other))
    spread = (other - other.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return (one - other).norm(dim=-1) / spread.clamp(min=1e-30)


def disagreement(one: Tensor, other: Tensor) -> str:
    """How logits [..., V] differ from others by more than rounding; "" if they do not."""
    error, allowed = float(apart(one, other).max()), TOLERANCE[other.dtype]
    if not error <= allowed:
        return f"logits differ by {error:.2g} of their spread (allowed: {allowed:.2g})"
    mine, theirs = one.argmax(dim=-1, keepdim=True), other.argmax(dim=-1, keepdim=True)
    best, chosen = other.gather(-1, theirs), other.gather(-1, mine)
    step = 2 * torch.finfo(other.dtype).eps * best.abs()
    if bool((best - chosen > step.clamp(min=NEAR_TIE_GAP)).any()):
        return "greedy tokens differ"
    return ""
