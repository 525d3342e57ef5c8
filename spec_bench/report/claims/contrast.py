"""Differences between two sets of cells, with 95% intervals.

A contrast has a left and a right side, each of one or several cells. The best cell of a side
counts, or, on the right, a mean with given weights. The difference of several contrasts is the mean
of their differences, of relative differences the geometric mean. With records, it is paired by
prompt and between contrasts. A best cell is picked on one half of the prompts and compared on the
other half, both ways round. Among cells that are equal in truth, the cell with the best number on
some prompts looks too good on these prompts (more so with more cells and fewer prompts), but not on
other prompts. Without records there is a value but no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import exp, log, nan, sqrt
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from spec_bench.metrics import metric as registered
from spec_bench.metrics.interval import FEW_CLOCKS, FEW_DIFFER, FEWEST, TOO_FEW, WIDEST, Interval
from spec_bench.metrics.intervals import (
    AS_TAU,
    RATIOS,
    find_majority_value,
    interval_where_few_differ,
    widen_to_tau_width,
)
from spec_bench.metrics.p_values import p_value_above, p_value_below
from spec_bench.metrics.resampling import (
    SumOverColumnGroups,
    bootstrap_interval,
    pseudo_values,
    t_critical_value,
)
from spec_bench.metrics.score_intervals import score_difference_interval
from spec_bench.report.claims.verdict import PValues, p_value_of_all
from spec_bench.report.data.counts import (
    RecordReader,
    Table,
    compute_metric_from_sums,
    make_empty_sums,
)
from spec_bench.report.data.rows import TIMED, Row, count_prompts_per_clock, get_number
from spec_bench.settings.former import FormerMembers
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.numbers import format_interval

FEWEST_PICKED = 8
"""Fewest prompts to pick cells on: half of fewer prompts would be fewer than four."""
# Metrics compared as left / right - 1, because another machine or text scales them. Other metrics
# are compared as left - right.
RELATIVE = frozenset(
    each.name
    for each in columns.list_columns_of_kind("time", "energy", "likelihood")
    if each.interval and each.unit != "×" and each.name != "host_overhead"
)
# The pick of each half depends on the prompts on which the pick of the other half is compared. For
# m equal cells, the two comparisons correlate by e(m)^2 / (m - 1), where e(m) is the mean of the
# largest of m standard normals. That is at most 0.36 (m = 3), and the variance of the comparisons'
# mean grows by this share.
WIDER = sqrt(1.36)
Pick = Callable[[NDArray[np.bool_]], int]
"""Mask of the prompts to pick on, (prompts,) -> index of the picked cell."""


WEIGHT = "weight"
"""Key of a right cell's weight, if the weighted mean counts instead of the best cell."""
Contrast = tuple[Sequence[Row], Sequence[Row]]
"""Left and right cells; the best cell of each side counts."""


def has_choice(contrast: Contrast) -> bool:
    """Returns whether the best of several cells must be picked on some side."""
    left, right = contrast
    return len(left) > 1 or (len(right) > 1 and WEIGHT not in right[0])


