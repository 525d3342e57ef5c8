"""Which cells a claim's comparison pairs, and how the claim is judged by the pairs' differences:
the values of ``by`` and ``judge`` of ``ClaimQuery``, which ``ask`` has for a paper's ``claims.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from spec_bench.report.claims.contrast import Contrast, Difference
from spec_bench.report.claims.sides import DECODERS
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_DECIDED,
    Check,
    PValues,
    p_value_of_all,
    p_value_of_any,
    p_value_of_most,
)
from spec_bench.report.data.rows import Row

if TYPE_CHECKING:
    from spec_bench.report.claims.ask import Comparison

Pairing = Callable[["Comparison", list[Row], list[Row]], Iterator[Contrast]]
Judge = Callable[["Comparison"], Check | None]


def pair_all(asked: Comparison, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """Yields every left cell with every right one."""
    rights = asked.group_by_line(right)
    for row in left:
        yield from (([row], [partner]) for partner in rights.get(asked.get_line_key(row), []))


def best(asked: Comparison, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """The best cell of each side with all of its decoders: that of some is not that of all."""
    lefts, rights = map(asked.group_by_line, (left, right))
    for key in (key for key in lefts if key in rights):
        sides = ((lefts[key], asked.left), (rights[key], asked.right))
        if all({str(row["decoder"]) for row in rows} >= {*side[DECODERS]} for rows, side in sides):
            yield lefts[key], rights[key]


def steps(along: str) -> Pairing:
    """Each left cell with the next smaller one; a minus puts the smaller one on the left."""

    def pair_cells(asked: Comparison, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
        for line in asked.sort_lines(left, along):
            yield from (([later], [earlier]) for earlier, later in pairwise(line))

    return pair_cells


def ends(along: str) -> Pairing:
    """Returns the last cell of each line against its first one; lines of one mean reach as far."""

    def pair_cells(asked: Comparison, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
        lines = asked.sort_lines(left, along)
        key = along.lstrip("-")
        reach = [sorted(asked.ask.get_value(line[end], key) for end in (0, -1)) for line in lines]
        full_span = reach and [min(low for low, _ in reach), max(high for _, high in reach)]
        for line, span in zip(lines, reach, strict=True):
            if len(line) > 1 and (asked.each or span == full_span):
                yield line[-1:], line[:1]

    return pair_cells


def describe_gap(comparison: Comparison) -> str:
    """Returns the difference, of how many comparisons, of which trees."""
    mean_text = (
        f", mean of {comparison.contrast_count} comparisons fixed in advance"
        if comparison.contrast_count > 1
        else ""
    )
    best_text = f", {comparison.best_trees_text}" if comparison.best_trees_text else ""
    return f"{comparison.gap}{mean_text}{best_text}{comparison.pick_method_text}"


def describe_gap_and_trees(comparison: Comparison) -> str:
    """Returns the difference and the trees on the left."""
    specs = ", ".join(dict.fromkeys(str(left["spec"]) for left, _ in comparison.first_cell_pairs))
    mean_text = (
        f"mean of {comparison.contrast_count} comparisons: "
        if comparison.contrast_count > 1
        else ""
    )
    return f"{comparison.gap}, {mean_text}{specs}"


def judge_mean(comparison: Comparison) -> Check | None:
    """Returns the mean of all comparisons."""
    if (gap := comparison.compute_pooled_difference(comparison.strata)) is None:
        return None
    expect = comparison.expect
    return replace(comparison, gap=gap).make_check(
        expect(gap), lambda n: expect(gap.rescale_to_prompts(n))
    )


def rising(comparison: Comparison) -> Check | None:
    """More at the end of ``steps`` than at their start, and at no step less. A step that adds
    nothing, as where every candidate list is accepted, is no objection.
    """
    total_gap = comparison.compute_single_difference(
        (comparison.first_contrasts[-1][0], comparison.first_contrasts[0][1])
    )
    if total_gap is None or not comparison.single_differences:
        return None
    total, *parts = [gap.above() for gap in (total_gap, *comparison.single_differences)]
    if total and all(parts):
        falls = [total[1], *(part[1] for part in parts if part)]
        total = total[0], min(1.0, min(falls) * len(falls))
    return replace(comparison, gap=total_gap).make_check(total)


def counted(within: float | None = None, against: str = "") -> Judge:
    """Counts have no interval: each left one is less, or within a share of the right one."""

    def judge(comparison: Comparison) -> Check | None:
        holds = [
            ours < theirs if within is None else abs(ours - theirs) <= within * theirs
            for _, ours, theirs in comparison.list_count_pairs(against)
        ]
        return comparison.make_check(HOLDS if all(holds) else DOES_NOT_HOLD) if holds else None

    return judge


def judge_places(
    comparison: Comparison,
    combine_p_values: Callable[[Iterable[PValues]], PValues],
    first_place: float = -inf,
) -> Check | None:
    """Judges each place, a value of ``each``, alone; then all, most or any of them, from
    ``first_place`` on. Returns one check of a whole group.
    """
    gaps = {
        label[0]: comparison.compute_pooled_difference([case])
        for label, case in comparison.contrasts_by_label.items()
    }
    by_place = {place: gap for place, gap in gaps.items() if gap is not None}
    claimed_gaps = [
        gap for place, gap in by_place.items() if first_place == -inf or place >= first_place
    ]

    def get_p_values(gaps: Iterable[Difference]) -> list[PValues]:
        parts = [comparison.expect(gap) for gap in gaps]
        return [part for part in parts if part] if all(parts) else []

    def compute_p_values_at(count: int) -> PValues | None:
        parts = get_p_values(gap.rescale_to_prompts(count) for gap in claimed_gaps)
        return combine_p_values(parts) if parts else None

    judged = get_p_values(claimed_gaps)
    comparison = replace(comparison, gaps_by_place=by_place, place_p_values=judged)
    if not judged:
        return comparison.make_check(NOT_DECIDED) if claimed_gaps else None
    return comparison.make_check(combine_p_values(judged), compute_p_values_at)


def every(least: float = -inf) -> Judge:
    """At every value of ``each``, from this one on, the claim must hold."""
    return partial(judge_places, combine_p_values=p_value_of_all, first_place=least)


some: Judge = partial(judge_places, combine_p_values=p_value_of_any)
"""At one value of ``each`` at least the claim must hold."""
most: Judge = partial(judge_places, combine_p_values=p_value_of_most)
"""At more than half of the values of ``each`` the claim must hold."""
