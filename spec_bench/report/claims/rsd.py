"""What RSD finds (arXiv:2402.14160, Section 5): orderings by length and by budget, quality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pandas as pd

from spec_bench.report.claims.cells import cells, of_experiment, size_of, with_tree_attention
from spec_bench.report.claims.check import Check, verdict_of, verdict_of_all
from spec_bench.report.claims.contrast import Contrast, Difference, difference, picked
from spec_bench.report.claims.quality import quality_claims
from spec_bench.report.claims.records import Records
from spec_bench.report.figures.published import axis_values, measures
from spec_bench.report.load import Group, Row, groups_of

# Figure 4: from the best to the worst at the same draft length.
CHAIN = ("rsd_s", "rsd_c", "spectr", "sd")
# "SD beats RSD-C in the relatively low budget regime, e.g. {6, 10}": from here on it should not.
_LARGE_BUDGET = 14
_SPEEDS = {"mbsu": "MBSU", "token_rate": "token rate"}
_PICKED = "picked on these prompts (optimistic for the side with more trees)"


def rsd_claims(rows: pd.DataFrame, records: Records) -> list[Check]:
    """All of RSD's claims that the rows can speak to, pair by pair."""
    rows = with_tree_attention(rows)
    lengths = groups_by_pair(of_experiment(rows, "rsd-exp1"), "draft_length")
    budgets = groups_by_pair(of_experiment(rows, "rsd-exp2"), "target_budget")
    checks: list[Check] = []
    for groups in lengths:
        checks += _by_draft_length(groups, records)
    for groups in budgets:
        checks += _best_at_each_budget(groups, records)
        checks += _chains_at_small_budgets_only(groups, records)
    both = of_experiment(rows, "rsd-exp1", "rsd-exp2")
    checks += [check for group in groups_of(both) for check in quality_claims(group)]
    return checks


def groups_by_pair(rows: pd.DataFrame, axis: str) -> list[list[Group]]:
    """An experiment's comparable cells, the groups of one pair together."""
    by_pair: dict[str, list[Group]] = {}
    found = groups_of(rows) if not rows.empty else []
    for group in found:
        if not measures(group.rows, axis):
            continue
        by_pair.setdefault(str(group.rows.iloc[0].pair), []).append(group)
    return list(by_pair.values())


def _by_draft_length(groups: Sequence[Group], records: Records) -> list[Check]:
    """Each neighbours' ordering: at each length with the best trees, and with trees of one size."""
    places = axis_values("draft_length")
    checks: list[Check] = []
    for better, worse in pairwise(CHAIN):
        for place in sorted(set(places.values())):
            strata = [_at(group, place, "draft_length", better, (worse,)) for group in groups]
            claim = f"{better} > {worse} in block efficiency at draft length {place}, best trees"
            checks += _ordered(claim, groups, strata, "block_efficiency", records)
        strata = [_same_size(group, "draft_length", better, worse) for group in groups]
        what = "each tree against the chain" if worse == "sd" else "trees of one size"
        claim = f"{better} > {worse} in block efficiency, {what}, mean over draft lengths"
        checks += _ordered(claim, groups, strata, "block_efficiency", records)
    return [*checks, *_ahead_in_speed(groups, records)]


def _ahead_in_speed(groups: Sequence[Group], records: Records) -> list[Check]:
    """RSD-S "strictly outperforms both SD and SpecTr for all performance metrics" (Section 5.1)."""
    checks: list[Check] = []
    for worse, what in (("spectr", "trees of one size"), ("sd", "each tree against the chain")):
        strata = [_same_size(group, "draft_length", CHAIN[0], worse) for group in groups]
        for metric, name in _SPEEDS.items():
            claim = f"rsd_s > {worse} in {name}, {what}, mean over draft lengths"
            checks += _ordered(claim, groups, strata, metric, records)
    return checks


def _best_at_each_budget(groups: Sequence[Group], records: Records) -> list[Check]:
    """RSD-S against all others (Figure 5), best trees, and against trees of its size."""
    places = axis_values("target_budget")
    checks: list[Check] = []
    for place in sorted(set(places.values())):
        strata = [_at(group, place, "target_budget", CHAIN[0], CHAIN[1:]) for group in groups]
        claim = f"rsd_s > all others in block efficiency at budget {place}, best trees"
        checks += _ordered(claim, groups, strata, "block_efficiency", records)
    for worse in ("rsd_c", "spectr"):
        strata = [_same_size(group, "target_budget", CHAIN[0], worse) for group in groups]
        claim = f"rsd_s > {worse} in block efficiency, trees of one size, mean over budgets"
        checks += _ordered(claim, groups, strata, "block_efficiency", records)
    return checks


