"""How a results file's decoders stand to autoregressive decoding: in score and in speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean, stdev

import pandas as pd
from scipy.stats import binom, t

from spec_bench.report.claim import Claim
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope, of_our_engine
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_DECIDED,
    WITHIN_NOISE,
    Check,
    verdict_of,
    verdict_of_equality,
)
from spec_bench.report.counts import Records
from spec_bench.report.rows import Group, prompts_of, rows_of, score_column

_NOISE = 0.05  # share of scores that leave their 95% interval although nothing differs


@claim_function("exact_scores")
def exact_scores(claim: Claim, scope: Scope) -> Iterator[Check]:
    """Exact decoders draw from the target's law, so scores differ from AR's by noise only."""
    for group in scope.groups(claim):
        yield from exact_scores_of(group, scope.records)


def exact_scores_of(group: Group, records: Records) -> Iterator[Check]:
    """Exact decoders' scores against AR's in one group.

    If the claim is true, AR's score and those of N exact decoders are N + 1 draws of one law on the
    same prompts, so one of them lies within m +- t s sqrt(1 + 1/N) of the N others in 95% of cases
    (mean m, standard deviation s, Student's t with N - 1 degrees of freedom): what prompts do to
    all alike cancels. AR's own must; of the decoders some leave theirs by chance, and the claim
    fails when more do than chance would let in 97.5% of cases. One decoder alone has no such
    spread: its difference from AR's is paired by prompt.
    """
    score, baseline = score_column(group.rows), group.row("ar")
    if score is None or baseline is None or pd.isna(baseline[score]):
        return
    exact = [
        row
        for row in rows_of(group.rows)
        if row["decoder"] != "ar" and row["lossless"] == "exact" and not pd.isna(row[score])
    ]
    if not exact:
        return
    values = [float(baseline[score]), *(float(row[score]) for row in exact)]
    gap = values[0] - fmean(values[1:])
    claim, about = f"{score} of exact decoders equals ar's", group.title
    if len(exact) < 2:
        baselines = (row for row in group.by_decoder["ar"] if row["status"] != "failed")
        found = difference([[Contrast((exact[0],), (next(baselines),))]], score, records)
        verdict = verdict_of_equality(found.low, found.high) if found else NOT_DECIDED
        yield Check(claim, about, str(found), HOLDS if gap == 0 else verdict)
        return
    room = [_room(values[:i] + values[i + 1 :]) for i in range(len(values))]
    away = [abs(v - m) > half for v, (m, half) in zip(values, room, strict=True)]
    names = [f"{row['decoder']} {row['spec']} {row[score] - values[0]:+.3f}" for row in exact]
    outside = [name for name, far in zip(names, away[1:], strict=True) if far]
    allowed = int(binom.ppf(0.975, len(exact), _NOISE))
    evidence = (
        f"ar's is {gap:+.3f} from the mean of {len(exact)} decoders, "
        f"95% of draws of one law within {room[0][1]:.3f}; each decoder among the others: "
        f"{len(exact) - len(outside)} of {len(exact)} within, up to {allowed} outside by chance"
    )
    if outside:
        evidence += f"; outside: {', '.join(outside)}"
    fails = away[0] or len(outside) > allowed
    yield Check(
        claim, about, evidence, DOES_NOT_HOLD if fails else WITHIN_NOISE if outside else HOLDS
    )


def _room(others: Sequence[float]) -> tuple[float, float]:
    """Mean of some scores, and how far one more draw of their law may be from it."""
    half = float(t.ppf(0.975, len(others) - 1)) * stdev(others) * sqrt(1 + 1 / len(others))
    return fmean(others), half + 1e-12  # equal scores are no objection


@claim_function("fastest")
def fastest(claim: Claim, scope: Scope) -> Iterator[Check]:
    """Whether our fastest speculative decoder is really faster than the baseline."""
    for group in scope.groups(claim):
        rows = of_our_engine(group.rows[group.rows.decoder != "ar"])
        rows = rows[rows.status != "failed"]
        if "speedup" not in rows or rows.speedup.isna().all():
            continue
        best = rows.loc[rows.speedup.idxmax()]
        evidence, verdict = f"{best.decoder} {best.spec}: {best.speedup:.2f}", NOT_DECIDED
        if not pd.isna(best.speedup_low):
            evidence += f" [{best.speedup_low:.2f}, {best.speedup_high:.2f}] times ar's token rate"
            evidence += basis_of(rows[rows.speedup.notna()])
            verdict = verdict_of(best.speedup_low - 1, best.speedup_high - 1)
        yield Check("the fastest beats ar", group.title, evidence, verdict)


def basis_of(rows: pd.DataFrame) -> str:
    """Of how many cells one is the best, on how many prompts; and that its interval ignores it."""
    prompts = prompts_of(rows)
    text = f", best of {len(rows)}" if len(rows) > 1 else ""
    text += f" on {prompts}" if prompts else ""
    return f"{text}; the interval does not know of the choice" if len(rows) > 1 else text
