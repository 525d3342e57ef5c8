"""What ReDrafter finds (arXiv:2403.09919, Section 3): heads, speed, beams, merging, batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

import pandas as pd

from spec_bench.report.beams import MEDUSA, REDRAFTER, head_beams
from spec_bench.report.claims.batches import batch_claims
from spec_bench.report.claims.cells import cells, of_experiment, with_tree_attention
from spec_bench.report.claims.check import (
    DOES_NOT_HOLD,
    HOLDS,
    WITHIN_NOISE,
    Check,
    verdict_of,
    verdict_of_all,
)
from spec_bench.report.claims.contrast import Contrast, Difference, difference, picked
from spec_bench.report.claims.heads import accuracy_claims, recurrence_claims
from spec_bench.report.claims.records import Records
from spec_bench.report.heads import heads_of
from spec_bench.report.load import Group, Row, groups_of

_METRICS = {"block_efficiency": "block efficiency", "token_rate": "token rate"}
# "At higher temperature settings ... typical sampling" (Section 3.3) is what Table 2 has from here.
_WARM = 0.7
_SAVED = {
    "nodes_per_call": "merging saves nodes, mean share of all beams' tokens",
    "nodes_per_call_p99": "merging saves nodes even at the 99th percentile of calls",
}
_STABLE = 0.1  # of tokens per call, between the shortest and the longest answers


def redrafter_claims(rows: pd.DataFrame, records: Records) -> list[Check]:
    """All of ReDrafter's claims that the rows can speak to."""
    checks: list[Check] = []
    trees = with_tree_attention(rows)
    grid = _own(trees, "redrafter-grid")
    if not grid.empty:
        heads = heads_of(grid)
        checks += [*accuracy_claims(heads), *recurrence_claims(heads, grid, records)]
    decoding = _groups(_own(trees, "redrafter-decoding"))
    for group in decoding:
        checks += _ahead_of_medusa(group, records)
    for group in (*decoding, *_groups(_own(trees, "redrafter-temperatures"))):
        checks += _typical_faster(group, records)
    by_length = _groups(_own(trees, "redrafter-beams"))
    for group in by_length:
        checks += _wider_is_better(group, records)
        checks += _merging_saves(group)
    checks += _stable_over_length(by_length, records)
    return [*checks, *batch_claims(_own(rows, "redrafter-batches"), records)]


