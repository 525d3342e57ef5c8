"""What DSBD's threshold and draft width do (arXiv:2409.16560, Sections C.2 and C.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from spec_bench.report.beams import DSBD, DraftBeams, draft_beams
from spec_bench.report.claims.cells import cells
from spec_bench.report.claims.check import DOES_NOT_HOLD, HOLDS, Check, verdict_of
from spec_bench.report.claims.contrast import Contrast, Difference, difference
from spec_bench.report.claims.records import Records
from spec_bench.report.load import Group, Row

# (claim, metric, whether it rises)
_EFFECTS = (
    ("average accepted width grows", "beam_width", True),
    ("speed falls", "token_rate", False),
    ("perplexity falls", "perplexity", False),
)


def setting_claims(groups: Sequence[Group], records: Records) -> list[Check]:
    """Neighbouring values of t and of W_S, all else equal, per task and on all tasks' prompts."""
    checks: list[Check] = []
    by_pair: dict[str, list[Group]] = {}
    for group in groups:
        by_pair.setdefault(str(group.rows.iloc[0].pair), []).append(group)
    for pair, own in by_pair.items():
        for what, falling in (("as t falls", True), ("as W_S grows", False)):
            strata = [(group, _steps(cells(group, DSBD), falling)) for group in own]
            known = [(group, steps) for group, steps in strata if steps]
            for effect in _EFFECTS:
                for group, steps in known:
                    checks += _check(what, effect, group.title, [steps], records)
                if len(known) > 1:
                    where = f"all tasks, pair {pair}"
                    checks += _check(what, effect, where, [steps for _, steps in known], records)
    return checks


def _steps(rows: Sequence[Row], threshold: bool) -> list[Contrast]:
    """A smaller t against the next larger one, or a larger W_S against the next smaller one."""
    lines: dict[tuple[float, ...], list[tuple[float, Row]]] = {}
    for row in rows:
        beams = draft_beams(str(row["spec"]))
        key, value = _place(beams, threshold)
        lines.setdefault(key, []).append((value, row))
    contrasts = []
    for line in lines.values():
        for (_, smaller), (_, larger) in pairwise(sorted(line, key=lambda entry: entry[0])):
            left, right = (smaller, larger) if threshold else (larger, smaller)
            contrasts.append(Contrast((left,), (right,)))
    return contrasts


def _place(beams: DraftBeams, threshold: bool) -> tuple[tuple[float, ...], float]:
    """What is kept equal, and the value that differs."""
    if threshold:
        return (beams.width, beams.depth), beams.threshold
    return (beams.depth, beams.threshold), beams.width


def _check(
    what: str,
    effect: tuple[str, str, bool],
    where: str,
    strata: Sequence[Sequence[Contrast]],
    records: Records,
) -> Iterator[Check]:
    """One effect of one parameter."""
    says, metric, rises = effect
    found = difference(strata, metric, records)
    if found is None:
        return
    evidence = f"{found}, mean of {len(strata[0])} steps"
    if len(strata) == 1:
        single = [difference([[step]], metric, records) for step in strata[0]]
        verdicts = [_verdict(each, rises) for each in single if each is not None]
        evidence += f"; one by one {verdicts.count(HOLDS)} so, {verdicts.count(DOES_NOT_HOLD)} "
        evidence += "the other way, the rest within noise"
    yield Check(f"dsbd: {says} {what}", where, evidence, _verdict(found, rises))


def _verdict(found: Difference, rises: bool) -> str:
    if found.low is None or found.high is None or rises:
        return verdict_of(found.low, found.high)
    return verdict_of(-found.high, -found.low)
