"""From a claim and measured cells to checks: contrasts per task and over tasks, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import pandas as pd

from spec_bench.report.claims.compare import Case, cases
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.claims.difference import Difference
from spec_bench.report.claims.finding import Finding, refuse_unknown_fields
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope, scores_of
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_COMPARABLE,
    NOT_DECIDED,
    Check,
    Odds,
    odds_of_all,
    odds_of_most,
)
from spec_bench.report.data.headings import together, value_text
from spec_bench.report.data.rows import Group
from spec_bench.report.papers.claim import Claim, Side
from spec_bench.vocabulary.columns import apart_in, header

Sides = tuple[Side, Side]


def checks_of(claim: Claim, scope: Scope) -> Iterator[Check]:
    """All checks of one claim; none if unmeasured.

    Raises:
        ValueError: the claim names an unknown function, column, axis or field.
    """
    if claim.function:
        function = claim_function.find(claim.function, "a claim's function")
        for check in function(claim, scope):
            yield replace(check, statement=claim.statement, section=claim.section)
        return
    _refuse_unknown(claim, scope)
    by_pair: dict[str, list[Group]] = {}
    for group in scope.groups(claim):
        by_pair.setdefault(str(group.rows.iloc[0].pair), []).append(group)
    for sides in _sides(claim):
        for metric in claim.metric:
            for groups in by_pair.values():
                yield from _on_tasks(claim, scope, groups, sides, metric)
                yield from _not_comparable(claim, scope, groups, sides, metric)


def _refuse_unknown(claim: Claim, scope: Scope) -> None:
    """Refuses misspelt columns and axes, with which a claim would never be measured."""
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
        group_cases = cases(scope, claim, group, sides)
        if (claim.every is not None or claim.majority) and group_cases:
            yield from _every(claim, scope, group, sides, metric, group_cases)
            continue
        for case in group_cases:
            strata.setdefault(case.label, []).append((group, case))
    for label, known in strata.items():
        for group, case in known:
            for column in scores_of(group, metric):
                about = Finding(claim, scope, group, sides, column, label, case.contrasts)
                yield from _on(replace(about, left_out=case.left_out or None), [case.contrasts])
        for setting, members in _tasks(claim, groups, known).items() if claim.pooled else ():
            group, case = members[0]
            about = Finding(claim, scope, group, sides, metric, label, case.contrasts)
            every = [case.contrasts for _, case in members]
            yield from _on(replace(about, tasks=len(members), setting=setting), every)


def _tasks(
    claim: Claim, groups: Sequence[Group], known: Sequence[tuple[Group, Case]]
) -> dict[str, list[tuple[Group, Case]]]:
    """The cases to pool: of several tasks, each once, whose runs agree in their settings.

    By the settings that differ from other runs', as text; "" without other runs.
    """
    apart = [column for column in apart_in(groups[0].rows) if column.apart == "run"]
    columns = [column for column in apart if column.name not in claim.across]
    values = {id(group): [group.rows.iloc[0][c.name] for c in columns] for group in groups}
    texts = [
        {id(group): value_text(column, values[id(group)][place]) for group in groups}
        for place, column in enumerate(columns)
    ]
    varying = [each for each in texts if len(set(each.values())) > 1]
    parts: dict[str, list[tuple[Group, Case]]] = {}
    for group, case in known:
        parts.setdefault(together(each[id(group)] for each in varying), []).append((group, case))
    return {setting: part for setting, part in parts.items() if 1 < len(part) == _different(part)}


def _different(known: Sequence[tuple[Group, Case]]) -> int:
    return len({str(group.rows.task.iloc[0]) for group, _ in known})


def _not_comparable(
    claim: Claim, scope: Scope, groups: Sequence[Group], sides: Sides, metric: str
) -> Iterator[Check]:
    """Checks of tasks whose two sides differ in settings; the evidence names the columns."""
    tasks: dict[str, list[Group]] = {}
    for group in groups:
        tasks.setdefault(str(group.rows.task.iloc[0]), []).append(group)
    for task, same_task in tasks.items():
        if len(same_task) < 2 or any(cases(scope, claim, group, sides) for group in same_task):
            continue
        together = Group(task, pd.concat([group.rows for group in same_task]))
        for case in cases(scope, claim, together, sides)[:1]:
            about = Finding(claim, scope, together, sides, metric, case.label, case.contrasts)
            check = about.check(NOT_COMPARABLE)
            yield replace(check, evidence=f"{NOT_COMPARABLE}: {_differing(claim, case)}")


def _differing(claim: Claim, case: Case) -> str:
    """The columns in which the cells of a case differ, with their values."""
    rows = [row for each in case.contrasts for row in (*each.left, *each.right)]
    texts = []
    for column in apart_in(rows[0]):
        values = dict.fromkeys(value_text(column, row.get(column.name)) for row in rows)
        if len(values) > 1 and column.name not in claim.across:
            first, *others = values
            rest = (other.removeprefix(column.title).strip() for other in others)
            texts.append(" and ".join([first, *rest]))
    return "; ".join(texts)


def _on(about: Finding, strata: Sequence[Sequence[Contrast]]) -> Iterator[Check]:
    """The mean of the contrasts, or their counts."""
    if about.claim.counted:
        yield from _counts(about)
    elif about.claim.expect == "rising":
        yield from _rising(about)
    else:
        gap = difference(strata, about.column, about.scope.records)
        if gap is not None and (gap.paired or not about.claim.recorded):
            yield replace(about, gap=gap).check(_odds(about, gap))


def _odds(about: Finding, gap: Difference) -> Odds | None:
    """The odds of a difference under the claim's expectation; None where nothing is decided."""
    claim = about.claim
    if claim.expect == "open":
        return None
    if claim.within is not None:
        return gap.within(about.nearness)
    if claim.at_least is not None:
        return gap.above(claim.at_least)
    return gap.below() if about.expects_less else gap.above()


