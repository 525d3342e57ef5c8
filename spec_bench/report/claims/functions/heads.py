"""What ReDrafter says of trained heads (arXiv:2403.09919, Section 3.1): accuracy and its price.

Accuracies come from the heads' file, not from decoding. Each held-out dialogue counts as one draw,
which is wider than the positions would be: those of one dialogue are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import hypot, sqrt
from typing import Any

import numpy as np
import pandas as pd

from spec_bench.metrics.intervals import studentised_interval
from spec_bench.report.claim import Claim
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope
from spec_bench.report.claims.verdict import DOES_NOT_HOLD, HOLDS, Check, verdict_of
from spec_bench.report.heads import ACCURACY, GUESSES, KINDS, NO_RNN, best_heads, heads_of
from spec_bench.report.pairs import written
from spec_bench.report.statistics import correlation, half_width

_MEDUSA, _REDRAFTER, _ = KINDS
_SAME = ("blocks", "learning_rate", "steps")


@claim_function("heads_accuracy")
def accuracy(claim: Claim, scope: Scope) -> Iterator[Check]:
    """ReDrafter ahead of Medusa at t+2 and later, with fewer parameters (Figure 3)."""
    best = best_heads(heads_of(scope.of(claim)))
    if _MEDUSA not in best or _REDRAFTER not in best:
        return
    ours, theirs = best[_REDRAFTER], best[_MEDUSA]
    for guess in GUESSES[1:]:
        text = f"redrafter > medusa in validation accuracy at {guess}"
        yield _shares(text, ours, theirs, f"validation {guess}")
    sizes = [int(head["parameters"]) for head in (ours, theirs)]
    evidence = " against ".join(written(size) for size in sizes)
    verdict = HOLDS if sizes[0] < sizes[1] else DOES_NOT_HOLD
    yield Check("redrafter has fewer parameters than medusa", _where(ours), evidence, verdict)


@claim_function("heads_recurrence")
def recurrence(claim: Claim, scope: Scope) -> Iterator[Check]:
    """With the recurrence ahead of without, heads equal in all else that the grid varies."""
    heads = heads_of(scope.of(claim))
    grid = heads.drop_duplicates("folder").to_dict("records") if not heads.empty else []
    without = {_setting(head): head for head in grid if head["head"] == NO_RNN}
    pairs = [
        (head, without[_setting(head)])
        for head in grid
        if head["head"] == _REDRAFTER and _setting(head) in without
    ]
    differences = [left[ACCURACY] - right[ACCURACY] for left, right in pairs]
    if not differences:
        return
    found = studentised_interval(lambda sums: sums[0] / sums[1], [differences, [1.0] * len(pairs)])
    assert found is not None, "a mean of numbers is a number"
    evidence = f"{found.value:+.3f}"
    if found.low is not None and found.high is not None:
        evidence += f" [{found.low:+.3f}, {found.high:+.3f}]"
    evidence += f", mean of {len(pairs)} pairs of heads, interval over pairs"
    text = "the recurrence raises validation accuracy at t+5"
    yield Check(text, _where(pairs[0][0]), evidence, verdict_of(found.low, found.high))


@claim_function("heads_correlation")
def correlations(claim: Claim, scope: Scope) -> Iterator[Check]:
    """Heads that guess better decode faster, within each kind (Figure 4)."""
    joined = scope.of(claim)
    for kind in (_REDRAFTER, NO_RNN) if not joined.empty else ():
        own = joined[joined["head"] == kind]
        r = correlation(own[ACCURACY], own.token_rate)
        if r is not None:
            text = f"{kind}: speed follows accuracy at t+5 (r > 0)"
            low, high = _fisher(r, len(own))
            evidence = f"Pearson's r = {r:.3f} over {len(own)} heads [{low:.3f}, {high:.3f}]"
            yield Check(text, str(own.task.iloc[0]), evidence, verdict_of(low, high))


def _setting(head: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(head[key] for key in _SAME)


def _shares(text: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], column: str) -> Check:
    """One accuracy against another; no interval where the number of dialogues is not known."""
    value = float(ours[column]) - float(theirs[column])
    evidence = f"{ours[column]:.3f} against {theirs[column]:.3f}, {value:+.3f}"
    counts = [head.get("validation dialogues") for head in (ours, theirs)]
    if any(count is None or pd.isna(count) for count in counts):
        return Check(text, _where(ours), evidence, verdict_of(None, None))
    halves = [
        half_width(float(head[column]), float(count))
        for head, count in zip((ours, theirs), counts, strict=True)
        if count is not None
    ]
    half = hypot(*halves)
    evidence += f" [{value - half:+.3f}, {value + half:+.3f}] (unpaired, a dialogue as one draw)"
    return Check(text, _where(ours), evidence, verdict_of(value - half, value + half))


def _fisher(r: float, count: int) -> tuple[float, float]:
    """The 95% interval of a correlation by Fisher's z; everything for three heads or fewer."""
    if count <= 3 or abs(r) >= 1:
        return -1.0, 1.0
    z, half = float(np.arctanh(r)), 1.96 / sqrt(count - 3)
    return float(np.tanh(z - half)), float(np.tanh(z + half))


def _where(head: Mapping[str, Any]) -> str:
    count = head.get("validation dialogues")
    return "held-out dialogues" if count is None or pd.isna(count) else f"{count:g} dialogues"