@dataclass(frozen=True)
class Difference(FormerMembers):
    """Difference of two sides: left - right, or left / right - 1 for relative metrics."""

    former_members: ClassVar = {
        "relative": "is_relative",
        "why": "no_interval_reason",
        "falls": "lower_is_better",
        "prompts": "prompt_count",
        "chance": "chance_share",
        "ends": "ends_on_value_scale",
        "within_share": "within_share_of_left",
    }

    value: float  # on the measured prompts; picked cells are compared on the half that did not pick
    tested: Interval | None  # on the scale of the test: a logarithm for relative metrics
    is_relative: bool  # whether it is left / right - 1
    no_interval_reason: str = ""  # why there is no interval
    lower_is_better: bool = False  # whether less of the metric is better
    left: float = nan  # mean number of the left sides' first cells, as measured
    prompt_count: int = 0  # number of prompts behind the interval; 0 if unknown
    chance_share: float = 0.0  # share by which two names of one configuration differ here

    @property
    def is_within_chance(self) -> bool:
        """Whether two names of one configuration differ by as much or more."""
        return self.is_relative and abs(self.value) <= self.chance_share > 0

    @property
    def ends_on_value_scale(self) -> tuple[float, float] | None:
        """Interval ends on the value's scale; None without records or with too few prompts."""
        ends = self.tested.ends if self.tested else None
        if not ends or not self.is_relative:
            return ends
        return float(np.expm1(ends[0])), float(np.expm1(ends[1]))

    def scale_interval(self, factor: float) -> Difference:
        """Returns the same difference with an interval ``factor`` times as wide."""
        interval = self.tested
        if interval is None or interval.ends is None:
            return self
        value = interval.value
        low, high = (value + (end - value) * factor for end in interval.ends)
        return replace(self, tested=replace(interval, low=low, high=high))

    def rescale_to_prompts(self, prompt_count: int) -> Difference:
        """Returns the difference with the interval that ``prompt_count`` prompts would give for the
        same spread; without an interval if the present number of prompts is unknown.
        """
        if not self.prompt_count or self.tested is None:
            return replace(self, tested=None)
        return self.scale_interval((self.prompt_count / prompt_count) ** self.tested.shrink_power)

    def above(self, bound: float = 0.0) -> PValues | None:
        """Returns p-values of the claim that the difference exceeds ``bound``; None without an
        interval. For the bound 0, both are 1 if the difference is within chance.
        """
        if self.tested is None:
            return None
        if not bound and self.is_within_chance:
            return 1.0, 1.0
        threshold = float(np.log1p(bound)) if self.is_relative else bound
        support = p_value_above(self.tested, threshold)
        against = p_value_below(self.tested, threshold)
        return None if support is None or against is None else (support, against)

    def below(self, bound: float = 0.0) -> PValues | None:
        """Returns p-values of the claim that the difference is less than ``bound``."""
        p_values = self.above(bound)
        return p_values and (p_values[1], p_values[0])

    def better(self) -> PValues | None:
        """Returns p-values of the claim that the left side is better, in the metric's direction."""
        return self.below() if self.lower_is_better else self.above()

    def within(self, room: float) -> PValues | None:
        """Returns p-values of the claim that the difference is within ``room`` either way (two
        tests).
        """
        upper = self.below(room)
        lower = self.above(-room)
        if upper is None or lower is None:
            return None
        return p_value_of_all([upper, lower])

    def within_share_of_left(self, share: float) -> PValues | None:
        """Returns p-values of a difference within this share of the left side's number."""
        return self.within(share * self.left)

    def __str__(self) -> str:
        form = "+.1%" if self.is_relative else "+.3f"
        if self.ends_on_value_scale is None or self.no_interval_reason == "as printed":
            return f"{self.value:{form}} (no interval: {self.no_interval_reason})"
        chance_text = (
            f", by chance: two names of one configuration differ by {self.chance_share:.1%}"
        )
        return (
            format_interval(self.value, *self.ends_on_value_scale, form)
            + chance_text * self.is_within_chance
        )


def compute_difference(
    strata: Sequence[Sequence[Contrast]],
    metric: str,
    records: RecordReader,
    relative: bool | None = None,
    prompts: frozenset[str] | None = None,
) -> Difference | None:
    """Computes the mean difference in a registered metric over contrasts of the same trees on one
    or several tasks, with all tasks' ``prompts`` (None: all) pooled. ``relative`` is left / right -
    1 instead of left - right (None: the metric's default). None if a number is missing, if the
    tasks' trees differ, or if several tasks lack records.
    """
    relative = metric in RELATIVE if relative is None else relative
    contrasts = strata[0]
    if not contrasts or any(
        _list_compared_trees(stratum) != _list_compared_trees(contrasts) for stratum in strata
    ):
        return None
    tables = [get_contrast_counts(stratum, metric, records, prompts) for stratum in strata]
    tables_left = [table for table in tables if table is not None]
    if len(tables_left) == len(strata):
        if len({table.shape[2] for table in tables_left}) > 1:  # seeds differ by task: summed
            tables_left = [table.sum(axis=2, keepdims=True) for table in tables_left]
        result = compute_mean_difference(
            contrasts,
            np.concatenate(tables_left, axis=3),
            metric,
            relative,
        )
        is_rate = relative and metric in AS_TAU
        tau = (
            compute_difference(strata, "block_efficiency", records, True, prompts)
            if is_rate
            else None
        )
        if result and result.tested and tau and tau.tested:
            widened = widen_to_tau_width(result.tested.map(exp), tau.tested.map(exp), metric)
            result = replace(result, tested=widened.map(log))
    else:
        result = (
            None
            if len(strata) > 1
            else _compute_difference_without_records(contrasts, metric, records, relative)
        )
    left_values = np.array([left[0].get(metric) for left, _ in contrasts], dtype=np.float64)
    return result and replace(
        result, lower_is_better=is_lower_better(metric), left=float(left_values.mean())
    )


