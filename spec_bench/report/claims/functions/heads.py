"""What ReDrafter says of trained heads (arXiv:2403.09919, Section 3.1): accuracy and its price.

Accuracies come from the heads' file, not from decoding. Two heads are right and wrong on the same
dialogues, and the file has their sums only, so that a difference of two of them has no interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr

from spec_bench.metrics.bootstrap import studentised_interval
from spec_bench.metrics.interval import FEWEST
from spec_bench.metrics.many import p_above, p_below
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope
from spec_bench.report.claims.verdict import DOES_NOT_HOLD, HOLDS, NOT_DECIDED, Check, Odds
from spec_bench.report.data.heads import ACCURACY, GUESSES, KINDS, NO_RNN, best_heads, heads_of
from spec_bench.report.data.statistics import correlation
from spec_bench.report.papers.claim import Claim
from spec_bench.report.papers.pairs import written
from spec_bench.vocabulary.numbers import ends_of

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
    """With the recurrence ahead of without, heads equal in all else that the grid varies.

    One check for each number of blocks. Those that were trained longest decide: what a short
    training has learned first is not what the structure can do.
    """
    heads = heads_of(scope.of(claim))
    grid = heads.drop_duplicates("folder").to_dict("records") if not heads.empty else []
    without = {_setting(head): head for head in grid if head["head"] == NO_RNN}
    pairs = [
        (head, without[_setting(head)])
        for head in grid
        if head["head"] == _REDRAFTER and _setting(head) in without
    ]
    by_blocks: dict[float, dict[float, list[float]]] = {}
    for left, right in pairs:
        by_steps = by_blocks.setdefault(float(left["blocks"]), {})
        own = by_steps.setdefault(float(left["steps"]), [])
        own.append(float(left[ACCURACY]) - float(right[ACCURACY]))
    for blocks, by_steps in sorted(by_blocks.items()):
        yield _recurrence(blocks, by_steps, _where(pairs[0][0]))


def _recurrence(blocks: float, by_steps: Mapping[float, Sequence[float]], where: str) -> Check:
    """Of heads with so many blocks: the differences of those trained longest, as a mean."""
    most, *fewer = sorted(by_steps, reverse=True)
    differences = by_steps[most]
    found = studentised_interval(
        lambda sums: sums[0] / sums[1], [differences, [1.0] * len(differences)]
    )
    assert found is not None, "a mean of numbers is a number"
    short = found.low is None or found.high is None
    basis = (
        f" (no interval: fewer than {FEWEST} pairs of heads)" if short else ", interval over pairs"
    )
    evidence = f"{found:+.4f}{basis}, mean of {_pairs(differences)} trained longest, {most:g} steps"
    for steps in fewer:
        own = by_steps[steps]
        evidence += f"; {steps:g} steps: {fmean(own):+.4f}, mean of {_pairs(own)}"
    text = f"the recurrence raises validation accuracy at t+5, heads of {blocks:g} blocks"
    more, less = p_above(found), p_below(found)
    odds = None if more is None or less is None else Odds(more, less)
    return Check(text, where, evidence, NOT_DECIDED, odds=odds)


@claim_function("heads_correlation")
def correlations(claim: Claim, scope: Scope) -> Iterator[Check]:
    """Heads that guess better decode faster, within each kind (Figure 4)."""
    joined = scope.of(claim)
    for kind in (_REDRAFTER, NO_RNN) if not joined.empty else ():
        own = joined[joined["head"] == kind]
        r = correlation(own[ACCURACY], own.token_rate)
        if r is not None:
            text = f"{kind}: speed follows accuracy at t+5 (r > 0)"
            evidence, odds = f"Pearson's r = {r:.3f} over {len(own)} heads", None
            if len(own) >= FEWEST and abs(r) < 1:
                low, high, odds = fisher(r, len(own))
                evidence += f" {ends_of(low, high, '.3f')}"
            yield Check(text, str(own.task.iloc[0]), evidence, NOT_DECIDED, odds=odds)


def _setting(head: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(head[key] for key in _SAME)


def _pairs(differences: Sequence[float]) -> str:
    count = len(differences)
    return f"{count} pair{'s' if count > 1 else ''} of heads"


def _shares(text: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], column: str) -> Check:
    """One accuracy against another, on the same dialogues; of those the file has sums only."""
    value = float(ours[column]) - float(theirs[column])
    evidence = (
        f"{ours[column]:.3f} against {theirs[column]:.3f}, {value:+.3f} (no interval: the heads' "
        "file has no accuracy by dialogue to pair them)"
    )
    return Check(text, _where(ours), evidence, NOT_DECIDED)


def fisher(r: float, count: int) -> tuple[float, float, Odds]:
    """The 95% interval of a correlation by Fisher's z, and the odds of its being positive."""
    z, error = float(np.arctanh(r)), 1 / sqrt(count - 3)
    low, high = (float(np.tanh(z + sign * 1.96 * error)) for sign in (-1, 1))
    return low, high, Odds(float(ndtr(-z / error)), float(ndtr(z / error)))


def _where(head: Mapping[str, Any]) -> str:
    count = head.get("validation dialogues")
    return "held-out dialogues" if count is None or pd.isna(count) else f"{count:g} dialogues"
