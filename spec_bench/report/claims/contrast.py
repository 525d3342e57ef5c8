"""How much one set of cells is ahead of another, with a 95% interval.

A contrast has a left and a right side, each one or several cells of which the best counts, or of
the right side a mean with given weights; the
difference of several contrasts is their mean. With records it is a bootstrap over prompts, paired
by prompt and between contrasts, and the best cell is picked anew in each resample, so that the
interval knows of the picking. The point value stays that of cells picked on the prompts on which
they are compared, which flatters a side with more cells: such checks say so. Without records there
is a value but no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spec_bench import columns
from spec_bench.metrics import metric as registered
from spec_bench.metrics.bootstrap import Total, percentile_interval, studentised_interval
from spec_bench.report.counts import Counts, Records, value_of_sums
from spec_bench.report.rows import Row

NO_RECORDS = "no records by prompt to pair the cells"
NOT_IN_TURN = "the cells were not timed in turn"
TIMED = frozenset(each.name for each in columns.of_kind("time", "energy"))
# Compared as left / right - 1, the others as left - right: what another machine or text scales.
RELATIVE = frozenset(
    each.name
    for each in columns.of_kind("time", "energy", "likelihood")
    if each.interval and each.unit != "×" and each.name != "host_overhead"
)


@dataclass(frozen=True)
class Contrast:
    """What is compared with what.

    Attributes:
        left: cells, of which the best counts.
        right: cells, of which the best counts.
        weights: one for each cell on the right, whose mean with them counts instead.
    """

    left: tuple[Row, ...]
    right: tuple[Row, ...]
    weights: tuple[float, ...] | None = None

    @property
    def shape(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Which trees are compared; contrasts of several tasks are pooled if this is the same."""
        return tuple(
            tuple((str(row["decoder"]), str(row["spec"])) for row in side)
            for side in (self.left, self.right)
        )

    @property
    def picks(self) -> bool:
        """Whether some side has a choice."""
        return len(self.left) > 1 or (len(self.right) > 1 and self.weights is None)


@dataclass(frozen=True)
class Difference:
    """Left minus right, or for relative metrics left over right minus 1.

    Attributes:
        value: on the prompts as they are.
        low: lower end of the 95% interval; None where there is none.
        high: upper end; None where there is none.
        paired: whether it is a bootstrap over common prompts; else it has no interval.
        relative: whether it is a share.
        unpaired: why it is not paired.
    """

    value: float
    low: float | None
    high: float | None
    paired: bool
    relative: bool
    unpaired: str = NO_RECORDS

    def __str__(self) -> str:
        form = "+.1%" if self.relative else "+.3f"
        if self.low is None or self.high is None:
            why = "" if self.paired else f": {self.unpaired}"
            return f"{self.value:{form}} (no interval{why})"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


def difference(
    strata: Sequence[Sequence[Contrast]],
    metric: str,
    records: Records,
    relative: bool | None = None,
) -> Difference | None:
    """The mean difference over the contrasts.

    Args:
        strata: the same contrasts on one or several tasks, whose prompts are pooled.
        metric: a registered metric.
        records: where per-prompt counts come from.
        relative: whether left over right minus 1 is asked for; None: as is usual for the metric.

    Returns:
        None where a number is missing, or where several tasks cannot be pooled for lack of records.
    """
    relative = metric in RELATIVE if relative is None else relative
    contrasts = strata[0]
    shapes = [[contrast.shape for contrast in stratum] for stratum in strata]
    if not contrasts or any(shape != shapes[0] for shape in shapes):
        return None
    tables = [_table(stratum, metric, records) for stratum in strata]
    found = [table for table in tables if table is not None]
    if len(found) < len(strata):
        return None if len(strata) > 1 else _from_rows(contrasts, metric, records, relative)
    # A maximum over cells bends where they cross, so it has no standard error to be measured in.
    # Of scores, which are bounded and often 0, the percentiles are taken in a results file, too.
    picks = any(contrast.picks for contrast in contrasts)
    table = _together(found)
    statistic = _mean_difference(contrasts, metric, relative, widths=_widths(contrasts, table))
    if picks or metric not in registered:
        interval = percentile_interval(statistic, table.sum(axis=1))  # prompts as blocks
    else:
        interval = studentised_interval(statistic, table)
    if interval is None:
        return None
    return Difference(interval.value, interval.low, interval.high, True, relative)