def _list_compared_trees(contrasts: Sequence[Contrast]) -> list[list[list[tuple[str, str]]]]:
    """Lists the trees that contrasts compare; tasks with the same list can be pooled."""
    return [
        [[(str(row["decoder"]), str(row["spec"])) for row in side] for side in contrast]
        for contrast in contrasts
    ]


def is_lower_better(metric: str) -> bool:
    """Returns whether lower values of a metric are better; False for a score that is not listed."""
    column = columns.find_column(metric)
    return column is not None and column.better == "down"


def compute_mean_difference(
    contrasts: Sequence[Contrast],
    table: Table,
    metric: str,
    relative: bool,
) -> Difference | None:
    """Computes the mean difference from the counts of all cells, in order; None if undefined."""
    picks = any(map(has_choice, contrasts))
    is_small = table.shape[-1] < FEWEST_PICKED
    if picks and not is_small:
        contrasts, table = _resolve_picks(contrasts, table, metric)
    shares = [
        partial(_compute_mean_share, contrast, metric, relative, len(contrasts))
        for contrast in contrasts
    ]
    widths = [len([*chain(*contrast)]) * table.shape[1] for contrast in contrasts]
    statistic = SumOverColumnGroups(tuple(zip(widths, shares, strict=True)))
    flat = table.reshape(-1, *table.shape[2:])
    if picks and is_small:
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = float(statistic(flat.sum(axis=(1, 2))[:, None])[0])
        value = float(np.expm1(mean)) if relative else mean
        reason = (
            f"fewer than {FEWEST_PICKED} prompts to pick a tree on one half and compare the other"
        )
        return Difference(value, None, relative, reason) if np.isfinite(mean) else None
    rows = [*chain(*chain(*contrasts))]
    # Scores are bounded and often equal; other metrics are smooth in the sums. Repeats are blocks
    # for times, and more calls of a prompt for other metrics.
    if metric in TIMED:
        interval = bootstrap_interval(statistic, flat)
    elif metric in registered:
        flat = flat.sum(axis=1, keepdims=True)
        room = _find_possible_gap(rows, table, metric, relative)
        interval = interval_where_few_differ(statistic, flat, room) or bootstrap_interval(
            statistic, flat
        )
    else:
        interval = score_difference_interval(statistic, flat.sum(axis=1))
    if interval is None:
        return None
    value = float(np.expm1(interval.value)) if relative else interval.value
    is_batched = metric in TIMED and max(map(count_prompts_per_clock, rows)) > 1
    prompts = table.shape[-1]
    is_small = FEW_CLOCKS if is_batched and prompts == 1 else TOO_FEW
    reason = is_small if prompts < FEWEST else FEW_DIFFER
    gap = Difference(value, interval, relative, reason, prompt_count=0 if is_batched else prompts)
    # If each half of the prompts picks a cell for the other, the halves' differences correlate.
    gap = gap.scale_interval(WIDER) if picks else gap
    ends = gap.tested and gap.tested.ends
    if relative and ends and ends[1] - ends[0] > log(WIDEST):
        reason = f"its ends are a factor of more than {WIDEST:g} apart"
        return replace(gap, tested=Interval(value), no_interval_reason=reason)
    return gap


def _find_possible_gap(rows: Sequence[Row], table: Table, metric: str, relative: bool) -> float:
    """Returns how far apart the sides can be on a new prompt: 0 if the first cell's own ratio
    varies by prompt, because sides that still agree always do; else the range of the ratio's
    limits, NaN or infinite if unknown.
    """
    if not find_majority_value(RATIOS[2], table[0]):
        return 0.0
    ends = [end for row in rows for end in make_empty_sums(row, metric).limits or (nan, nan)]
    return float(np.ptp(np.log(ends) if relative else ends))


