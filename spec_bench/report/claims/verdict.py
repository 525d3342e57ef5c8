"""A claim with its evidence and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOLDS, WITHIN_NOISE, DOES_NOT_HOLD = "holds", "within noise", "does not hold"
NOT_DECIDED = "not decided"  # there is a value, but nothing that tells how sure it is
NOT_COMPARABLE = "not comparable"  # both sides were measured, but not on the same
VERDICTS = (HOLDS, WITHIN_NOISE, DOES_NOT_HOLD, NOT_DECIDED, NOT_COMPARABLE)


@dataclass(frozen=True)
class Check:
    """One claim on one task, or on all tasks' prompts together.

    A verdict is one of ``VERDICTS``.

    Attributes:
        claim: what is said.
        where: the task.
        evidence: the numbers.
        verdict: what the evidence says of it.
        said: what the paper says, its words as a quotation; "" where the check is ours.
        section: where the paper says it; "" where the check is ours.
        number: place of the claim among its paper's, from 0.
    """

    claim: str
    where: str
    evidence: str
    verdict: str
    said: str = ""
    section: str = ""
    number: int = -1


def verdict_of(low: float | None, high: float | None) -> str:
    """Of a claim that a difference is positive, from its 95% interval; none decides nothing."""
    if low is None or high is None:
        return NOT_DECIDED
    return HOLDS if low > 0 else DOES_NOT_HOLD if high < 0 else WITHIN_NOISE


def verdict_of_less(low: float | None, high: float | None) -> str:
    """Of a claim that a difference is negative."""
    return verdict_of(None if high is None else -high, None if low is None else -low)


def verdict_of_equality(low: float | None, high: float | None) -> str:
    """Of a claim that a difference is zero."""
    if low is None or high is None:
        return NOT_DECIDED
    return HOLDS if low <= 0 <= high else DOES_NOT_HOLD


def verdict_of_nearness(low: float | None, high: float | None, room: float) -> str:
    """Of a claim that a difference is at most so large, either way."""
    if low is None or high is None:
        return NOT_DECIDED
    if low >= -room and high <= room:
        return HOLDS
    return DOES_NOT_HOLD if low > room or high < -room else WITHIN_NOISE


def verdict_of_at_least(low: float | None, high: float | None, least: float) -> str:
    """Of a claim that a difference is at least so large."""
    if low is None or high is None:
        return NOT_DECIDED
    return verdict_of(low - least, high - least)


def verdict_of_all(verdicts: Sequence[str]) -> str:
    """Of a claim that is made of several: all must hold, and one that does not is enough."""
    if DOES_NOT_HOLD in verdicts:
        return DOES_NOT_HOLD
    if NOT_DECIDED in verdicts or not verdicts:
        return NOT_DECIDED
    return HOLDS if set(verdicts) == {HOLDS} else WITHIN_NOISE


def verdict_of_majority(verdicts: Sequence[str]) -> str:
    """Of a claim that most of several hold: more than half do, or so many do not that it cannot."""
    half = len(verdicts) / 2
    if verdicts.count(HOLDS) > half:
        return HOLDS
    if verdicts and verdicts.count(DOES_NOT_HOLD) >= half:
        return DOES_NOT_HOLD
    return NOT_DECIDED if NOT_DECIDED in verdicts or not verdicts else WITHIN_NOISE
