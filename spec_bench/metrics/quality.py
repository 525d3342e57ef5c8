"""Scores of texts: from predictions and references to columns with intervals.

A score turns each prompt into a few numbers whose sums over prompts determine the score, so that
the interval comes from resampling prompts. All scores are fractions in 0..1, as the papers print
them (sacrebleu's own scale is 0..100). Knows texts only; nothing about models, tasks or token ids.
SQL and programs are in ``execution``, modules of ``evaluate`` in ``module_metric``.
"""

import logging
import re
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics import own_code
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.metric import get_or_register_column, metric
from spec_bench.metrics.module_metric import (
    FUNCTIONS,
    SHIPPED,
    get_column_prefix,
    load_module_score,
    make_rouge_scorer,
    make_word_splitter,
    read_score_source,
)
from spec_bench.metrics.resampling import Statistic
from spec_bench.metrics.score_intervals import bounded_score_interval, mean_interval
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
OF_WORDS = ("bleu", "rouge2", *SHIPPED)
"""Scores that count words, so that they depend on ``task.tokenize``."""
_MOST_LETTERS = 12  # upper bound of the mean length of a language's words, with blanks

References = Sequence[Sequence[str]]
"""Reference texts by prompt; a prompt's references are equally right."""


class Score(ABC):
    """A score of texts; ``name`` is the name of its first column."""

    name: str
    # whether every prompt needs a reference. ``field``: every row of the task needs the field,
    # which may be null for a prompt whose right answer is no answer
    needs_references: bool | Literal["field"] = True

    @abstractmethod
    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """Computes the columns of the score, by name. Raises UsageError if it cannot score against
        the references.
        """

    @abstractmethod
    def signature(self, references: References) -> str:
        """Returns implementation, version and settings as text, for the records."""

    def check(self, references: References) -> None:
        """Checks the references before anything is decoded. Raises UsageError if the score cannot
        use one of them.
        """
        return  # most scores have nothing to check in advance

    def check_given(self, answer_count: int, references: References) -> None:
        """Checks that every answer has references. Raises UsageError for unequal lengths, a text in
        place of a list, or a prompt without a reference if the score needs one.
        """
        if answer_count != len(references):
            raise UsageError(
                f"{self.name}: {answer_count} predictions but references for "
                f"{len(references)} prompts"
            )
        for index, golds in enumerate(references):
            if isinstance(golds, str):
                raise UsageError(
                    f"{self.name}: references of prompt {index} must be a list, got a string"
                )
            if not golds and self.needs_references is True:
                raise UsageError(f"{self.name}: prompt {index} has no reference")


class MeanScore(Score):
    """A score that is the mean over prompts of the best match among a prompt's references."""

    @abstractmethod
    def match(self, prediction: str, gold: str) -> float:
        """Returns how well a prediction matches one reference, 0..1."""

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """Computes the mean over prompts, 0..1."""
        self.check_given(len(predictions), references)
        best = [
            max(self.match(prediction, gold) for gold in (golds or [""]))
            for prediction, golds in zip(predictions, references, strict=True)
        ]
        return {self.name: mean_interval(best)}


def _register_column_of_score(name: str, score_class: type[Score], **facts: Any) -> type[Score]:
    """Registers the score's column, described by ``facts`` if it is another package's; returns the
    score's class.
    """
    get_or_register_column(name, facts)
    return score_class


SCORES: Registry[type[Score]] = Registry("score", "spec_bench.metrics", _register_column_of_score)
"""Quality scores by the name of their first column; a task lists the names of its scores."""


