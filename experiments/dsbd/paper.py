"""Beams against speed: DSBD's Pareto front and beam sampling's curve (arXiv:2409.16560, 4.2).

Each setting of DSBD that is set against a beam width is picked on one half of the prompts and
compared on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spec_bench.report.claims.contrast import RELATIVE, Contrast, Table, counts_of, of_table
from spec_bench.report.claims.difference import Difference
from spec_bench.report.claims.evidence import less_is_better
from spec_bench.report.claims.finding import titled
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.picks import FEWEST_PICKED, composed, values_of
from spec_bench.report.claims.select import Scope, scores_of
from spec_bench.report.claims.verdict import NOT_DECIDED, Check, Odds, odds_of_all
from spec_bench.report.data.rows import Group, Row
from spec_bench.report.papers.claim import Claim

# "DSBD can be 1.5-1.9x faster than beam sampling" at the same effectiveness (Section 4.2).
_FACTOR = 1.5
_BEYOND = 0.25  # so far outside the measured places the nearest one stands in
_ROOM = 0.05  # how much worse a score is no worse; a share of a perplexity
_RATE = "token_rate"
_HOW = "each setting picked on one half of the prompts and compared on the other"
Seen = NDArray[np.bool_]
Choice = Callable[[Table, Table], int]
"""Token rates and scores of (settings..., beam), scores that more is better of -> a setting."""


@claim_function("front")
def front(claim: Claim, scope: Scope) -> Iterator[Check]:
    """DSBD's Pareto front lies above beam sampling's curve; how much faster at no lower score."""
    for group in scope.groups(claim):
        beams = sorted(group.by_decoder.get("beam_sampling", []), key=lambda r: int(r["spec"]))
        settings = tuple(group.by_decoder.get("dsbd", []))
        for score in scores_of(group, "scores"):
            if settings and beams:
                yield _above(group, score, beams, settings, scope)
                wider = [beam for beam in beams if int(beam["spec"]) > 1]  # width 1 is no beam
                if wider:
                    yield _faster_at_no_lower(group, score, wider, settings, scope)


def _above(
    group: Group, score: str, beams: Sequence[Row], settings: tuple[Row, ...], scope: Scope
) -> Check:
    """At each beam width the best of the settings that are faster scores higher, and is faster."""
    odds, said = list[Odds | None](), []
    for beam in beams:
        found = _compared([beam], settings, score, scope, _best_of_faster)
        if found is None:
            return _undecided(_claim_above(score), group)
        scores, rates = found
        odds += [scores.below() if less_is_better(score) else scores.above(), rates.above()]
        said.append(f"width {beam['spec']}: {titled(score)} {scores}, tokens/s {rates}")
    known = [each for each in odds if each is not None]
    picked = "the best of the faster settings, or the fastest where none is faster"
    evidence = f"{picked}: {'; '.join(said)}; {_HOW}"
    whole = odds_of_all(known) if len(known) == len(odds) else None
    return Check(_claim_above(score), group.title, evidence, NOT_DECIDED, odds=whole)


def _faster_at_no_lower(
    group: Group, score: str, beams: Sequence[Row], settings: tuple[Row, ...], scope: Scope
) -> Check:
    """The fastest setting that scores no worse, mean over the widths above 1."""
    claim = f"dsbd at least {_FACTOR:g} times as fast as beam sampling at no worse {titled(score)}"
    found = _compared(beams, settings, score, scope, _fastest_of_no_worse)
    if found is None:
        return _undecided(claim, group)
    scores, rates = found
    near = scores.below(_ROOM) if less_is_better(score) else scores.above(-_ROOM)
    fast = rates.above(_FACTOR - 1)
    evidence = (
        f"tokens/s {rates} ({_FACTOR - 1:+.0%} is claimed), {titled(score)} {scores} (no worse: by "
        f"less than {_ROOM:g}), mean of widths {', '.join(str(b['spec']) for b in beams)}; {_HOW}"
    )
    whole = odds_of_all([fast, near]) if fast and near else None
    return Check(claim, group.title, evidence, NOT_DECIDED, odds=whole)


def _claim_above(score: str) -> str:
    return f"dsbd's front above beam sampling's curve, {titled(score)} against tokens/s"


def _undecided(claim: str, group: Group) -> Check:
    why = f"no records of {FEWEST_PICKED} prompts that all settings were timed in turn on"
    return Check(claim, group.title, why, NOT_DECIDED)


def _compared(
    beams: Sequence[Row], settings: tuple[Row, ...], score: str, scope: Scope, choice: Choice
) -> tuple[Difference, Difference] | None:
    """Differences in score and in token rate to the beams, mean over these; None without records.

    Args:
        beams: beam sampling's cells.
        settings: DSBD's, of which one is picked for each beam.
        score: a score's column.
        scope: has the records.
        choice: which setting is picked.
    """
    parts: dict[str, list[Table]] = {score: [], _RATE: []}
    for beam in beams:
        contrast = Contrast(settings, (beam,))
        tables = {name: counts_of([contrast], name, scope.records) for name in parts}
        known = {name: own for name, own in tables.items() if own is not None}
        if len(known) < 2 or len({own.shape[2] for own in known.values()}) > 1:
            return None
        cells = {
            name: own.reshape(len(contrast.cells), -1, *own.shape[1:])
            for name, own in known.items()
        }
        if cells[score].shape[-1] < FEWEST_PICKED:
            return None
        pick = partial(_picked, contrast, cells, score, choice)
        for name, own in cells.items():
            parts[name] += [composed(settings, own[:-1], name, pick), own[-1]]
    contrasts = [Contrast(settings[:1], (beam,)) for beam in beams]
    found = [
        of_table(contrasts, np.concatenate(own), name, name in RELATIVE)
        for name, own in parts.items()
    ]
    if found[0] is None or found[1] is None:
        return None
    return found[0].of_picks, found[1].of_picks


def _picked(
    contrast: Contrast, cells: dict[str, Table], score: str, choice: Choice, seen: Seen
) -> int:
    """The setting that a choice takes when it sees these prompts."""
    rates, scores = (values_of(contrast.cells, cells[n][..., seen], n) for n in (_RATE, score))
    return choice(rates, -scores if less_is_better(score) else scores)


def _best_of_faster(rates: Table, scores: Table) -> int:
    """The best setting of those faster than the beam; the fastest where none is."""
    faster = rates[:-1] > rates[-1]
    if not (faster & np.isfinite(scores[:-1])).any():
        return int(np.nanargmax(rates[:-1]))
    return int(np.nanargmax(np.where(faster, scores[:-1], np.nan)))


def _fastest_of_no_worse(rates: Table, scores: Table) -> int:
    """The fastest setting of those that score no worse than the beam; the best where none does."""
    good = scores[:-1] >= scores[-1]
    return int(np.nanargmax(np.where(good, rates[:-1], np.nan) if good.any() else scores[:-1]))


def interpolated(
    scope: Scope, claim: Claim, left: list[Row], right: list[Row]
) -> Iterator[Contrast]:
    """Each cell against the right side at the same place, linear between its measured widths.

    The place of a cell, e.g. its average accepted width, is taken as known: its own interval does
    not enter. Cells outside the right side's places by more than a quarter are left out.
    """
    ordered = sorted(right, key=lambda row: scope.value(row, "width"))
    for row in left:
        place = row.get(claim.key)
        found = None if place is None or pd.isna(place) else _around(scope, float(place), ordered)
        if found is not None:
            yield Contrast((row,), *found)


def _around(
    scope: Scope, place: float, ordered: Sequence[Row]
) -> tuple[tuple[Row, ...], tuple[float, ...]] | None:
    """The cells on both sides of a place with their weights."""
    for lower, upper in pairwise(ordered):
        low, high = scope.value(lower, "width"), scope.value(upper, "width")
        if low <= place <= high:
            share = (place - low) / (high - low)
            return (lower, upper), (1 - share, share)
    for end in (*ordered[:1], *ordered[-1:]):
        if abs(scope.value(end, "width") - place) <= _BEYOND:
            return (end,), (1.0,)
    return None
