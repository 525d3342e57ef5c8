"""A claim with its evidence and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOLDS, WITHIN_NOISE, DOES_NOT_HOLD = "holds", "within noise", "does not hold"


@dataclass(frozen=True)
class Check:
    """One claim on one task, or on all tasks' prompts together.

    Attributes:
        claim: what is said.
        where: the task.
        evidence: the numbers.
        verdict: ``holds``, ``within noise`` or ``does not hold``.
    """

    claim: str
    where: str
    evidence: str
    verdict: str


def verdict_of(low: float | None, high: float | None) -> str:
    """Of a claim that a difference is positive, from its 95% interval; none decides nothing."""
    if low is None or high is None:
        return WITHIN_NOISE
    return HOLDS if low > 0 else DOES_NOT_HOLD if high < 0 else WITHIN_NOISE


def verdict_of_equality(low: float | None, high: float | None) -> str:
    """Of a claim that a difference is zero."""
    if low is None or high is None:
        return WITHIN_NOISE
    return HOLDS if low <= 0 <= high else DOES_NOT_HOLD


def verdict_of_all(verdicts: Sequence[str]) -> str:
    """Of a claim that is made of several: all must hold, and one that does not is enough."""
    if DOES_NOT_HOLD in verdicts:
        return DOES_NOT_HOLD
    return HOLDS if verdicts and set(verdicts) == {HOLDS} else WITHIN_NOISE