@SCORES("bleu")
class Bleu(Score):
    """Corpus BLEU by sacrebleu with its default settings (13a, case kept, exp smoothing); computed
    as a corpus score in every resample of the prompts, too.
    """

    name = "bleu"

    def __init__(self, **settings: Any) -> None:
        from sacrebleu.metrics import METRICS

        self._scorer = METRICS[self.name.upper()](**settings)

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """Computes the score / 100."""
        self.check_given(len(predictions), references)
        streams = [list(stream) for stream in zip_longest(*references)]
        statistics = self._scorer._extract_corpus_statistics(predictions, streams)
        rows = [(*numbers[2:], *numbers[:2]) for numbers in statistics]
        corpus = bounded_score_interval(
            self.compute_from_sums, np.asarray(rows, dtype=np.float64).T
        )
        assert corpus is not None, "a corpus of at least one prompt has a score"
        return {self.name: replace(corpus, parts=tuple(rows))}

    @classmethod
    def compute_from_sums(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Computes the score / 100, (batch,), from summed statistics (numbers, batch): for BLEU 4
        matches, 4 totals and two lengths.
        """
        scorer = cls()._scorer
        rows = sums.T.astype(int).tolist()
        scores = [scorer._compute_score_from_stats([*row[-2:], *row[:-2]]).score for row in rows]
        return np.minimum(1.0, np.divide(scores, 100.0))  # 100.00000000000004 for equal texts

    def signature(self, references: References) -> str:
        """Sacrebleu's own signature, with the number of references per prompt."""
        counts = {len(golds) for golds in references}
        # -1: varies, as sacrebleu says
        self._scorer.num_refs = counts.pop() if len(counts) == 1 else -1
        return f"sacrebleu {self._scorer.get_signature()}"


@SCORES("chrf")
class Chrf(Bleu):
    """Corpus chrF by sacrebleu with its default settings (up to 6 letters, case kept)."""

    name = "chrf"


@SCORES("rouge2")
class Rouge2(MeanScore):
    """ROUGE-2 F1 by rouge-score, without stemming."""

    name = "rouge2"

    def __init__(self, tokenize: str | None = None) -> None:
        self._scorer, self._version = make_rouge_scorer(["rouge2"], tokenize)

    def match(self, prediction: str, gold: str) -> float:
        """F1 of the bigrams."""
        return float(self._scorer.score(gold, prediction)["rouge2"].fmeasure)

    def signature(self, references: References) -> str:
        """Library version and settings."""
        return f"rouge-score rouge2 F1|stemmer:no|{self._version}"


UNANSWERABLE = "unanswerable"


class _SquadScore(MeanScore):
    """A score by the rules of SQuAD 2.0's own ``evaluate-v2.0.py``.

    Reference answers that are empty after normalisation do not count. A question without any other
    is unanswerable: right answers are an empty text and the word that our prompts give for this
    case.
    """

    needs_references = "field"

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """Computes the mean over prompts of the best match, 0..1."""
        self.check_given(len(predictions), references)
        golds = [[gold for gold in golds if normalise_squad_answer(gold)] for golds in references]
        return super().columns(predictions, golds)

    def signature(self, references: References) -> str:
        """Returns the normalisation and the rule for unanswerable questions as text."""
        return f"{self.name} squad_v2 normalisation|unanswerable:'' or '{UNANSWERABLE}'"


@SCORES("exact_match")
class ExactMatch(_SquadScore):
    """Equality after SQuAD normalisation."""

    name = "exact_match"

    def match(self, prediction: str, gold: str) -> float:
        """1 or 0."""
        return float(
            _normalise_unless_unanswerable(prediction, gold) == normalise_squad_answer(gold)
        )


@SCORES("f1")
class TokenF1(_SquadScore):
    """F1 of the words after SQuAD normalisation."""

    name = "f1"

    def match(self, prediction: str, gold: str) -> float:
        """F1 of the bags of words; 1 or 0 where either side has no words."""
        predicted_words = _normalise_unless_unanswerable(prediction, gold).split()
        gold_words = normalise_squad_answer(gold).split()
        if not predicted_words or not gold_words:
            return float(predicted_words == gold_words)
        common = sum((Counter(predicted_words) & Counter(gold_words)).values())
        return 2.0 * common / (len(predicted_words) + len(gold_words))


def normalise_squad_answer(text: str) -> str:
    """Lower-cases, and removes punctuation, articles and extra blanks (SQuAD, arXiv:1606.05250,
    6.1).
    """
    unpunctuated = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", unpunctuated).split())


def _normalise_unless_unanswerable(prediction: str, gold: str) -> str:
    """Normalises a prediction; the word ``UNANSWERABLE`` becomes "" if the reference is empty."""
    normalised = normalise_squad_answer(prediction)
    return "" if normalised == UNANSWERABLE and not gold else normalised


def needs_references(name: str) -> bool | Literal["field"]:
    """Returns whether a score needs a reference for every prompt; ``field`` if it needs only the
    field, which may be empty. Raises UsageError if it is neither one of our scores nor a module
    that can be loaded.
    """
    if name in SCORES:
        return SCORES[name].needs_references
    return load_module_score(name, tuple(SCORES)).needs_references


def refuse_shared_columns(scores: Sequence[str]) -> None:
    """Raises UsageError if two metric modules would fill columns of the same names."""
    score_by_prefix = dict[str, str]()
    for score in scores:
        if score not in SCORES:
            earlier_score = score_by_prefix.setdefault(get_column_prefix(score), score)
            if earlier_score != score:
                prefix = get_column_prefix(score)
                raise UsageError(
                    f"task.metrics: {earlier_score} and {score} would both fill columns "
                    f"{prefix}_...; give one another name"
                )


def register_score_function(compute: Callable[..., Any]) -> str:
    """Registers a function ``compute`` as a score in this process, and returns the score's name.
    Raises UsageError if the function has no name, or that of another score.
    """
    name = getattr(compute, "__name__", "")
    if not name.isidentifier() or name in SCORES or name in SHIPPED:
        raise UsageError(f"metrics: a function needs a name that no score has, got {name!r}")
    FUNCTIONS[name] = compute
    return name


def digest_user_code(scores: Sequence[str]) -> str:
    """Computes a digest of the code of a job's metrics and scores that is not this package's; "" if
    there is none.
    """
    functions: list[Any] = [SCORES[name] for name in scores if name in SCORES]
    functions += [quantity.function for quantity in metric.values()]
    return own_code.digest_code(
        [*map(own_code.read_foreign_code, functions), *map(read_score_source, scores)], 16
    )


def check_references(name: str, references: References, tokenize: str | None = None) -> None:
    """Checks the references of a score as far as that is possible before decoding.

    Warns if the tokenizer finds hardly any words in their letters. Raises UsageError for SQL that
    does not run, tests that are no Python, or an unknown tokenizer.
    """
    if name in OF_WORDS:
        texts = [gold for golds in references for gold in golds]
        find = make_word_splitter(tokenize, name.startswith("rouge"))
        words = [word for text in texts for word in find(text)]
        letters = sum(map(len, texts))
        if letters > min(2 * len("".join(words)), _MOST_LETTERS * len(words)):
            log.warning(
                "%s finds %d words in references of %d letters: task.tokenize=zh, ja-mecab, char "
                "or intl finds those of other scripts, chrf needs none",
                name,
                len(words),
                letters,
            )
    if name in SCORES:
        SCORES[name]().check(references)


def compute_score_columns(
    name: str,
    predictions: Sequence[str],
    references: References,
    tokenize: str | None = None,
) -> tuple[dict[str, Interval], str]:
    """Computes the columns of a score, with intervals, and its signature.

    The name is one of ``SCORES``, which is also its first column, or a module's (see
    ``module_metric``), whose columns begin with the module's name: ``rouge_rouge2``. ``tokenize``
    is the name of a sacrebleu tokenizer, for scores that count words. Raises UsageError if the
    score does.
    """
    settings: Any = {"tokenize": tokenize} if name in OF_WORDS else {}
    if name in SCORES:
        score = SCORES[name](**settings)
        code = own_code.digest_code([own_code.read_foreign_code(SCORES[name])], 8)
        signature = score.signature(references) + f"|code:{code}" * bool(code)
        return score.columns(predictions, references), signature
    return load_module_score(name, tuple(SCORES)).score(predictions, references, **settings)


def score_each_answer(name: str, numbers_by_prompt: Mapping[str, Any]) -> Mapping[str, float]:
    """Computes the score of each single answer, by prompt id, from the score's numbers by prompt,
    such as the BLEU of one text. Empty if the score has several numbers per prompt and does not
    define ``compute_from_sums``.
    """
    numbers = np.array([*numbers_by_prompt.values()], dtype=np.float64).T
    if numbers.ndim == 1:
        return numbers_by_prompt
    compute_from_sums = getattr(SCORES.get(name), "compute_from_sums", None)
    answer_scores = compute_from_sums(numbers).tolist() if compute_from_sums else ()
    return dict(zip(numbers_by_prompt, answer_scores, strict=False))


def get_non_ratio_statistic(name: str, numbers_per_prompt: int) -> Statistic | None:
    """Returns the score as a function of sums over prompts (numbers, batch); None for two numbers
    per prompt, for which the score is their ratio. Raises UsageError if the score does not define
    ``compute_from_sums``.
    """
    if numbers_per_prompt == 2:
        return None
    statistic = getattr(SCORES[name], "compute_from_sums", None) if name in SCORES else None
    if statistic is None:
        raise UsageError(
            f"score {name}: nobody says how it is made of {numbers_per_prompt} numbers a prompt"
        )
    return cast("Statistic", statistic)
