"""Beams against speed: DSBD's Pareto front and beam sampling's curve (arXiv:2409.16560, 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from spec_bench.report.claim import Claim
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.claims.evidence import less_is_better
from spec_bench.report.claims.finding import titled
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope, scores_of
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    WITHIN_NOISE,
    Check,
    verdict_of,
    verdict_of_all,
    verdict_of_at_least,
    verdict_of_less,
)
from spec_bench.report.rows import Group, Row

# "DSBD can be 1.5-1.9x faster than beam sampling" at the same effectiveness (Section 4.2).
_FACTOR = 1.5
_PICKED = "settings picked on these prompts (optimistic for dsbd)"


@claim_function("front")
def front(claim: Claim, scope: Scope) -> Iterator[Check]:
    """DSBD's Pareto front lies above beam sampling's curve; how much faster at no lower score."""
    for group in scope.groups(claim):
        beams = sorted(group.by_decoder.get("beam_sampling", []), key=lambda r: int(r["spec"]))
        settings = group.by_decoder.get("dsbd", [])
        for score in scores_of(group, "scores"):
            if settings and beams:
                yield _above(group, score, beams, settings, scope)
                yield from _faster_at_no_lower(group, score, beams, settings, scope)


def _above(
    group: Group, score: str, beams: Sequence[Row], settings: Sequence[Row], scope: Scope
) -> Check:
    """At each beam width the best of the settings that are faster scores higher."""
    verdicts, said = [], []
    for beam in beams:
        faster = [row for row in settings if row["token_rate"] > beam["token_rate"]]
        best = best_of(faster, score)
        gap = best and difference([[Contrast((best,), (beam,))]], score, scope.records)
        if best is None or not gap:
            verdicts.append(DOES_NOT_HOLD)
            said.append(f"width {beam['spec']}: no setting is faster")
            continue
        of = verdict_of_less if less_is_better(score) else verdict_of
        verdicts.append(of(gap.low, gap.high))
        said.append(f"width {beam['spec']}: {best['spec']} {gap}")
    claim = f"dsbd's front above beam sampling's curve, {titled(score)} against tokens/s"
    evidence = f"best of the faster settings, {'; '.join(said)}; {_PICKED}"
    return Check(claim, group.title, evidence, verdict_of_all(verdicts))


def _faster_at_no_lower(
    group: Group, score: str, beams: Sequence[Row], settings: Sequence[Row], scope: Scope
) -> Iterator[Check]:
    """The fastest setting that scores no worse, for each width above 1; width 1 is no beam."""
    contrasts, said, missed = [], [], []
    for beam in beams:
        if int(beam["spec"]) == 1 or pd.isna(beam.get(score)):
            continue
        good = [row for row in settings if no_worse(row, beam, score)]
        if not good:
            missed.append(f"no setting scores that of width {beam['spec']}")
            continue
        fastest = max(good, key=lambda row: float(row["token_rate"]))
        contrasts.append(Contrast((fastest,), (beam,)))
        times = fastest["token_rate"] / beam["token_rate"]
        said.append(f"width {beam['spec']}: {fastest['spec']} {times:.2f} times as fast")
    found = difference([contrasts], "token_rate", scope.records) if contrasts else None
    if found is None:
        return
    verdict = verdict_of_at_least(found.low, found.high, _FACTOR - 1)
    verdicts = [verdict, *([WITHIN_NOISE] * bool(missed))]
    claim = f"dsbd at least {_FACTOR:g} times as fast as beam sampling at no worse {titled(score)}"
    evidence = f"{found}, mean over widths; {'; '.join([*said, *missed])}; {_PICKED}"
    yield Check(claim, group.title, evidence, verdict_of_all(verdicts))


def best_of(rows: Sequence[Row], score: str) -> Row | None:
    """The best of these cells; None where none has the score."""
    known = [row for row in rows if not pd.isna(row.get(score))]
    if not known:
        return None
    return (min if less_is_better(score) else max)(known, key=lambda row: float(row[score]))


def no_worse(row: Row, other: Row, score: str) -> bool:
    """Whether a cell is at least as good as another."""
    value = row.get(score)
    if value is None or pd.isna(value):
        return False
    return bool(value <= other[score] if less_is_better(score) else value >= other[score])
