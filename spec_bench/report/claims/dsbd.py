"""What DSBD finds (arXiv:2409.16560, Sections 4.2, 4.3, C): quality of beams at a higher speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from spec_bench.report.beams import BEAM_SAMPLING, DSBD
from spec_bench.report.claims.beam_settings import setting_claims
from spec_bench.report.claims.cells import cells, of_experiment, with_tree_attention
from spec_bench.report.claims.check import WITHIN_NOISE, Check, verdict_of, verdict_of_all
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.claims.one_cache import one_cache_claims
from spec_bench.report.claims.quality import quality_claims
from spec_bench.report.claims.records import Records
from spec_bench.report.claims.same_width import at_same_width
from spec_bench.report.claims.scores import NEAR, Score, one_by_one, scores_of
from spec_bench.report.load import Group, Row, groups_of

# "DSBD can be 1.5-1.9x faster than beam sampling" at the same effectiveness (Section 4.2).
_FACTOR = 1.5
_PICKED = "settings picked on these prompts (optimistic for dsbd)"


def dsbd_claims(rows: pd.DataFrame, records: Records) -> list[Check]:
    """All of DSBD's claims that the rows can speak to."""
    rows = with_tree_attention(rows)
    fronts = _groups(of_experiment(rows, "dsbd-fronts"))
    one_cache = _groups(of_experiment(rows, "dsbd-one-cache"))
    checks: list[Check] = []
    for group in fronts:
        checks += _ahead_of_single_samples(group, records)
        checks += _at_the_same_width(group, records)
        checks += _front(group, records)
    checks += setting_claims(fronts, records)
    for group in one_cache:
        checks += one_cache_claims(group, records)
    both = of_experiment(rows, "dsbd-fronts", "dsbd-one-cache")
    return [*checks, *(check for group in _groups(both) for check in quality_claims(group))]


def _groups(rows: pd.DataFrame) -> list[Group]:
    return [] if rows.empty else groups_of(rows)


def _ahead_of_single_samples(group: Group, records: Records) -> Iterator[Check]:
    """Several beams score at or above one sample of the target."""
    baseline = cells(group, "ar")
    if not baseline:
        return
    contrasts = [Contrast((row,), (baseline[0],)) for row in cells(group, DSBD)]
    for score in scores_of(group):
        found = difference([contrasts], score.name, records) if contrasts else None
        if found is None:
            continue
        evidence = f"{found}, mean of {len(contrasts)} settings"
        evidence += one_by_one(contrasts, score, records)
        claim = f"dsbd at or {score.ahead} ar in {score.title}"
        yield Check(claim, group.title, evidence, score.verdict(found))


def _at_the_same_width(group: Group, records: Records) -> Iterator[Check]:
    """The scores of beam sampling that is as wide on average, at a higher speed."""
    contrasts, rule = at_same_width(cells(group, DSBD), cells(group, BEAM_SAMPLING))
    if not contrasts:
        return
    for score in scores_of(group):
        found = difference([contrasts], score.name, records)
        if found is not None:
            near = f"{NEAR:g}" if score.higher else f"{NEAR:.0%}"
            claim = (
                f"dsbd's {score.title} within {near} of that of beam sampling of its average width"
            )
            evidence = f"{found}, {rule}{one_by_one(contrasts, score, records)}"
            yield Check(claim, group.title, evidence, score.verdict_of_nearness(found))
    speed = difference([contrasts], "token_rate", records)
    if speed is None:
        return
    single = [difference([[contrast]], "token_rate", records) for contrast in contrasts]
    factors = sorted(1 + each.value for each in single if each is not None)
    span = f"one by one {factors[0]:.2f} to {factors[-1]:.2f} times as fast"
    evidence = f"{speed}, {rule}; {span}"
    claim = "dsbd faster than beam sampling of its average width"
    yield Check(claim, group.title, evidence, verdict_of(speed.low, speed.high))
    claim = f"dsbd at least {_FACTOR:g} times as fast as beam sampling of its average width"
    yield Check(claim, group.title, evidence, _at_least(speed.low, speed.high, _FACTOR - 1))
    energy = difference([contrasts], "energy_j_per_token", records)
    if energy is not None:
        claim = "dsbd takes fewer J/token than beam sampling of its average width"
        evidence = f"{energy}, {rule}"
        verdict = WITHIN_NOISE
        if energy.low is not None and energy.high is not None:
            verdict = verdict_of(-energy.high, -energy.low)
        yield Check(claim, group.title, evidence, verdict)


def _front(group: Group, records: Records) -> Iterator[Check]:
    """DSBD's Pareto front lies above beam sampling's curve; how much faster at no lower score."""
    beams = sorted(cells(group, BEAM_SAMPLING), key=lambda row: int(row["spec"]))
    settings = cells(group, DSBD)
    for score in scores_of(group) if settings else []:
        verdicts, said = [], []
        for beam in beams:
            faster = [row for row in settings if row["token_rate"] > beam["token_rate"]]
            best = score.best(faster)
            gap = best and difference([[Contrast((best,), (beam,))]], score.name, records)
            if best is None or not gap:
                verdicts.append(verdict_of(-1, -1))
                said.append(f"width {beam['spec']}: no setting is faster")
                continue
            verdicts.append(score.verdict(gap))
            said.append(f"width {beam['spec']}: {best['spec']} {gap}")
        if said:
            claim = f"dsbd's front above beam sampling's curve, {score.title} against tokens/s"
            evidence = f"best of the faster settings, {'; '.join(said)}; {_PICKED}"
            yield Check(claim, group.title, evidence, verdict_of_all(verdicts))
        yield from _faster_at_no_lower(group, score, beams, settings, records)


def _faster_at_no_lower(
    group: Group, score: Score, beams: Sequence[Row], settings: Sequence[Row], records: Records
) -> Iterator[Check]:
    """The fastest setting that scores no worse, for each width above 1; width 1 is no beam."""
    contrasts, said, missed = [], [], []
    for beam in beams:
        if int(beam["spec"]) == 1 or pd.isna(beam.get(score.name)):
            continue
        good = [row for row in settings if score.no_worse(row, beam)]
        if not good:
            missed.append(f"no setting scores that of width {beam['spec']}")
            continue
        fastest = max(good, key=lambda row: float(row["token_rate"]))
        contrasts.append(Contrast((fastest,), (beam,)))
        times = fastest["token_rate"] / beam["token_rate"]
        said.append(f"width {beam['spec']}: {fastest['spec']} {times:.2f} times as fast")
    found = difference([contrasts], "token_rate", records) if contrasts else None
    if found is None:
        return
    verdicts = [_at_least(found.low, found.high, _FACTOR - 1), *([WITHIN_NOISE] * bool(missed))]
    claim = f"dsbd at least {_FACTOR:g} times as fast as beam sampling at no worse {score.title}"
    evidence = f"{found}, mean over widths; {'; '.join([*said, *missed])}; {_PICKED}"
    yield Check(claim, group.title, evidence, verdict_of_all(verdicts))


def _at_least(low: float | None, high: float | None, least: float) -> str:
    """Of a claim that a share is at least so large."""
    if low is None or high is None:
        return WITHIN_NOISE
    return verdict_of(low - least, high - least)
