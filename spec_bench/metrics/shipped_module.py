"""``sacrebleu`` and ``rouge`` as an ``evaluate`` module that works without a network, with the keys
and scales of the hub's modules of these names.

``evaluate`` copies this file out of the package before loading it, so it imports nothing of ours.
"""

from importlib.metadata import version
from itertools import zip_longest
from typing import Any

import datasets
import evaluate

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Shipped(evaluate.Metric):
    """The score that the configuration names; a prompt may have one reference or several."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="Corpus BLEU by sacrebleu, or ROUGE F1 by rouge-score.",
            citation="Post, 2018 (W18-6319); Lin, 2004 (W04-1013)",
            inputs_description="predictions: texts; references: texts, or lists of texts.",
            features=[
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
                datasets.Features({"predictions": text, "references": text}),
            ],
        )

    def _compute(self, predictions: list[str], references: list[Any]) -> dict[str, Any]:
        golds = [[gold] if isinstance(gold, str) else list(gold) for gold in references]
        return {"rouge": rouge, "sacrebleu": sacrebleu}[self.config_name](predictions, golds)


def rouge(predictions: list[str], golds: list[list[str]]) -> dict[str, Any]:
    """F1 of ROUGE-1, -2, -L and -Lsum by rouge-score, 0..1; of several references the best."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(TYPES))
    best = [scorer.score_multi(*each) for each in zip(golds, predictions, strict=True)]
    scores = {name: sum(b[name].fmeasure for b in best) / len(best) for name in TYPES}
    return {**scores, "signature": f"rouge-score F1|version:{version('rouge-score')}"}


def sacrebleu(predictions: list[str], golds: list[list[str]]) -> dict[str, Any]:
    """BLEU by sacrebleu, 0..100. Prompts may have different numbers of references."""
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU()
    # One stream per reference; None if a prompt has fewer.
    corpus = scorer.corpus_score(predictions, [list(s) for s in zip_longest(*golds)])
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    values = {name: getattr(corpus, name) for name in names}
    return {**values, "signature": str(scorer.get_signature())}
