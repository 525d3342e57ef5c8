"""What a score of texts is: predictions against references in, columns with intervals out.

A score turns each prompt into a few numbers whose sums over prompts determine the score, so that
the interval comes from resampling prompts. Knows texts only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import mean_interval

References = Sequence[Sequence[str]]


class Score(Protocol):
    """What ``SCORES`` holds. Modules of ``evaluate`` are in ``module_metric.py``."""

    def score(self, predictions: Sequence[str], references: References) -> Interval:
        """Scores predictions against the references of the same prompt (several allowed)."""

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """The score and its companions, under the names of their columns."""

    def signature(self, references: References) -> str:
        """Implementation, version and settings, for the record."""


class OneColumn(ABC):
    """A score that is one number."""

    name: str

    @abstractmethod
    def score(self, predictions: Sequence[str], references: References) -> Interval:
        """Scores predictions against the references of the same prompt."""

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """The score under its name."""
        return {self.name: self.score(predictions, references)}


class MeanScore(OneColumn):
    """A score that is the mean over prompts of the best match among the references."""

    empty_references = False

    @abstractmethod
    def match(self, prediction: str, gold: str) -> float:
        """How well a prediction matches one reference, 0..1."""

    def score(self, predictions: Sequence[str], references: References) -> Interval:
        """Mean over prompts, 0..1.

        Raises:
            ValueError: unequal lengths, or a prompt without a reference where one is needed.
        """
        check_given(predictions, references, self.name, self.empty_references)
        best = [
            max(self.match(prediction, gold) for gold in (golds or [""]))
            for prediction, golds in zip(predictions, references, strict=True)
        ]
        return mean_interval(best)


def check_given(
    predictions: Sequence[str], references: References, name: str, may_be_empty: bool
) -> None:
    """Makes sure that there are references for every prediction.

    Raises:
        ValueError: unequal lengths, references that are one text, or a prompt without any where
            one is needed.
    """
    if len(predictions) != len(references):
        raise ValueError(
            f"{name}: {len(predictions)} predictions but references for {len(references)} prompts"
        )
    for index, golds in enumerate(references):
        if isinstance(golds, str):
            raise ValueError(f"{name}: references of prompt {index} must be a list, got a string")
        if not golds and not may_be_empty:
            raise ValueError(f"{name}: prompt {index} has no reference")