def _compute_mean_share(
    contrast: Contrast,
    metric: str,
    relative: bool,
    contrast_count: int,
    sums: Table,
) -> Table:
    """Computes a contrast's term of the mean: sums (counts of its cells, batch) -> (batch,)."""
    cell_sums = iter(np.split(sums, len([*chain(*contrast)])))
    best = []
    for side in contrast:
        rates = [compute_metric_from_sums(next(cell_sums), row, metric) for row in side]
        best.append(_combine_values(side, rates))
    with np.errstate(divide="ignore", invalid="ignore"):
        return (
            np.log(best[0]) - np.log(best[1]) if relative else best[0] - best[1]
        ) / contrast_count


def _resolve_picks(
    contrasts: Sequence[Contrast],
    table: Table,
    metric: str,
) -> tuple[list[Contrast], Table]:
    """Replaces the cells of a side by one cell, with the counts of the cell that the other half of
    the prompts picked. Returns the contrasts and their table.
    """
    resolved_contrasts = []
    parts = []
    start = 0
    for left, right in contrasts:
        middle = start + len(left)
        end = middle + len(right)
        parts.append(pick_counts_on_other_half(left, table[start:middle], metric)[None])
        if WEIGHT in right[0]:
            parts.append(table[middle:end])
        else:
            parts.append(pick_counts_on_other_half(right, table[middle:end], metric)[None])
            right = right[:1]
        resolved_contrasts.append((left[:1], right))
        start = end
    return resolved_contrasts, np.concatenate(parts)


def _combine_values(side: Sequence[Row], values: Sequence[Table] | Table) -> Table:
    """Returns the best of a side's values, or their mean with the cells' weights."""
    weights = [row[WEIGHT] for row in side if WEIGHT in row]
    return np.asarray(np.dot(weights, values) if weights else np.max(values, axis=0))


def get_contrast_counts(
    contrasts: Sequence[Contrast],
    metric: str,
    records: RecordReader,
    prompts: frozenset[str] | None = None,
) -> Table | None:
    """Returns all cells' counts, of times only those measured in turn; None without records."""
    return records.make_table_getter([*chain(*chain(*contrasts))], prompts)(metric)


def _compute_difference_without_records(
    contrasts: Sequence[Contrast],
    metric: str,
    records: RecordReader,
    relative: bool,
) -> Difference | None:
    """Computes the value alone, without an interval.

    The interval depends on how far a prompt moves both cells alike, which only records show: with
    the cells' own intervals, taken as independent, it would be several times too wide.
    """
    values = []
    for contrast in contrasts:
        left, right = (
            float(_combine_values(side, np.array([get_number(row, metric) for row in side], float)))
            for side in contrast
        )
        if np.isnan([left, right]).any() or (relative and min(left, right) <= 0):
            return None
        values.append(np.log(left / right) if relative else left - right)
    mean = round(float(np.mean(values)), 9)
    value = float(np.expm1(mean)) if relative else mean
    if records.printed:
        return Difference(
            value, Interval(mean, mean, mean, degrees_of_freedom=1), relative, "as printed"
        )
    rows = chain(*chain(*contrasts))
    has_records = all(records.get_counts_by_seed_and_repeat(row, metric) for row in rows)
    has_times = has_records and metric in TIMED
    reason = (
        "the cells were not timed in turn"
        if has_times
        else "no records by prompt to pair the cells"
    )
    return Difference(value, None, relative, reason)


def format_picked_tree(side: Sequence[Row], metric: str) -> str:
    """Formats the best cell's decoder and tree, with the number of cells; "-" without numbers."""
    rows_left = [row for row in side if not pd.isna(row.get(metric))]
    if not rows_left:
        return "-"
    best = max(rows_left, key=lambda row: float(row[metric]))
    count_text = f" (best of {len(side)} on all prompts)" if len(side) > 1 else ""
    return f"{best['decoder']} {best['spec']}{count_text}"


