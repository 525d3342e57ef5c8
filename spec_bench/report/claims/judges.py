"""Values of ``by`` and ``judge`` of a ``Comparison``: how cells are paired, and how a claim is
judged by the pairs' differences. A paper's ``claims.py`` imports them from ``ask``.
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


def pair_all_in_line(
    comparison: Comparison, left: list[Row], right: list[Row]
) -> Iterator[Contrast]:
    """Pairs every left cell with every right cell of the same line."""
    rights = comparison.group_by_line(right)
    for row in left:
        yield from (([row], [partner]) for partner in rights.get(comparison.get_line_key(row), []))


def pair_best_in_line(
    comparison: Comparison, left: list[Row], right: list[Row]
) -> Iterator[Contrast]:
    """Pairs the best cells of both sides in each line. Skips a line that lacks a decoder of a side:
    the best of some decoders is not the best of all.
    """
    lefts, rights = map(comparison.group_by_line, (left, right))
    for key in (key for key in lefts if key in rights):
        sides = ((lefts[key], comparison.left), (rights[key], comparison.right))
        if all({str(row["decoder"]) for row in rows} >= {*side[DECODERS]} for rows, side in sides):
            yield lefts[key], rights[key]


def pair_steps_along(along: str) -> Pairing:
    """Returns a pairing of each left cell with the next smaller cell along a value; with a minus
    before its name, the smaller cell is on the left.
    """

    def pair_cells(comparison: Comparison, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
        for line in comparison.sort_lines(left, along):
            yield from (([later], [earlier]) for earlier, later in pairwise(line))

    return pair_cells


def pair_ends_along(along: str) -> Pairing:
    """Returns a pairing of each line's last cell with its first, in the order of ``along``; without
    ``each``, only of lines that span the full range of its values.
    """

    def pair_cells(comparison: Comparison, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
        lines = comparison.sort_lines(left, along)
        key = along.lstrip("-")
        spans = [
            sorted(comparison.ask.get_value(line[end], key) for end in (0, -1)) for line in lines
        ]
        full_span = spans and [min(low for low, _ in spans), max(high for _, high in spans)]
        for line, span in zip(lines, spans, strict=True):
            if len(line) > 1 and (comparison.each or span == full_span):
                yield line[-1:], line[:1]

    return pair_cells


def describe_gap(comparison: Comparison) -> str:
    """Describes the difference, the number of comparisons, and the compared trees."""
    mean_text = (
        f", mean of {comparison.contrast_count} comparisons fixed in advance"
        if comparison.contrast_count > 1
        else ""
    )
    best_text = f", {comparison.best_trees_text}" if comparison.best_trees_text else ""
    return f"{comparison.gap}{mean_text}{best_text}{comparison.pick_method_text}"


def describe_gap_and_trees(comparison: Comparison) -> str:
    """Describes the difference and the trees on the left."""
    specs = ", ".join(
        dict.fromkeys(str(left["spec"]) for left, _ in comparison.first_cells_of_sides)
    )
    mean_text = (
        f"mean of {comparison.contrast_count} comparisons: "
        if comparison.contrast_count > 1
        else ""
    )
    return f"{comparison.gap}, {mean_text}{specs}"


def judge_mean(comparison: Comparison) -> Check | None:
    """Judges the mean difference of all comparisons; None if it cannot be computed."""
    if (gap := comparison.compute_pooled_difference(comparison.strata)) is None:
        return None
    expect = comparison.expect
    return replace(comparison, gap=gap).make_check(
        expect(gap), lambda n: expect(gap.rescale_to_prompts(n))
    )


def judge_rising_steps(comparison: Comparison) -> Check | None:
    """Judges whether the metric is higher at the end of the steps than at their start, and falls at
    no step. A step without a change is no objection: every candidate list may have been accepted.
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


def make_count_judge(within: float | None = None, against: str = "") -> Judge:
    """Returns a judge of counts, which have no interval: each left count must be less than the
    right count, or within a share of it.
    """

    def judge(comparison: Comparison) -> Check | None:
        holds = [
            left_count < right_count
            if within is None
            else abs(left_count - right_count) <= within * right_count
            for _, left_count, right_count in comparison.list_count_pairs(against)
        ]
        return comparison.make_check(HOLDS if all(holds) else DOES_NOT_HOLD) if holds else None

    return judge


def judge_places(
    comparison: Comparison,
    combine_p_values: Callable[[Iterable[PValues]], PValues],
    first_place: float = -inf,
) -> Check | None:
    """Judges all places of a group (values of ``each``) in one check: ``combine_p_values`` combines
    the p-values of the single places from ``first_place`` on.
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


def judge_every_place(first_place: float = -inf) -> Judge:
    """Returns a judge: the claim must hold at every value of ``each`` from ``first_place`` on."""
    return partial(judge_places, combine_p_values=p_value_of_all, first_place=first_place)


judge_some_places: Judge = partial(judge_places, combine_p_values=p_value_of_any)
"""Judge: the claim must hold at one or more values of ``each``."""
judge_most_places: Judge = partial(judge_places, combine_p_values=p_value_of_most)
"""Judge: the claim must hold at more than half of the values of ``each``."""
