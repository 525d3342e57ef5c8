"""A claim with its evidence and verdict.

A verdict comes from two one-sided p-values (``PValues``): of numbers like these if the claim were
false, and if it were true. A page's verdicts are made together (``judged``): Holm's correction over
both p-values of all its checks keeps the chance of any false verdict among them below 5%.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spec_bench.metrics.many import holm

HOLDS, WITHIN_NOISE, DOES_NOT_HOLD = "holds", "within noise", "does not hold"
NOT_DECIDED = "not decided"  # a value without an interval
NOT_COMPARABLE = "not comparable"  # both sides were measured, but not on the same
VERDICTS = (HOLDS, WITHIN_NOISE, DOES_NOT_HOLD, NOT_DECIDED, NOT_COMPARABLE)
ALPHA = 0.05
"""The chance that any verdict of a page is false."""


@dataclass(frozen=True)
class PValues:
    """The probabilities of numbers like these."""

    for_claim: float  # if the claim is false at best: small where it holds
    against_claim: float  # if the claim is true at worst: small where it does not hold

    @property
    def turned(self) -> PValues:
        """Of the contrary."""
        return PValues(self.against_claim, self.for_claim)


@dataclass(frozen=True)
class Check:
    """One claim on one task, or on all tasks' prompts together."""

    claim: str
    where: str  # the task
    evidence: str  # the numbers
    verdict: str  # one of ``VERDICTS``; where there are p_values, once ``judged``
    statement: str = ""  # the paper's, its words as a quotation; "" where the check is ours
    section: str = ""  # of the paper, with the statement
    number: int = -1  # place of the claim among its paper's, from 0
    p_values: PValues | None = None  # None where no chance is in it, or nothing is decided


def judged(checks: Sequence[Check]) -> list[Check]:
    """The checks of one page with their verdicts, corrected for how many there are."""
    verdicts = iter(verdicts_of([check.p_values for check in checks if check.p_values]))
    return [replace(each, verdict=next(verdicts)) if each.p_values else each for each in checks]


def verdicts_of(p_values: Sequence[PValues]) -> list[str]:
    """Verdicts that are made together (Holm)."""
    corrected = holm([p for each in p_values for p in (each.for_claim, each.against_claim)])
    return [
        DOES_NOT_HOLD if against <= ALPHA else HOLDS if supports <= ALPHA else WITHIN_NOISE
        for supports, against in zip(corrected[::2], corrected[1::2], strict=True)
    ]


def p_of_all(p_values: Iterable[PValues]) -> PValues:
    """Of a claim that is made of several: all must hold, and one that does not is enough.

    The largest p-value supports it (intersection-union), the smallest opposes it (Bonferroni).
    """
    parts = list(p_values)
    against = min(each.against_claim for each in parts) * len(parts)
    return PValues(max(each.for_claim for each in parts), min(1.0, against))


def p_of_most(p_values: Iterable[PValues]) -> PValues:
    """Of a claim that more than half of several hold.

    By Bonferroni's test that at least so many of them do (Benjamini and Heller, Biometrics 64,
    2008).
    """
    parts = list(p_values)
    most, too_many = len(parts) // 2 + 1, (len(parts) + 1) // 2
    return PValues(
        _at_least(most, [each.for_claim for each in parts]),
        _at_least(too_many, [each.against_claim for each in parts]),
    )


def _at_least(count: int, p_values: Sequence[float]) -> float:
    """The p-value of at least so many nulls being false."""
    ranked = sorted(p_values)
    return min(1.0, (len(ranked) - count + 1) * ranked[count - 1])
