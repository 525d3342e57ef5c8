"""How a results file's decoders stand to autoregressive decoding: in score and in speed."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot

import pandas as pd
from scipy.stats import binom

from spec_bench.report.claim import Claim
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    WITHIN_NOISE,
    Check,
    verdict_of,
)
from spec_bench.report.rows import Group, Row, prompts_of, rows_of, score_column

_NOISE = 0.05  # share of differences that leave their 95% interval although nothing differs


@claim_function("exact_scores")
def exact_scores(claim: Claim, scope: Scope) -> Iterator[Check]:
    """Exact decoders draw from the target's law, so scores differ from AR's by noise only."""
    for group in scope.groups(claim):
        yield from exact_scores_of(group)


def exact_scores_of(group: Group) -> Iterator[Check]:
    """Exact decoders' scores against AR's in one group.

    Scores have no records per prompt, so each interval is that of two independent cells, wider
    than a paired one. Some of many cells leave it by chance: the claim fails when more do than
    chance would let in 97.5% of cases.
    """
    score, baseline = score_column(group.rows), group.row("ar")
    if score is None or baseline is None or pd.isna(baseline[score]):
        return
    outside, gaps = [], []
    for row in rows_of(group.rows):
        if row["decoder"] == "ar" or row["lossless"] != "exact" or pd.isna(row[score]):
            continue
        gap = float(row[score] - baseline[score])
        noise = hypot(_half_width(row, score), _half_width(baseline, score))
        if pd.isna(noise):
            continue
        gaps.append(gap)
        if abs(gap) > noise:
            outside.append(f"{row['decoder']} {row['spec']} {gap:+.3f}")
    if not gaps:
        return
    allowed = int(binom.ppf(0.975, len(gaps), _NOISE))
    evidence = (
        f"{len(gaps) - len(outside)} of {len(gaps)} decoders within the 95% noise (unpaired; "
        f"up to {allowed} outside by chance), mean difference {sum(gaps) / len(gaps):+.3f}"
    )
    if outside:
        evidence += f"; outside: {', '.join(outside)}"
    verdict = HOLDS if not outside else DOES_NOT_HOLD if len(outside) > allowed else WITHIN_NOISE
    yield Check(f"{score} of exact decoders equals ar's", group.title, evidence, verdict)


def _half_width(row: Row | pd.Series, column: str) -> float:
    return float((row[f"{column}_high"] - row[f"{column}_low"]) / 2)


@claim_function("fastest")
def fastest(claim: Claim, scope: Scope) -> Iterator[Check]:
    """Whether the fastest speculative decoder is really faster than the baseline."""
    for group in scope.groups(claim):
        rows = group.rows[(group.rows.decoder != "ar") & (group.rows.status != "failed")]
        if "speedup" not in rows or rows.speedup.isna().all():
            continue
        best = rows.loc[rows.speedup.idxmax()]
        evidence, verdict = f"{best.decoder} {best.spec}: {best.speedup:.2f}", WITHIN_NOISE
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
