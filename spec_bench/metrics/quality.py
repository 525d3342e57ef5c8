"""How good the texts are: BLEU, ROUGE-2, exact match, token F1, each with an interval.

What a score is, is in ``score``; short answers are in ``squad``, SQL in ``execution``, modules of
``evaluate`` in ``module_metric``.

Knows texts only; nothing about models, tasks or token ids. All scores are fractions in 0..1, as
the papers print them (sacrebleu's own scale is 0..100).

BLEU stays a corpus score in every resample of the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics.bootstrap import Statistic
from spec_bench.metrics.bounded import score_interval
from spec_bench.metrics.execution import ExecutionAccuracy, PassAt1, check_code, check_sql
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.metric import column_of
from spec_bench.metrics.module_metric import load_module
from spec_bench.metrics.score import MeanScore, OneColumn, References, Score, check_given
from spec_bench.metrics.squad import ExactMatch, TokenF1
from spec_bench.settings.registry import Registry


def _declare(name: str, kind: type[Score], **facts: Any) -> type[Score]:
    """Facts are those of the score's column, if another package brings it."""
    column_of(name, facts)
    return kind


SCORES: Registry[type[Score]] = Registry("score", "spec_bench.metrics", _declare)
"""Quality scores by the name of their first column: a task names those it is scored by."""


@SCORES("bleu")
class Bleu(OneColumn):
    """Corpus BLEU by sacrebleu with its default settings (13a, case kept, exp smoothing)."""

    name = "bleu"

    def score(self, predictions: Sequence[str], references: References) -> Interval:
        """BLEU / 100.

        Raises:
            ValueError: unequal lengths, or a prompt without a reference.
        """
        check_given(predictions, references, "bleu", may_be_empty=False)
        from sacrebleu.metrics.bleu import BLEU

        # effective_order concerns only the sentence's own score, which is not used: its counts are.
        counter = BLEU(effective_order=True)
        rows = []
        for prediction, golds in zip(predictions, references, strict=True):
            sentence = counter.sentence_score(prediction, list(golds))
            rows.append([*sentence.counts, *sentence.totals, sentence.sys_len, sentence.ref_len])
        corpus = score_interval(self.of_sums, np.asarray(rows, dtype=np.float64).T)
        assert corpus is not None, "a corpus of at least one prompt has a score"
        return replace(corpus, parts=tuple(map(tuple, rows)))

    @staticmethod
    def of_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """BLEU / 100 from summed statistics (10, batch): 4 matches, 4 totals, two lengths."""
        from sacrebleu.metrics.bleu import BLEU

        scores = np.empty(sums.shape[1])
        for index, column in enumerate(sums.T.astype(int).tolist()):
            score = BLEU.compute_bleu(
                column[:4], column[4:8], column[8], column[9], smooth_method="exp"
            )
            scores[index] = min(1.0, score.score / 100.0)  # 100.00000000000004 for equal texts
        return scores

    def signature(self, references: References) -> str:
        """Sacrebleu's own signature, with the number of references per prompt."""
        from sacrebleu.metrics.bleu import BLEU

        counts = {len(golds) for golds in references}
        scorer = BLEU()
        scorer.num_refs = counts.pop() if len(counts) == 1 else -1  # -1: varies, as sacrebleu says
        return f"sacrebleu {scorer.get_signature()}"


@SCORES("rouge2")
class Rouge2(MeanScore):
    """ROUGE-2 F1 by rouge-score, without stemming."""

    name = "rouge2"

    def __init__(self) -> None:
        from rouge_score.rouge_scorer import RougeScorer  # brings all of nltk along

        self._scorer = RougeScorer(["rouge2"], use_stemmer=False)

    def match(self, prediction: str, gold: str) -> float:
        """F1 of the bigrams."""
        return float(self._scorer.score(gold, prediction)["rouge2"].fmeasure)

    def signature(self, references: References) -> str:
        """Library version and settings."""
        return f"rouge-score rouge2 F1|stemmer:no|version:{version('rouge-score')}"


SCORES("exact_match")(ExactMatch)
SCORES("f1")(TokenF1)
SCORES.add("execution_accuracy", ExecutionAccuracy, ExecutionAccuracy.__module__)
SCORES.add("pass_at_1", PassAt1, PassAt1.__module__)


def check_score(name: str) -> None:
    """Makes sure that a score exists; for a module this means loading it.

    Raises:
        ValueError: neither a score of ours nor a module that can be loaded.
    """
    if name not in SCORES:
        load_module(name, tuple(SCORES))


def check_references(name: str, references: References) -> None:
    """Makes sure that these references can be scored against, if that can be known in advance.

    Raises:
        ValueError: SQL that does not run, or tests that are no Python.
    """
    if name == "execution_accuracy":
        check_sql(references)
    if name == "pass_at_1":
        check_code(references)


def quality_columns(
    name: str, predictions: Sequence[str], references: References
) -> tuple[dict[str, Interval], str]:
    """The columns of one score and its signature.

    Args:
        name: one of ``SCORES``, which is its first column, or a module (see ``module_metric``),
            whose columns are named after it: ``rouge_rouge2``.
        predictions: the answers.
        references: of each prompt.

    Raises:
        ValueError: as the score does.
    """
    if name in SCORES:
        score = SCORES[name]()
        return score.columns(predictions, references), score.signature(references)
    return load_module(name, tuple(SCORES)).score(predictions, references)


def score_of_sums(name: str, numbers: int) -> Statistic | None:
    """The score as a function of sums over prompts (numbers, batch).

    Args:
        name: a column; its score says how, if it can (``of_sums``).
        numbers: how many numbers of each prompt are summed.

    Returns:
        None if there are two: it is their ratio.

    Raises:
        ValueError: nothing says what the score is made of.
    """
    if numbers == 2:
        return None
    made = getattr(SCORES[name], "of_sums", None) if name in SCORES else None
    if made is None:
        raise ValueError(f"score {name}: nobody says how it is made of {numbers} numbers a prompt")
    return cast("Statistic", made)
