"""Corpus BLEU as an ``evaluate`` module, keys and scale as the hub's module of this name has them.

``evaluate`` copies this file out of the package before loading it, so it imports nothing of ours.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import datasets
import evaluate
from sacrebleu.metrics.bleu import BLEU


class Sacrebleu(evaluate.Metric):
    """BLEU by sacrebleu, 0..100. Prompts may have different numbers of references."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="Corpus BLEU by sacrebleu.",
            citation="Post, 2018: A Call for Clarity in Reporting BLEU Scores (W18-6319)",
            inputs_description="predictions: texts; references: texts, or lists of texts.",
            features=[
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
                datasets.Features({"predictions": text, "references": text}),
            ],
        )

    def _compute(self, predictions: list[str], references: list[Any]) -> dict[str, Any]:
        golds = [[gold] if isinstance(gold, str) else list(gold) for gold in references]
        scorer = BLEU()
        # One stream per reference; None if a prompt has fewer.
        corpus = scorer.corpus_score(predictions, [list(s) for s in zip_longest(*golds)])
        names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
        values = {name: getattr(corpus, name) for name in names}
        return {**values, "signature": str(scorer.get_signature())}
