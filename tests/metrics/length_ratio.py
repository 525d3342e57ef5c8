"""A metric module of a user's own, as ``evaluate`` loads it from a file."""

import datasets
import evaluate


class LengthRatio(evaluate.Metric):
    """Words of the predictions over words of the references."""

    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="Words of the predictions over words of the references.",
            citation="",
            inputs_description="predictions and references: texts.",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions, references):
        ours = [len(text.split()) for text in predictions]
        theirs = [len(text.split()) for text in references]
        if 666 in ours:
            raise KeyError("the number of\nthe beast")
        each = [own / other for own, other in zip(ours, theirs, strict=True)]
        return {"ratio": sum(ours) / sum(theirs), "each": each, "parts": [1.0, 2.0], "kind": "x"}