def _own(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one experiment, each cell once."""
    if "experiment" not in rows:
        return rows.iloc[:0]
    found = rows[rows.experiment == name]
    return found if found.empty else of_experiment(found, name)


def _groups(rows: pd.DataFrame) -> list[Group]:
    return [] if rows.empty else groups_of(rows)


def _ahead_of_medusa(group: Group, records: Records) -> Iterator[Check]:
    """The best beams against the best tree of Medusa's, by the same rule."""
    for suffix, rule in (("", "exact rule"), ("_typical", "typical acceptance (approximate)")):
        if suffix and group.rows.temperature.iloc[0] == 0:
            continue  # the argmax is all that is typical
        beams, trees = cells(group, REDRAFTER + suffix), cells(group, MEDUSA + suffix)
        best = Contrast(tuple(beams), tuple(trees))
        for metric, name in _METRICS.items() if beams and trees else ():
            found = difference([[best]], metric, records)
            if found is None:
                continue
            sides = " against ".join(picked(side, metric) for side in (best.left, best.right))
            evidence = f"{found}, {sides}"
            if best.picks:
                evidence += f", picked again in each resample; {_each(best, metric, records)}"
            claim = f"redrafter > medusa in {name}, {rule}"
            yield Check(claim, _where(group), evidence, verdict_of(found.low, found.high))


def _each(contrast: Contrast, metric: str, records: Records) -> str:
    """Every beams against every tree."""
    said = []
    for left, right in product(contrast.left, contrast.right):
        single = difference([[Contrast((left,), (right,))]], metric, records)
        said.append(f"{left['spec']} against {right['spec']} {single}")
    return "one by one: " + "; ".join(said)


def _typical_faster(group: Group, records: Records) -> Iterator[Check]:
    """Typical acceptance, which is approximate, faster than the exact rule at the same beams."""
    temperature = float(group.rows.temperature.iloc[0])
    exact = {str(row["spec"]): row for row in cells(group, REDRAFTER)}
    contrasts = [
        Contrast((row,), (exact[str(row["spec"])],))
        for row in cells(group, f"{REDRAFTER}_typical")
        if str(row["spec"]) in exact
    ]
    for metric, name in _METRICS.items() if contrasts and temperature >= _WARM else ():
        found = difference([contrasts], metric, records)
        if found is not None:
            claim = f"typical acceptance (approximate) > exact rule in {name}"
            evidence = f"{found}, redrafter, {len(contrasts)} beams"
            yield Check(claim, _where(group), evidence, verdict_of(found.low, found.high))


def _wider_is_better(group: Group, records: Records) -> Iterator[Check]:
    """Each width against the next smaller one (Figure 5a)."""
    beams = _ascending(group)
    contrasts = [Contrast((wide,), (narrow,)) for narrow, wide in pairwise(beams)]
    found = difference([contrasts], "block_efficiency", records) if contrasts else None
    if found is None:
        return
    single = [difference([[each]], "block_efficiency", records) for each in contrasts]
    verdicts = [verdict_of(each.low, each.high) for each in single if each is not None]
    widths = f"{beams[0]['spec']} to {beams[-1]['spec']}"
    evidence = f"{found}, mean of {len(contrasts)} steps, {widths}; one by one "
    evidence += f"{verdicts.count(HOLDS)} so, {verdicts.count(DOES_NOT_HOLD)} the other way, "
    evidence += "the rest within noise"
    claim = "block efficiency grows with the beam width"
    yield Check(claim, _where(group), evidence, verdict_of(found.low, found.high))


def _merging_saves(group: Group) -> Iterator[Check]:
    """Fewer nodes than tokens of all beams, on average and in 99 of 100 calls (Figure 5b)."""
    beams = [(row, prod(head_beams(str(row["spec"])))) for row in _ascending(group)]
    wide = [(row, tokens) for row, tokens in beams if head_beams(str(row["spec"]))[0] > 1]
    for column, claim in _SAVED.items():
        known = [(row, tokens) for row, tokens in wide if not pd.isna(row.get(column))]
        shares = {str(row["spec"]): 1 - float(row[column]) / tokens for row, tokens in known}
        if not shares:
            continue
        said = ", ".join(f"{spec} {share:.0%}" for spec, share in shares.items())
        verdicts = [HOLDS if share > 0 else DOES_NOT_HOLD for share in shares.values()]
        yield Check(claim, _where(group), f"{said}; counted", verdict_of_all(verdicts))


def _stable_over_length(groups: Sequence[Group], records: Records) -> Iterator[Check]:
    """The shortest against the longest limit of the answers, at every width (Figure 5a)."""
    by_place: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        first = group.rows.iloc[0]
        if "max_new_tokens" in group.rows:
            by_place.setdefault((str(first.pair), str(first.task)), []).append(group)
    for own in by_place.values():
        ordered = sorted(own, key=_limit)
        if len(ordered) < 2:
            continue
        short = {str(row["spec"]): row for row in _ascending(ordered[0])}
        pairs = [
            (row, short[str(row["spec"])])
            for row in _ascending(ordered[-1])
            if str(row["spec"]) in short
        ]
        contrasts = [Contrast((long,), (brief,)) for long, brief in pairs]
        found = difference([contrasts], "block_efficiency", records) if contrasts else None
        if found is None:
            continue
        room = _STABLE * sum(float(row["block_efficiency"]) for row, _ in pairs) / len(pairs)
        limits = f"{_limit(ordered[0])} to {_limit(ordered[-1])} tokens"
        evidence = f"longest less shortest {found}, mean of {len(pairs)} widths; {limits}; stable: "
        evidence += f"within {room:.2f} ({_STABLE:.0%})"
        claim = "block efficiency is stable over the length of answers"
        yield Check(claim, str(ordered[0].rows.task.iloc[0]), evidence, _near(found, room))


def _near(found: Difference, room: float) -> str:
    """Of a claim that a difference is at most so large."""
    if found.low is None or found.high is None:
        return WITHIN_NOISE
    if found.low >= -room and found.high <= room:
        return HOLDS
    return DOES_NOT_HOLD if found.low > room or found.high < -room else WITHIN_NOISE


def _ascending(group: Group) -> list[Row]:
    return sorted(cells(group, REDRAFTER), key=lambda row: head_beams(str(row["spec"])))


def _limit(group: Group) -> int:
    return int(group.rows.max_new_tokens.iloc[0])


def _where(group: Group) -> str:
    """The group's title, its temperature always said."""
    temperature = f"temperature {group.rows.temperature.iloc[0]:g}"
    return group.title if "temperature" in group.title else f"{group.title}, {temperature}"
