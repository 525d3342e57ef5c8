"""The evidence for a claim: the fields that its ``evidence`` may name in braces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import Any

import pandas as pd

from spec_bench.report.claims.contrast import Contrast, difference, picked
from spec_bench.report.claims.difference import Difference
from spec_bench.report.claims.select import Scope
from spec_bench.report.claims.verdict import DOES_NOT_HOLD, HOLDS, Odds, verdicts_of
from spec_bench.report.data.rows import Group
from spec_bench.report.papers.claim import Claim, Side
from spec_bench.vocabulary.columns import COLUMNS

_PICKED = "each tree picked on one half of the prompts and compared on the other"


def less_is_better(metric: str) -> bool:
    """Whether a column gets better downwards; of a score that is not listed more is better."""
    return any(column.name == metric and column.better == "down" for column in COLUMNS)


@dataclass(frozen=True)
class Evidence:
    """The comparison for a claim on one task or on all tasks together.

    Properties are fields of texts; a part of the evidence whose field is None is left out.

    Attributes:
        claim: the claim.
        scope: source of its cells.
        group: the cells of one task, the first one where all tasks are pooled.
        sides: left and right.
        column: the metric.
        label: values of the keys in the claim's ``each``.
        contrasts: the comparisons, at least one.
        left_out: number of left cells without a right one, or None.
        tasks: how many tasks are pooled.
        gap: the mean difference; None for counts.
        by_place: differences by place, where each is judged.
        judged: the odds of those that are judged.
        setting: settings of pooled runs that other runs of the same tasks lack; "" without others.
    """

    claim: Claim
    scope: Scope
    group: Group
    sides: tuple[Side, Side]
    column: str
    label: tuple[Any, ...]
    contrasts: tuple[Contrast, ...]
    left_out: int | None = None
    tasks: int = 1
    gap: Difference | None = None
    by_place: Mapping[Any, Difference] | None = None
    judged: tuple[Odds, ...] = ()
    setting: str = ""

    def of(self, contrast: Contrast) -> Difference | None:
        """The difference of one contrast alone."""
        return difference([[contrast]], self.column, self.scope.records)

    @property
    def expects_less(self) -> bool:
        """Whether the claim expects the left side to have the smaller number."""
        if self.claim.expect == "ahead":
            return less_is_better(self.column)
        return self.claim.expect == "less"

    @property
    def found(self) -> str:
        """The mean difference with its interval."""
        return str(self.gap)

    @property
    def n(self) -> int:
        """The number of contrasts."""
        return len(self.contrasts)

    @property
    def many(self) -> int | None:
        """The same where there are several."""
        return self.n if self.n > 1 else None

    @cached_property
    def _single(self) -> list[Difference]:
        """The difference of each contrast alone."""
        return [gap for each in self.contrasts if (gap := self.of(each)) is not None]

    def _count(self, verdict: str) -> int | None:
        """The number of contrasts on one task with a verdict, judged one by one but together."""
        if self.n < 2 or self.tasks > 1:
            return None
        odds = [gap.below() if self.expects_less else gap.above() for gap in self._single]
        known = [each for each in odds if each is not None]
        return verdicts_of(known).count(verdict) if len(known) == len(odds) else None

    @property
    def won(self) -> str | None:
        """At how many of the judged places the claim holds; None where places are not judged."""
        won = verdicts_of(self.judged).count(HOLDS)
        return f"{won} of {len(self.judged)}" if self.judged else None

    @property
    def for_it(self) -> int | None:
        """Contrasts that hold on their own."""
        return self._count(HOLDS)

    @property
    def against_it(self) -> int | None:
        """Contrasts that do not hold on their own."""
        return self._count(DOES_NOT_HOLD)

    @property
    def best(self) -> str | None:
        """The best tree of each side, where there is one contrast on one task."""
        if self.n > 1 or self.tasks > 1:
            return None
        both = (self.contrasts[0].left, self.contrasts[0].right)
        return " against ".join(picked(side, self.column) for side in both)

    @property
    def picked(self) -> str | None:
        """The method of picking trees, where some were picked and there are intervals."""
        if not any(contrast.picks for contrast in self.contrasts):
            return None
        gaps = list(self.by_place.values()) if self.by_place else [self.gap]
        return _PICKED if all(gap is not None and gap.paired for gap in gaps) else None

    @property
    def singles(self) -> str | None:
        """Every left tree against every right one, where the best ones were picked."""
        if not self.contrasts[0].picks:
            return None
        pairs = product(self.contrasts[0].left, self.contrasts[0].right)
        return "; ".join(
            f"{left['spec']} against {right['spec']} {self.of(Contrast((left,), (right,)))}"
            for left, right in pairs
        )

    @property
    def specs(self) -> str:
        """The trees on the left."""
        return ", ".join(dict.fromkeys(str(each.left[0]["spec"]) for each in self.contrasts))

    @property
    def first(self) -> str:
        """The tree that the first step starts from."""
        return str(self.contrasts[0].right[0]["spec"])

    @property
    def last(self) -> str:
        """The tree that the last step leads to."""
        return str(self.contrasts[-1].left[0]["spec"])

    @property
    def steps(self) -> str:
        """Each step with its difference."""
        return ", ".join(
            f"{step.right[0]['spec']} to {step.left[0]['spec']} {gap}"
            for step in self.contrasts
            if (gap := self.of(step)) is not None
        )

    @property
    def places(self) -> str:
        """Differences by place; by the last key of ``same`` where none is judged."""
        gaps: Mapping[Any, Difference | None] | None = self.by_place
        if gaps is None:
            key = self.claim.same[-1]
            gaps = {self.scope.value(each.left[0], key): self.of(each) for each in self.contrasts}
        return ", ".join(f"{place}: {gap}" for place, gap in gaps.items())

    @property
    def factors(self) -> str:
        """The smallest and the largest factor of a contrast on its own."""
        values = [1 + gap.value for gap in self._single]
        return f"{min(values):.2f} to {max(values):.2f}"

    @property
    def left_along(self) -> str:
        """The left side's value of the claim's ``along``."""
        return _written(self.scope.value(self.contrasts[0].left[0], self.claim.key))

    @property
    def right_along(self) -> str:
        """The right side's value of it."""
        return _written(self.scope.value(self.contrasts[0].right[0], self.claim.key))

    @property
    def values(self) -> str:
        """The number at each place of the line that the contrast is an end of."""
        of, same = self.scope, self.claim.same
        line = of.values(self.contrasts[0].left[0], same)
        cells = of.side(self.claim, self.group, self.sides[0])
        members = [row for row in cells if of.values(row, same) == line]
        places = sorted((of.value(row, self.claim.key), row[self.column]) for row in members)
        return ", ".join(f"{_written(place)}: {value:.0f}" for place, value in places)

    @property
    def nearness(self) -> float:
        """The largest difference of equal sides: a number, or a share of the left side's mean."""
        within = self.claim.within
        if isinstance(within, str):
            values = [float(contrast.left[0][self.column]) for contrast in self.contrasts]
            return float(within.removesuffix("%")) / 100 * fmean(values)
        return float(within or 0.0)

    @cached_property
    def counts(self) -> list[tuple[str, float, float]]:
        """The tree and both sides' counts of each contrast where they are known."""
        counts = []
        for contrast in self.contrasts:
            left, right = contrast.left[0], contrast.right[0]
            against = self.claim.against
            other = self.scope.value(left, against) if against else right.get(self.column)
            ours = left.get(self.column)
            if ours is not None and other is not None and not pd.isna([ours, other]).any():
                counts.append((str(left["spec"]), float(ours), float(other)))
        return counts

    @property
    def shares(self) -> str:
        """By how much less the left counts are, tree by tree."""
        return ", ".join(f"{spec} {1 - left / right:.0%}" for spec, left, right in self.counts)

    @property
    def count(self) -> float:
        """The left side's count."""
        return self.counts[0][1]

    @property
    def other_count(self) -> float:
        """The right side's count."""
        return self.counts[0][2]

    @property
    def fewer(self) -> float:
        """By which share the left side's count is smaller."""
        return 1 - self.count / self.other_count

    @property
    def mib(self) -> str:
        """Both sides' bytes, and how much more the left side's are."""
        left, right = self.count / 2**20, self.other_count / 2**20
        return f"{left:.2f} MiB against {right:.2f} MiB, {-self.fewer:+.1%}"


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