def pick_counts_on_other_half(
    side: Sequence[Row], counts: Table, metric: str, pick: Pick | None = None
) -> Table:
    """Returns a side's counts (counts, repeats, prompts), for each prompt those of the cell that
    the other half of the prompts picked, by default the best by the metric.

    The factor of a metric's ratio (MBSU's 1 / (L r + 1)) is carried over from the picked cell to
    the first cell.
    """

    def best(prompts_seen: NDArray[np.bool_]) -> int:
        values = compute_cell_values(side, counts[..., prompts_seen], metric)
        return 0 if np.isnan(values).all() else int(np.nanargmax(values))

    first_half = np.arange(counts.shape[-1]) % 2 == 0
    counts_out = counts[0].copy()
    for half in (first_half, ~first_half) if len(side) > 1 else ():
        place = (pick or best)(~half)
        cell = counts[place][..., half].copy()
        if metric == "mbsu":
            factors = [
                compute_metric_from_sums(np.ones((2, 1)), side[place_at], metric)
                for place_at in (place, 0)
            ]
            cell[0] *= float(factors[0][0]) / float(factors[1][0])
        counts_out[..., half] = cell
    return counts_out


def compute_cell_values(side: Sequence[Row], counts: Table, metric: str) -> Table:
    """Computes each cell's number, (cells,); NaN if it has none."""
    sums = counts.sum(axis=(2, 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [
            float(compute_metric_from_sums(totals[:, None], row, metric)[0])
            for row, totals in zip(side, sums, strict=True)
        ]
    return np.where(np.isfinite(values), values, np.nan)


def compute_correlation(x: pd.Series, y: pd.Series) -> float | None:
    """Computes Pearson's r; None for fewer than three points, or if a variable does not vary."""
    is_known = x.notna() & y.notna()
    x = x[is_known].astype(float)
    y = y[is_known].astype(float)
    if len(x) < 3 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def compute_correlation_over_prompts(
    rows: Sequence[Row], x: str, y: str, records: RecordReader
) -> Difference | None:
    """Computes Pearson's r of two metrics over cells, tested as Fisher's z with the jackknife's
    interval over the prompts, which all cells share. It has no interval without records of five
    prompts. None if a metric does not vary.
    """
    r = compute_correlation(*(pd.Series([row.get(name) for row in rows]) for name in (x, y)))
    if r is None or abs(r) >= 1:
        return None
    z = float(np.arctanh(r))
    if records.printed:
        return Difference(r, Interval(z, z, z, degrees_of_freedom=1), False, "as printed")
    tables = [records.make_table_getter(rows)(name) for name in (x, y)]
    counts = [table.sum(axis=2) for table in tables if table is not None]
    prompts = min((table.shape[-1] for table in counts), default=0)
    if len(counts) < 2 or prompts < max(table.shape[-1] for table in counts):
        return Difference(r, None, False, "the cells were not timed in turn, prompt by prompt")
    if prompts < FEWEST:
        return Difference(r, None, False, TOO_FEW)

    def compute_z(sums: Table) -> Table:
        values = [
            np.array(
                [
                    compute_metric_from_sums(cell_sums, row, name)
                    for cell_sums, row in zip(part, rows, strict=True)
                ]
            )
            for name, part in zip((x, y), sums.reshape(2, len(rows), 2, -1), strict=True)
        ]
        x_offsets, y_offsets = (cell_values - cell_values.mean(axis=0) for cell_values in values)
        scale = np.sqrt((x_offsets**2).sum(axis=0) * (y_offsets**2).sum(axis=0))
        return np.asarray(np.arctanh((x_offsets * y_offsets).sum(axis=0) / scale))

    parts = pseudo_values(compute_z, np.concatenate(counts).reshape(-1, prompts))
    half_width = t_critical_value(prompts - 1) * float(parts.std(ddof=1)) / sqrt(prompts)
    interval = (
        Interval(z, z - half_width, z + half_width, degrees_of_freedom=prompts - 1)
        if half_width > 0
        else None
    )
    return Difference(r, interval, False, TOO_FEW, prompt_count=prompts)


def compute_fisher_interval(
    r: float, count: int, bound: float = 0.0
) -> tuple[float, float, PValues]:
    """Computes a correlation's 95% interval by Fisher's z, and p-values of exceeding ``bound``."""
    z = float(np.arctanh(r))
    error = 1 / sqrt(count - 3)
    low, high = (float(np.tanh(z + sign * 1.96 * error)) for sign in (-1, 1))
    z_score = (z - float(np.arctanh(bound))) / error
    return low, high, (float(ndtr(-z_score)), float(ndtr(z_score)))
