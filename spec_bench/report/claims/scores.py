"""A score and its direction: of perplexity less is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from spec_bench.report.claims.check import DOES_NOT_HOLD, HOLDS, WITHIN_NOISE, verdict_of
from spec_bench.report.claims.contrast import Contrast, Difference, difference
from spec_bench.report.claims.records import Records
from spec_bench.report.figures.relative import score_column
from spec_bench.report.load import Group, Row

NEAR = 0.05  # of a score in 0..1; of perplexity as a share


@dataclass(frozen=True)
class Score:
    """What texts are judged by.

    Attributes:
        name: its column.
        higher: whether more is better.
    """

    name: str
    higher: bool

    @property
    def title(self) -> str:
        """For people."""
        return self.name.replace("_", " ")

    @property
    def ahead(self) -> str:
        """The word for better."""
        return "above" if self.higher else "below"

    def verdict(self, found: Difference) -> str:
        """Of the claim that the left side is better."""
        if found.low is None or found.high is None or self.higher:
            return verdict_of(found.low, found.high)
        return verdict_of(-found.high, -found.low)

    def verdict_of_nearness(self, found: Difference) -> str:
        """Of the claim that both sides differ by at most ``NEAR``."""
        if found.low is None or found.high is None:
            return WITHIN_NOISE
        if found.low >= -NEAR and found.high <= NEAR:
            return HOLDS
        return DOES_NOT_HOLD if found.low > NEAR or found.high < -NEAR else WITHIN_NOISE

    def best(self, rows: Sequence[Row]) -> Row | None:
        """The best of these cells; None where none has the score."""
        known = [row for row in rows if not pd.isna(row.get(self.name))]
        if not known:
            return None
        return (max if self.higher else min)(known, key=lambda row: float(row[self.name]))

    def no_worse(self, row: Row, other: Row) -> bool:
        """Whether a cell is at least as good as another."""
        value = row.get(self.name)
        if value is None or pd.isna(value):
            return False
        return bool(value >= other[self.name] if self.higher else value <= other[self.name])


def scores_of(group: Group) -> list[Score]:
    """The task's own score, then perplexity, as far as they were measured."""
    found = []
    if (own := score_column(group.rows)) is not None:
        found.append(Score(own, higher=True))
    if "perplexity" in group.rows and group.rows.perplexity.notna().any():
        found.append(Score("perplexity", higher=False))
    return found


def one_by_one(contrasts: Sequence[Contrast], score: Score, records: Records) -> str:
    """How many of the contrasts are ahead or behind beyond their own intervals."""
    if len(contrasts) < 2:
        return ""
    found = [difference([[contrast]], score.name, records) for contrast in contrasts]
    verdicts = [score.verdict(each) for each in found if each is not None]
    return (
        f"; one by one {verdicts.count(HOLDS)} ahead, {verdicts.count(DOES_NOT_HOLD)} behind, "
        "the rest within noise"
    )
