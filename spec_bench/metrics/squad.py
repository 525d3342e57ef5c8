"""Short answers by the rules of SQuAD 2.0: exact match and F1 of words, unanswerable included."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.score import MeanScore, References, check_given

UNANSWERABLE = "unanswerable"


class _AnswerMetric(MeanScore):
    """A score by the rules of SQuAD 2.0's own ``evaluate-v2.0.py``.

    Gold answers that normalisation empties do not count; a question left without one is
    unanswerable, and the right answer is none: an empty text, or the word that our prompts teach.
    """

    empty_references = True

    def score(self, predictions: Sequence[str], references: References) -> Interval:
        """Mean over prompts of the best match, 0..1.

        Raises:
            ValueError: unequal lengths.
        """
        check_given(predictions, references, self.name, may_be_empty=True)
        golds = [[gold for gold in golds if normalise(gold)] for golds in references]
        return super().score(predictions, golds)


class ExactMatch(_AnswerMetric):
    """Equality after SQuAD normalisation."""

    name = "exact_match"

    def match(self, prediction: str, gold: str) -> float:
        """1 or 0."""
        return float(_answer(prediction, gold) == normalise(gold))

    def signature(self, references: References) -> str:
        """The rules in short."""
        return f"exact_match squad_v2 normalisation|unanswerable:'' or '{UNANSWERABLE}'"


class TokenF1(_AnswerMetric):
    """F1 of the words after SQuAD normalisation."""

    name = "f1"

    def match(self, prediction: str, gold: str) -> float:
        """F1 of the bags of words; 1 or 0 where either side has no words."""
        ours, theirs = _answer(prediction, gold).split(), normalise(gold).split()
        if not ours or not theirs:
            return float(ours == theirs)
        common = sum((Counter(ours) & Counter(theirs)).values())
        return 2.0 * common / (len(ours) + len(theirs))

    def signature(self, references: References) -> str:
        """The rules in short."""
        return f"f1 squad_v2 normalisation|unanswerable:'' or '{UNANSWERABLE}'"


def normalise(text: str) -> str:
    """Lower case, no punctuation, articles or extra blanks (SQuAD, arXiv:1606.05250, 6.1)."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _answer(prediction: str, gold: str) -> str:
    """The normalised prediction; if there is no answer, the word that says so is made empty."""
    plain = normalise(prediction)
    return "" if plain == UNANSWERABLE and not gold else plain
