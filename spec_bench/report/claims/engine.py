"""From a claim and measured cells to checks: contrasts per task and over tasks, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from spec_bench.columns import header
from spec_bench.report.claim import Claim, Side
from spec_bench.report.claims.compare import Case, cases
from spec_bench.report.claims.contrast import Contrast, Difference, difference
from spec_bench.report.claims.finding import Finding, refuse_unknown_fields
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope, scores_of
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_DECIDED,
    Check,
    verdict_of,
    verdict_of_all,
    verdict_of_at_least,
    verdict_of_equality,
    verdict_of_less,
    verdict_of_nearness,
)
from spec_bench.report.rows import Group

Sides = tuple[Side, Side]


def checks_of(claim: Claim, scope: Scope) -> Iterator[Check]:
    """All checks of one claim, none where nothing was measured for it.

    Raises:
        ValueError: the claim names a function, a column, an axis or a field that there is not.
    """
    if claim.function:
        function = claim_function.find(claim.function, "a claim's function")
        for check in function(claim, scope):
            yield replace(check, sentence=claim.sentence, section=claim.section)
        return
    _refuse_unknown(claim, scope)
    by_pair: dict[str, list[Group]] = {}
    for group in scope.groups(claim):
        by_pair.setdefault(str(group.rows.iloc[0].pair), []).append(group)
    for sides in _sides(claim):
        for metric in claim.metric:
            for groups in by_pair.values():
                yield from _on_tasks(claim, scope, groups, sides, metric)


def _refuse_unknown(claim: Claim, scope: Scope) -> None:
    """A misspelt column would be a claim that nothing was ever measured for."""
    refuse_unknown_fields(claim)
    known = {"score", "scores", *header(), *scope.rows.columns}
    for name in (*claim.metric, *claim.given, *claim.across):
        if name not in known:
            raise ValueError(f"claim {claim.claim!r}: no column {name!r} in results")
    if claim.axis and claim.axis not in scope.axes:
        axes = ", ".join(scope.axes) or "none"
        raise ValueError(f"claim {claim.claim!r}: no axis {claim.axis!r}; the paper has: {axes}")


def _sides(claim: Claim) -> Iterator[Sides]:
    """The pairs of sides, for each two model pairs that are compared."""
    for sides in claim.sides:
        if not claim.pairs:
            yield sides
        for pairs in claim.pairs.items():
            left, right = (
                side.model_copy(update={"where": {**side.where, "pair": (pair,)}})
                for side, pair in zip(sides, pairs, strict=True)
            )
            yield left, right


def _on_tasks(
    claim: Claim, scope: Scope, groups: Sequence[Group], sides: Sides, metric: str
) -> Iterator[Check]:
    """One metric on one pair: each task, then all tasks' prompts together."""
    strata: dict[tuple[object, ...], list[tuple[Group, Case]]] = {}
    for group in groups:
        found = cases(scope, claim, group, sides)
        if claim.every is not None and found:
            yield from _every(claim, scope, group, sides, metric, found)
            continue
        for case in found:
            strata.setdefault(case.label, []).append((group, case))
    for label, known in strata.items():
        for group, case in known:
            for column in scores_of(group, metric):
                about = Finding(claim, scope, group, sides, column, label, case.contrasts)
                yield from _on(replace(about, left_out=case.left_out or None), [case.contrasts])
        if claim.pooled and len(known) > 1:
            group, case = known[0]
            about = Finding(claim, scope, group, sides, metric, label, case.contrasts)
            every = [case.contrasts for _, case in known]
            yield from _on(replace(about, tasks=len(known)), every)


def _on(about: Finding, strata: Sequence[Sequence[Contrast]]) -> Iterator[Check]:
    """The mean of the contrasts, or their counts."""
    if about.claim.counted:
        yield from _counts(about)
    elif about.claim.expect == "rising":
        yield from _rising(about)
    else:
        gap = difference(strata, about.column, about.scope.records)
        if gap is not None and (gap.paired or not about.claim.recorded):
            yield replace(about, gap=gap).check(_verdict(about, gap))


def _verdict(about: Finding, gap: Difference) -> str:
    """What a difference says of what the claim expects."""
    claim = about.claim
    if claim.within is not None:
        return verdict_of_nearness(gap.low, gap.high, about.nearness)
    if claim.at_least is not None:
        return verdict_of_at_least(gap.low, gap.high, claim.at_least)
    if claim.expect == "open":
        return NOT_DECIDED
    if claim.expect == "equal":
        return verdict_of_equality(gap.low, gap.high)
    return (verdict_of_less if about.expects_less else verdict_of)(gap.low, gap.high)


def _every(
    claim: Claim, scope: Scope, group: Group, sides: Sides, metric: str, found: Sequence[Case]
) -> Iterator[Check]:
    """Each case on its own; those from a value on must all hold."""
    gaps = {
        case.label[0]: gap
        for case in found
        if (gap := difference([case.contrasts], metric, scope.records)) is not None
    }
    judged = [gap for place, gap in gaps.items() if place >= claim.every]
    if judged:
        about = Finding(claim, scope, group, sides, metric, (), found[0].contrasts, by_place=gaps)
        yield about.check(verdict_of_all([_verdict(about, gap) for gap in judged]))


def _rising(about: Finding) -> Iterator[Check]:
    """More at the end than at the start, and less at no step.

    A step that adds nothing, as where every candidate list is accepted, is no objection.
    """
    whole = about.of(Contrast(about.contrasts[-1].left, about.contrasts[0].right))
    steps = [gap for step in about.contrasts if (gap := about.of(step)) is not None]
    if whole is None or not steps:
        return
    falls = DOES_NOT_HOLD in [verdict_of(gap.low, gap.high) for gap in steps]
    verdict = DOES_NOT_HOLD if falls else verdict_of(whole.low, whole.high)
    yield replace(about, gap=whole).check(verdict)


def _counts(about: Finding) -> Iterator[Check]:
    """Counts have no interval: one side is less, or within a share of the other, or not."""
    within = about.claim.within
    holds = [
        left < right if within is None else abs(left - right) <= float(within) * right
        for _, left, right in about.counts
    ]
    if holds:
        yield about.check(verdict_of_all([HOLDS if each else DOES_NOT_HOLD for each in holds]))
