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

    def _compute(
        self,
        predictions: list[str],
        references: list[Any],
        use_stemmer: bool = False,
        use_aggregator: bool = True,
    ) -> dict[str, Any]:
        scorer = RougeScorer(list(TYPES), use_stemmer=use_stemmer)
        scores: dict[str, Any] = {name: [] for name in TYPES}
        for prediction, gold in zip(predictions, references, strict=True):
            golds = [gold] if isinstance(gold, str) else list(gold)
            best = scorer.score_multi(golds, prediction)
            for name in TYPES:
                scores[name].append(best[name].fmeasure)
        if use_aggregator:
            scores = {name: sum(values) / len(values) for name, values in scores.items()}
        stemmer = "yes" if use_stemmer else "no"
        scores["signature"] = f"rouge-score F1|stemmer:{stemmer}|version:{version('rouge-score')}"
        return scores
