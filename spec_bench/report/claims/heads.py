"""What ReDrafter says of trained heads (arXiv:2403.09919, Section 3.1): accuracy and its price.

Accuracies come from the heads' file, not from decoding. Each held-out dialogue counts as one draw,
which is wider than the positions would be: those of one dialogue are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot, sqrt
from typing import Any

import numpy as np
import pandas as pd

from spec_bench.metrics.intervals import bootstrap_sums
from spec_bench.report.claims.check import (
    DOES_NOT_HOLD,
    HOLDS,
    WITHIN_NOISE,
    Check,
    verdict_of,
)
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.claims.records import Records
from spec_bench.report.figures.accuracy_speed import ACCURACY, correlation
from spec_bench.report.figures.head_accuracy import half_width
from spec_bench.report.heads import GUESSES, KINDS, NO_RNN, best_heads, grid_of
from spec_bench.report.load import Row, rows_of
from spec_bench.report.papers.drafter_size import written

_MEDUSA, _REDRAFTER, _ = KINDS
_SAME = ("blocks", "learning_rate")
_OWN_JOBS = "each head in a job of its own, and the interval knows nothing of the machine's load"
_METRICS = {"block_efficiency": "block efficiency", "token_rate": "token rate"}


def accuracy_claims(heads: pd.DataFrame) -> Iterator[Check]:
    """ReDrafter ahead of Medusa at t+2 and later, with fewer parameters (Figure 3)."""
    best = best_heads(heads)
    if _MEDUSA not in best or _REDRAFTER not in best:
        return
    ours, theirs = best[_REDRAFTER], best[_MEDUSA]
    for guess in GUESSES[1:]:
        claim = f"redrafter > medusa in validation accuracy at {guess}"
        yield _shares(claim, ours, theirs, f"validation {guess}")
    sizes = [int(head["parameters"]) for head in (ours, theirs)]
    evidence = " against ".join(written(size) for size in sizes)
    verdict = HOLDS if sizes[0] < sizes[1] else DOES_NOT_HOLD
    yield Check("redrafter has fewer parameters than medusa", _where(ours), evidence, verdict)


def recurrence_claims(heads: pd.DataFrame, rows: pd.DataFrame, records: Records) -> Iterator[Check]:
    """With the recurrence ahead of without, heads of the same blocks and rate (Figure 4).

    Args:
        heads: all that were trained.
        rows: measured cells of the grid.
        records: where per-prompt counts come from.
    """
    grid = heads.drop_duplicates("folder").to_dict("records") if not heads.empty else []
    pairs = _twins(grid)
    differences = [left[ACCURACY] - right[ACCURACY] for left, right in pairs]
    if differences:
        found = bootstrap_sums(lambda sums: sums[0] / sums[1], [differences, [1.0] * len(pairs)])
        assert found is not None, "a mean of numbers is a number"
        evidence = f"{found.value:+.3f}"
        if found.low is not None and found.high is not None:
            evidence += f" [{found.low:+.3f}, {found.high:+.3f}]"
        evidence += f", mean of {len(pairs)} pairs of heads, interval over pairs"
        claim = "the recurrence raises validation accuracy at t+5"
        yield Check(claim, _where(pairs[0][0]), evidence, verdict_of(found.low, found.high))
    joined = grid_of(heads, rows)
    if joined.empty:
        return
    cells = [row for row in rows_of(joined) if not pd.isna(row.get("token_rate"))]
    contrasts = [Contrast((left,), (right,)) for left, right in _twins(cells)]
    for metric, name in _METRICS.items():
        gap = difference([contrasts], metric, records) if contrasts else None
        if gap is not None:
            evidence = f"{gap}, mean of {len(contrasts)} pairs of heads"
            verdict = verdict_of(gap.low, gap.high)
            if metric == "token_rate":
                evidence += f"; {_OWN_JOBS}, so left open"
                verdict = WITHIN_NOISE
            yield Check(
                f"the recurrence raises {name}", str(joined.task.iloc[0]), evidence, verdict
            )
    for kind in (_REDRAFTER, NO_RNN):
        own = joined[joined["head"] == kind]
        r = correlation(own, "token_rate")
        if r is not None:
            claim = f"{kind}: speed follows accuracy at t+5 (r > 0)"
            evidence = f"Pearson's r = {r:.3f} over {len(own)} heads"
            low, high = _fisher(r, len(own))
            evidence += f" [{low:.3f}, {high:.3f}]"
            yield Check(claim, str(own.task.iloc[0]), evidence, verdict_of(low, high))


def _twins(cells: Sequence[Mapping[str, Any]]) -> list[tuple[Row, Row]]:
    """(with, without) the recurrence, equal in all else that the grid varies, steps included."""
    keys = (*_SAME, "steps")
    without = {tuple(row[k] for k in keys): row for row in cells if row["head"] == NO_RNN}
    own = [row for row in cells if row["head"] == _REDRAFTER]
    pairs = [(row, without.get(tuple(row[k] for k in keys))) for row in own]
    return [(left, right) for left, right in pairs if right is not None]


def _shares(claim: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], column: str) -> Check:
    """One accuracy against another; no interval where the number of dialogues is not known."""
    value = float(ours[column]) - float(theirs[column])
    evidence = f"{ours[column]:.3f} against {theirs[column]:.3f}, {value:+.3f}"
    counts = [head.get("validation dialogues") for head in (ours, theirs)]
    if any(count is None or pd.isna(count) for count in counts):
        return Check(claim, _where(ours), evidence, verdict_of(None, None))
    halves = [
        half_width(float(head[column]), float(count))
        for head, count in zip((ours, theirs), counts, strict=True)
        if count is not None
    ]
    half = hypot(*halves)
    evidence += f" [{value - half:+.3f}, {value + half:+.3f}] (unpaired, a dialogue as one draw)"
    return Check(claim, _where(ours), evidence, verdict_of(value - half, value + half))


def _fisher(r: float, count: int) -> tuple[float, float]:
    """The 95% interval of a correlation by Fisher's z; everything for three heads or fewer."""
    if count <= 3 or abs(r) >= 1:
        return -1.0, 1.0
    z, half = float(np.arctanh(r)), 1.96 / sqrt(count - 3)
    return float(np.tanh(z - half)), float(np.tanh(z + half))


def _where(head: Mapping[str, Any]) -> str:
    count = head.get("validation dialogues")
    return "held-out dialogues" if count is None or pd.isna(count) else f"{count:g} dialogues"