def _table(
    contrasts: Sequence[Contrast], metric: str, records: Records
) -> NDArray[np.float64] | None:
    """[counts of every cell, seeds, prompts] such as numerators and denominators; None without.

    Of the seeds and prompts that all cells have; of times, that one sitting decoded in turn.
    """
    rows = [row for contrast in contrasts for row in (*contrast.left, *contrast.right)]
    cells = records.in_turn(rows, metric) if metric in TIMED else _counted(rows, metric, records)
    if cells is None:
        return None
    seeds = [seed for seed in cells[0] if all(seed in runs for runs in cells)]
    runs = [runs[seed] for runs in cells for seed in seeds]
    common = [prompt for prompt in runs[0] if all(prompt in run for run in runs)] if runs else []
    if not common:
        return None
    columns = [
        [[runs[seed][prompt][end] for prompt in common] for seed in seeds]
        for runs in cells
        for end in range(len(runs[seeds[0]][common[0]]))
    ]
    return np.array(columns, dtype=np.float64)


def _counted(rows: Sequence[Row], metric: str, records: Records) -> list[dict[str, Counts]] | None:
    """Each row's counts by seed; None where a row has no records."""
    found = [records.by_seed(row, metric) for row in rows]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _together(tables: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Several tasks' prompts side by side; where their numbers of seeds differ, seeds summed."""
    if len({table.shape[1] for table in tables}) > 1:
        tables = [table.sum(axis=1, keepdims=True) for table in tables]
    return np.concatenate(tables, axis=2)


def _widths(contrasts: Sequence[Contrast], table: NDArray[np.float64]) -> list[int]:
    """How many columns of the table each contrast takes; every cell has as many."""
    cells = [len(contrast.left) + len(contrast.right) for contrast in contrasts]
    return [count * (len(table) // sum(cells)) for count in cells]


def _mean_difference(
    contrasts: Sequence[Contrast], metric: str, relative: bool, widths: Sequence[int]
) -> Total:
    """Of sums [counts of every cell, batch]: the contrasts' mean, [batch]."""
    return Total(
        tuple(
            (width, partial(_share, contrast, metric, relative, len(contrasts)))
            for contrast, width in zip(contrasts, widths, strict=True)
        )
    )


def _share(
    contrast: Contrast, metric: str, relative: bool, of: int, sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One contrast's part of the mean of so many: sums [counts of its cells, batch] -> [batch]."""
    each = iter(np.split(sums, len(contrast.left) + len(contrast.right)))
    best = []
    for side, weights in ((contrast.left, None), (contrast.right, contrast.weights)):
        rates = [value_of_sums(next(each), row, metric) for row in side]
        best.append(np.max(rates, axis=0) if weights is None else np.dot(weights, rates))
    return (best[0] / best[1] - 1 if relative else best[0] - best[1]) / of


def _from_rows(
    contrasts: Sequence[Contrast], metric: str, records: Records, relative: bool
) -> Difference | None:
    """The value alone: the cells' own intervals are over the same prompts.

    What they say of the difference depends on how far prompts move both cells alike, which only
    records tell; to take them as independent gives intervals several times too wide.
    """
    values = []
    for contrast in contrasts:
        left, right = _best(contrast.left, metric), _right(contrast, metric)
        if left is None or right is None:
            return None
        values.append(left / right - 1 if relative else left - right)
    sides = [row for contrast in contrasts for row in (*contrast.left, *contrast.right)]
    recorded = all(records.by_seed(row, metric) for row in sides)
    why = NOT_IN_TURN if recorded and metric in TIMED else NO_RECORDS
    return Difference(float(np.mean(values)), None, None, False, relative, why)


def _right(contrast: Contrast, metric: str) -> float | None:
    """The right side's value; None where some cell has none."""
    if contrast.weights is None:
        return _best(contrast.right, metric)
    cells = [_best((row,), metric) for row in contrast.right]
    known = [cell for cell in cells if cell is not None]
    return None if len(known) < len(cells) else float(np.dot(contrast.weights, known))


def _best(side: Sequence[Row], metric: str) -> float | None:
    """The best cell's value; None where some cell has no value."""
    if any(pd.isna(row.get(metric)) for row in side):
        return None
    return max(float(row[metric]) for row in side)


def picked(side: Sequence[Row], metric: str) -> str:
    """The best cell's tree, and of how many."""
    known = [row for row in side if not pd.isna(row.get(metric))]
    if not known:
        return "-"
    best = max(known, key=lambda row: float(row[metric]))
    many = f" (best of {len(side)})" if len(side) > 1 else ""
    return f"{best['decoder']} {best['spec']}{many}"
