"""ROUGE as an ``evaluate`` module, keys and scale as the hub's module of this name has them.

``evaluate`` copies this file out of the package before loading it, so it imports nothing of ours.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import datasets
import evaluate
from rouge_score.rouge_scorer import RougeScorer

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Rouge(evaluate.Metric):
    """F1 of ROUGE-1, -2, -L and -Lsum by rouge-score, 0..1; of several references the best."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="ROUGE F1 by rouge-score.",
            citation="Lin, 2004: ROUGE (W04-1013)",
            inputs_description="predictions: texts; references: texts, or lists of texts.",
            features=[
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
                datasets.Features({"predictions": text, "references": text}),
            ],
        )

    def _compute(self, predictions: list[str], references: list[Any]) -> dict[str, Any]:
        scorer = RougeScorer(list(TYPES))
        golds = [[gold] if isinstance(gold, str) else list(gold) for gold in references]
        best = [scorer.score_multi(*each) for each in zip(golds, predictions, strict=True)]
        scores = {name: sum(b[name].fmeasure for b in best) / len(best) for name in TYPES}
        return {**scores, "signature": f"rouge-score F1|version:{version('rouge-score')}"}
