"""What the papers find, checked on measured records: orderings, quality, speed.

A claim ``holds`` where its 95% interval excludes the contrary, ``does not hold`` where it excludes
the claim, and is ``within noise`` else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd

from spec_bench.metrics.intervals import bootstrap_sums
from spec_bench.records import Generation
from spec_bench.report.claims.functions.scores import exact_scores_of
from spec_bench.report.claims.verdict import Check, verdict_of
from spec_bench.report.rows import Group, generations_of

# RSD, arXiv:2402.14160, Figures 4 and 5: block efficiency at the same draft length.
CHAIN = ("rsd_s", "rsd_c", "spectr", "sd")

__all__ = ["Check", "check_all"]


def check_all(groups: Sequence[Group], results: Path) -> list[Check]:
    """All claims that the results can speak to."""
    return [
        *_orderings(groups, results),
        *(check for group in groups for check in exact_scores_of(group)),
        *(check for group in groups for check in _speed(group)),
    ]


def _orderings(groups: Sequence[Group], results: Path) -> list[Check]:
    """Neighbours in the chain, per task and with all tasks' prompts together."""
    checks = []
    for better, worse in pairwise(CHAIN):
        pairs: list[tuple[Generation, Generation]] = []
        for group in groups:
            found = _paired(group, better, worse, results)
            pairs += found
            if found:
                checks.append(_ordering(better, worse, group.title, found))
        if len(groups) > 1 and pairs:
            checks.append(_ordering(better, worse, "all tasks", pairs))
    return checks


def _paired(
    group: Group, better: str, worse: str, results: Path
) -> list[tuple[Generation, Generation]]:
    """Both decoders' records of the same prompts; simulated acceptance is no evidence."""
    rows = [group.row(better), group.row(worse)]
    if any(row is not None and row.lossless == "simulated" for row in rows):
        return []
    ours, theirs = (
        (generations_of(results, str(row.run_id)) or {}) if row is not None else {} for row in rows
    )
    return [(ours[prompt_id], theirs[prompt_id]) for prompt_id in ours if prompt_id in theirs]


def _ordering(
    better: str, worse: str, where: str, pairs: Sequence[tuple[Generation, Generation]]
) -> Check:
    """Difference in block efficiency with its interval, paired by prompt."""
    columns = []
    for side in (0, 1):
        columns.append([sum(s.accepted + 1 for s in pair[side].steps) for pair in pairs])
        columns.append([len(pair[side].steps) for pair in pairs])
    found = bootstrap_sums(lambda sums: sums[0] / sums[1] - sums[2] / sums[3], columns)
    claim = f"{better} > {worse} in block efficiency"
    if found is None or found.low is None or found.high is None:
        return Check(claim, where, "no interval", "within noise")
    verdict = verdict_of(found.low, found.high)
    evidence = f"difference {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return Check(claim, where, evidence, verdict)


def _speed(group: Group) -> list[Check]:
    """Whether the fastest speculative decoder is really faster than the baseline."""
    rows = group.rows[(group.rows.decoder != "ar") & (group.rows.status != "failed")]
    if "speedup" not in rows or rows.speedup.isna().all():
        return []
    best = rows.loc[rows.speedup.idxmax()]
    evidence = f"{best.decoder} {best.spec}: {best.speedup:.2f}"
    if pd.isna(best.speedup_low):
        return [Check("the fastest beats ar", group.title, evidence, "within noise")]
    evidence += f" [{best.speedup_low:.2f}, {best.speedup_high:.2f}] times ar's token rate"
    verdict = verdict_of(best.speedup_low - 1, best.speedup_high - 1)
    return [Check("the fastest beats ar", group.title, evidence, verdict)]
