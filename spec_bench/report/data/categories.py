"""A group's numbers by category of prompt: speed-up and tokens per target call.

Made of the records by prompt. A category's speed-up is a ratio of sums like that of the whole task,
over its own prompts, with the interval of those. Its tokens per target call are the block
efficiency, which Spec-Bench (Xia et al., arXiv:2401.07851) calls mean accepted tokens: the accepted
ones and the one that every call adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics.interval import Interval, limited
from spec_bench.metrics.intervals import rate_ratio_interval, ratio_interval
from spec_bench.report.data.counts import Counts, Records
from spec_bench.report.data.rows import Group, Row, interval_in, most_of, rows_of

TABLES = {
    "speedup": "speed-up over plain decoding of the same prompts",
    "block_efficiency": "tokens per target call (mean accepted tokens)",
}
OTHERS, UNKNOWN = "others", "no category"
_MOST = 24  # columns that a table has room for
SPEC_BENCH = "spec_bench"
"""The task whose categories are shown as Spec-Bench shows them: MT-bench's eight as one."""
MT_BENCH = "multi-turn conversation"
_OF_MT_BENCH = frozenset(
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
)
SUBTASKS = (MT_BENCH, "translation", "summarization", "qa", "math_reasoning", "rag")
"""The columns of Spec-Bench's table, in its order."""


@dataclass(frozen=True)
class Kind:
    """A category."""

    name: str  # as the task's rows have it
    prompts: tuple[str, ...]  # ids of its prompts


@dataclass(frozen=True)
class CellByCategory:
    """One cell's numbers."""

    row: Row  # the cell's
    # by category, over plain decoding of the same prompts, where it was timed in turn with them
    speedup: Mapping[str, Interval]
    tokens: Mapping[str, Interval]  # by category, tokens per target call, where there are records

    def of(self, column: str) -> Mapping[str, Interval]:
        """The numbers of one of ``TABLES``."""
        return self.speedup if column == "speedup" else self.tokens

    def overall(self, column: str) -> Interval | None:
        """The row's number, of all prompts; None where it has none."""
        return interval_in(self.row, column)


def kinds_of(group: Group, records: Records) -> list[Kind]:
    """The categories of a group's prompts in the task's order; none where no prompt has one.

    Of more than ``_MOST`` the largest, and the others as one.
    """
    categories: Mapping[str, str] = {}
    for row in rows_of(group.rows):  # the prompts of all cells are the same
        if row["status"] != "failed" and (categories := records.categories(row)):
            break
    if not any(categories.values()):
        return []
    if str(group.rows.iloc[0].task) == SPEC_BENCH:
        categories = {prompt: subtask(name) for prompt, name in categories.items()}
    counts = Counter(categories.values())
    kept = {name for name, _ in counts.most_common(_MOST)} if len(counts) > _MOST else set(counts)
    names: dict[str, list[str]] = {}
    for prompt, name in categories.items():
        names.setdefault((name or UNKNOWN) if name in kept else OTHERS, []).append(prompt)
    ordered = {name: place for place, name in enumerate(SUBTASKS) if name in names}
    if set(names) <= set(SUBTASKS) and str(group.rows.iloc[0].task) == SPEC_BENCH:
        return [Kind(name, tuple(names[name])) for name in ordered]
    last = sorted(names, key=lambda name: name in (UNKNOWN, OTHERS))
    return [Kind(name, tuple(names[name])) for name in last]


def subtask(category: str) -> str:
    """The column of Spec-Bench's table that a category of its questions belongs to."""
    return MT_BENCH if category in _OF_MT_BENCH else category


def overall_columns(group: Group, column: str) -> dict[str, str]:
    """Title -> column of the numbers of all prompts that stand behind those by category.

    Spec-Bench's table of speed-ups has its mean accepted tokens there, too.
    """
    overall = {"overall": column}
    if str(group.rows.iloc[0].task) == SPEC_BENCH and column == "speedup":
        return {"mean accepted tokens": "block_efficiency", **overall}
    return overall


def by_category(group: Group, kinds: Sequence[Kind], records: Records) -> list[CellByCategory]:
    """The numbers of all cells that have any, the baseline first."""
    rows = [row for row in rows_of(group.rows) if row["status"] != "failed"]
    bases = [row for row in rows if row["decoder"] == "ar"]
    cells = []
    for row in rows:
        speedups = {kind.name: _speedup(row, bases, kind.prompts, records) for kind in kinds}
        tokens = {kind.name: _tokens(row, kind.prompts, records) for kind in kinds}
        cells.append(CellByCategory(row, _known(speedups), _known(tokens)))
    return cells


def _known(intervals: Mapping[str, Interval | None]) -> dict[str, Interval]:
    return {name: each for name, each in intervals.items() if each is not None}


def _tokens(row: Row, prompts: Sequence[str], records: Records) -> Interval | None:
    runs = records.by_seed(row, "block_efficiency")
    if runs is None or not all(prompt in run for run in runs.values() for prompt in prompts):
        return None
    interval = ratio_interval(*_sums(runs, runs, prompts))
    return interval and limited("block_efficiency", interval, most_of(row))


def _speedup(
    row: Row, bases: Sequence[Row], prompts: Sequence[str], records: Records
) -> Interval | None:
    """Over the first baseline that was timed in turn with some of the prompts."""
    if row["decoder"] == "ar":
        return None
    for base in bases:
        ours, theirs = records.interleaved([row, base], "token_rate") or ({}, {})
        seeds = list(ours)
        known = [prompt for prompt in prompts if all(prompt in ours[seed] for seed in seeds)]
        if seeds and known:
            sums = *_sums(ours, seeds, known), *_sums(theirs, seeds, known)
            interval = rate_ratio_interval(*sums)
            return interval and limited("speedup", interval)
    return None


def _sums(
    runs: Mapping[str, Counts], seeds: Collection[str], prompts: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[seeds, prompts] numerators and denominators."""
    above, below = (
        np.array([[runs[seed][prompt][end] for prompt in prompts] for seed in seeds], float)
        for end in (0, 1)
    )
    return above, below