def _chains_at_small_budgets_only(groups: Sequence[Group], records: Records) -> list[Check]:
    """SD may be ahead of RSD-C at budgets 6 and 10, not later (Section 5.2).

    The paper's own tables show it ahead at all five budgets in two cases (Tables 32 and 42, MBSU).
    """
    budgets = sorted(set(axis_values("target_budget").values()))
    checks = []
    for group in groups:
        for metric, name in _SPEEDS.items():
            found: dict[int, Difference] = {}
            for budget in budgets:
                contrasts = _at(group, budget, "target_budget", "rsd_c", ("sd",))
                gap = difference([contrasts], metric, records) if contrasts else None
                if gap is not None:
                    found[budget] = gap
            large = [gap for budget, gap in found.items() if budget >= _LARGE_BUDGET]
            if not large:
                continue
            verdict = verdict_of_all([verdict_of(gap.low, gap.high) for gap in large])
            gaps = ", ".join(f"{budget}: {gap}" for budget, gap in found.items())
            claim = f"sd not ahead of rsd_c in {name} from budget {_LARGE_BUDGET} on, best trees"
            evidence = f"rsd_c against sd at budget {gaps}; {_picked(list(found.values()))}"
            checks.append(Check(claim, group.title, evidence, verdict))
    return checks


def _at(
    group: Group, place: int, axis: str, better: str, worse: Sequence[str]
) -> tuple[Contrast, ...]:
    """The best of one decoder against the best of others at one length or budget."""
    specs = [key for key, value in axis_values(axis).items() if value == place]
    left = cells(group, better, (spec for decoder, spec in specs if decoder == better))
    right = [
        row
        for name in worse
        for row in cells(group, name, (spec for decoder, spec in specs if decoder == name))
    ]
    complete = {str(row["decoder"]) for row in right} == set(worse)
    return (Contrast(tuple(left), tuple(right)),) if left and complete else ()


def _same_size(group: Group, axis: str, better: str, worse: str) -> tuple[Contrast, ...]:
    """Every two trees of the same depth and number of nodes; a chain against all of its depth.

    Which trees these are was fixed before anything was measured, so nothing is picked.
    """
    rights = _listed(group, axis, worse)
    return tuple(
        Contrast((left,), (right,))
        for left in _listed(group, axis, better)
        for right in rights
        if _comparable(
            size_of(better, str(left["spec"])), size_of(worse, str(right["spec"])), worse
        )
    )


def _listed(group: Group, axis: str, decoder: str) -> list[Row]:
    """A decoder's cells that belong to an experiment."""
    specs = [spec for name, spec in axis_values(axis) if name == decoder]
    return cells(group, decoder, specs)


def _comparable(left: tuple[int, int], right: tuple[int, int], worse: str) -> bool:
    return left[0] == right[0] and (worse == "sd" or left == right)


def _ordered(
    claim: str,
    groups: Sequence[Group],
    strata: Sequence[tuple[Contrast, ...]],
    metric: str,
    records: Records,
) -> Iterator[Check]:
    """The claim on each task, and on all tasks' prompts together."""
    known = [(group, part) for group, part in zip(groups, strata, strict=True) if part]
    for group, part in known:
        yield from _check(claim, group.title, [part], metric, records)
    if len(known) > 1:
        pair = str(groups[0].rows.iloc[0].pair)
        yield from _check(
            claim, f"all tasks, pair {pair}", [part for _, part in known], metric, records
        )


def _picked(gaps: Sequence[Difference]) -> str:
    """That trees were picked by their own numbers, and whether the intervals know of it."""
    return f"{_PICKED}, again in each resample" if all(gap.paired for gap in gaps) else _PICKED


def _check(
    claim: str,
    where: str,
    strata: Sequence[tuple[Contrast, ...]],
    metric: str,
    records: Records,
) -> Iterator[Check]:
    found = difference(strata, metric, records)
    if found is None:
        return
    first = strata[0]
    evidence = str(found)
    if len(first) > 1:
        evidence += f", mean of {len(first)} comparisons fixed in advance"
    elif len(strata) == 1:
        sides = (picked(first[0].left, metric), picked(first[0].right, metric))
        evidence += f", {sides[0]} against {sides[1]}"
    if any(contrast.picks for contrast in first):
        evidence += f"; {_picked([found])}"
    yield Check(claim, where, evidence, verdict_of(found.low, found.high))
