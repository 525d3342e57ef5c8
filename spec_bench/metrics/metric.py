"""Metrics: pure functions of one cell's records, each for the column of its name.

    @metric("draft_share", title="draft share", kind="time", interval=True,
            definition="s inside draft forward passes / s of decoding")
    def draft_share(generations):
        draft_s = tuple(g.draft_s for g in generations)
        return PromptSums(draft_s, tuple(g.decode_s for g in generations))

Our own columns are in ``columns.csv``, so their metrics give only the name. Another package names
the module with its metrics as an entry point of ``spec_bench.metrics``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import nan
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import ratio_interval
from spec_bench.metrics.resampling import sum_by_clock
from spec_bench.records.types import Generation
from spec_bench.settings.former import FormerMembers
from spec_bench.settings.registry import Registry
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.columns import Column


@dataclass(frozen=True)
class PromptSums(FormerMembers):
    """A ratio of sums with its terms by prompt, so that prompts can be resampled."""

    former_members: ClassVar = {"blocks": "to_arrays", "room": "largest_difference"}
    numerators: tuple[float, ...]  # one number per prompt
    denominators: tuple[float, ...]  # one number per prompt, in the same order
    # increasing function from the ratio to the metric's value; None if it is the ratio itself
    mapped: Callable[[float], float] | None = field(default=None, compare=False)
    # how often the prompts were measured; with several, all prompts of the first repeat come before
    # those of the second
    repeats: int = 1
    # smallest and largest possible ratio of a prompt; None if the records do not determine them
    limits: tuple[float, float] | None = None
    # each prompt's clock, if prompts share the seconds of a clock; else empty
    clocks: tuple[float, ...] = ()

    @property
    def largest_difference(self) -> float:
        """Largest possible difference of two prompts' ratios; NaN if it is not known."""
        return float(np.ptp(self.limits or nan))

    @property
    def value(self) -> float | None:
        """Sum of the numerators over sum of the denominators, mapped; None if the latter is 0."""
        denominator = sum(self.denominators)
        if not denominator:
            return None
        ratio = sum(self.numerators) / denominator
        return self.mapped(ratio) if self.mapped else ratio

    def to_arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Converts numerators and denominators to (repeats, prompts) each, or (repeats, clocks) if
        prompts share clocks.
        """
        table = np.array([self.numerators, self.denominators], float)
        numerators, denominators = sum_by_clock(table.reshape(2, self.repeats, -1), self.clocks)
        return numerators, denominators


@dataclass(frozen=True)
class CellRecords(FormerMembers):
    """Records of a cell and its baseline, from which all its metrics are computed."""

    former_members: ClassVar = {
        "again": "later_repeats",
        "baseline_again": "later_baseline_repeats",
    }
    generations: Sequence[Generation]  # the cell's, one per prompt, warm-up excluded
    # autoregressive generations of the same job and prompts, if there are any
    baseline: Sequence[Generation] | None = None
    texts: Mapping[str, str] | None = None  # prompt id -> decoded and post-processed text
    references: Mapping[str, Sequence[str]] | None = None  # prompt id -> reference texts
    # L, sequential draft calls per iteration, or their mean; 0 for plain decoding
    draft_calls: float | None = None
    # r = parameters(draft) / parameters(target); 0 if no model drafts
    parameter_ratio: float | None = None
    # the generations of every later repeat, one per prompt in the same order; their tokens are
    # those of the first repeat, only their times differ
    later_repeats: Sequence[Sequence[Generation]] = ()
    later_baseline_repeats: Sequence[Sequence[Generation]] = ()  # likewise the baseline's
    batched: bool = False  # whether a generation's seconds are its share of a batch's
    depth: int | None = None  # largest number of tree levels; None: the largest recorded

    @property
    def ids(self) -> list[str]:
        """Prompt ids, in the order of the generations."""
        return [generation.prompt_id for generation in self.generations]

    @property
    def clocks(self) -> tuple[float, ...]:
        """For each generation, a number that is equal for the generations of one batch, which share
        its seconds; empty if the cell is not batched.
        """
        generations = self.generations if self.batched else ()
        return tuple(
            round(generation.target_s / (generation.decode_s or 1.0), 9)
            for generation in generations
        )

    @property
    def repeats(self) -> tuple[Sequence[Generation], ...]:
        """The generations of every repeat, beginning with the first repeat."""
        return (self.generations, *self.later_repeats)

    @property
    def windows(self) -> list[Generation]:
        """All generations of all repeats."""
        return [generation for repeat in self.repeats for generation in repeat]


Summand = Callable[[Any], Any]
"""Function from a generation to its term of a sum, or None if that was not recorded; given
``GenerationArrays`` it returns an array."""
Number = PromptSums | Interval | float | int | str | None
"""Result of a metric; ``PromptSums`` get an interval, anything else is kept as it is."""


MEASURED_ANEW = ("time", "energy")
"""Kinds of columns that are measured in every repeat; all others come from the first repeat."""


def pool_repeats(numbers: Sequence[Number], clocks: tuple[float, ...] = ()) -> Number:
    """Pools the numbers of several repeats of the same prompts; None if a repeat has none.

    Ratios of sums are pooled to one over all repeats, whose prompts have these ``clocks``; plain
    numbers are averaged; of anything else the first repeat's is returned.
    """
    sums = [number for number in numbers if isinstance(number, PromptSums)]
    if any(number is None for number in numbers):
        return None
    if len(sums) == len(numbers):
        numerators = tuple(value for number in sums for value in number.numerators)
        denominators = tuple(value for number in sums for value in number.denominators)
        return PromptSums(numerators, denominators, sums[0].mapped, len(sums), clocks=clocks)
    plain_numbers = [number for number in numbers if isinstance(number, float | int)]
    return (
        sum(plain_numbers) / len(plain_numbers)
        if len(plain_numbers) == len(numbers)
        else numbers[0]
    )


@dataclass(frozen=True)
class Metric:
    """A registered metric."""

    column: Column  # the column that it fills
    function: Callable[[Any], Number]  # takes the generations, or `CellRecords` if `of_cell`
    of_cell: bool = False
    # numerator and denominator if it is a ratio of sums, also for ``arrays.GenerationArrays``;
    # None: unknown, (): it is no such ratio
    sums: Sequence[Summand] | None = None

    def compute(self, cell: CellRecords) -> Number:
        """Computes the cell's number: times and energies over all repeats, all else from one."""
        if self.of_cell:
            return self.function(cell)
        if self.column.kind not in MEASURED_ANEW:
            return self.function(cell.generations)
        return pool_repeats([self.function(repeat) for repeat in cell.repeats], cell.clocks)

    def value(self, cell: CellRecords) -> float | int | str | None:
        """Computes the cell's number without its interval."""
        number = self.compute(cell)
        return number.value if isinstance(number, PromptSums | Interval) else number