def _every(
    claim: Claim, scope: Scope, group: Group, sides: Sides, metric: str, group_cases: Sequence[Case]
) -> Iterator[Check]:
    """Each case alone; those from a value on must all hold, or most of them."""
    gaps = {
        case.label[0]: gap
        for case in group_cases
        if (gap := difference([case.contrasts], metric, scope.records)) is not None
    }
    least = -inf if claim.every is None else claim.every
    about = Finding(claim, scope, group, sides, metric, (), group_cases[0].contrasts, by_place=gaps)
    odds = [_odds(about, gap) for place, gap in gaps.items() if place >= least]
    known = tuple(each for each in odds if each is not None)
    if odds and len(known) < len(odds):
        yield about.check(NOT_DECIDED)
    elif odds:
        about = replace(about, judged=known)
        yield about.check((odds_of_most if claim.majority else odds_of_all)(known))


def _rising(about: Finding) -> Iterator[Check]:
    """More at the end than at the start, and at no step less.

    A step that adds nothing, as where every candidate list is accepted, is no objection.
    """
    whole = about.of(Contrast(about.contrasts[-1].left, about.contrasts[0].right))
    steps = [about.of(step) for step in about.contrasts]
    odds = [step.above() for step in steps if step is not None]
    if whole is None or not odds:
        return
    total, falls = whole.above(), [each.if_true for each in odds if each is not None]
    if total is not None and len(falls) == len(odds):
        total = Odds(total.if_false, min(1.0, min(total.if_true, *falls) * (len(falls) + 1)))
    yield replace(about, gap=whole).check(total)


def _counts(about: Finding) -> Iterator[Check]:
    """Counts have no interval: one side is less, or within a share of the other, or not."""
    within = about.claim.within
    holds = [
        left < right if within is None else abs(left - right) <= float(within) * right
        for _, left, right in about.counts
    ]
    if holds:
        yield about.check(HOLDS if all(holds) else DOES_NOT_HOLD)