def get_or_register_column(name: str, facts: Mapping[str, Any]) -> Column:
    """Returns the column of this name: one of ours, or with ``facts`` another package's, which is
    registered. Raises UsageError if there is no such column, or its name is taken.
    """
    return columns.register_column(Column(name, **facts)) if facts else columns.get_column(name)


def _make_metric_and_column(
    name: str,
    function: Callable[[Any], Number],
    of_cell: bool = False,
    sums: Sequence[Summand] | None = None,
    **facts: Any,
) -> Metric:
    return Metric(get_or_register_column(name, facts), function, of_cell, sums)


metric: Registry[Metric] = Registry("metric", "spec_bench.metrics", _make_metric_and_column)
"""The metrics of records; scores of texts are in ``quality``."""


@lru_cache(maxsize=64)
def _cached_ratio_interval(sums: PromptSums) -> Interval | None:
    """Computes the interval of a ratio of sums; cached, as several numbers use the same ratio."""
    return ratio_interval(*sums.to_arrays(), sums.largest_difference)


def compute_interval(sums: PromptSums) -> Interval | None:
    """Computes the ratio with its interval, mapped; None if it has no value."""
    interval = _cached_ratio_interval(sums)
    return interval and clip_and_map_interval(sums, interval)


def clip_and_map_interval(sums: PromptSums, interval: Interval) -> Interval:
    """Clips a ratio's interval to its limits, then maps it."""
    clipped_interval = interval.clip(*(sums.limits or (None, None)))
    return clipped_interval.map(sums.mapped) if sums.mapped else clipped_interval


def ratio_of_sums(
    generations: Sequence[Generation],
    numerator: Summand,
    denominator: Summand,
) -> PromptSums | None:
    """Builds a ratio of sums over generations; None if a generation lacks a number."""
    pairs = [(numerator(generation), denominator(generation)) for generation in generations]
    known_pairs = [(float(a), float(b)) for a, b in pairs if a is not None and b is not None]
    if len(known_pairs) < len(pairs):
        return None
    return PromptSums(tuple(a for a, _ in known_pairs), tuple(b for _, b in known_pairs))


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None if there are none."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values) if known_values else None
