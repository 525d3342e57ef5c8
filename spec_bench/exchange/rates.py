"""Spec-Bench's numbers of answer files: means of per-question rates.

Its ``speed.py`` takes the mean over questions of tokens / s, divides it by that of the baseline,
whose tokens it counts by putting the answer's text through a tokenizer again, and the mean over
all target calls of the tokens that each brought. Ours are ratios of sums over the same questions
with the tokens that were counted when they were made. Both are shown, each under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spec_bench.exchange.read import Answer, AnswerFile
from spec_bench.report.data.categories import SUBTASKS, subtask

Recount = Callable[[str], int]
"""Tokens of a text, without the one that begins it."""
OVERALL = "overall"


@dataclass(frozen=True)
class Rates:
    """One subtask in both definitions.

    Attributes:
        name: of the subtask.
        questions: how many.
        theirs: mean of per-question rates over that of the baseline; its tokens counted again
            where there is a tokenizer. None where the baseline has none of the questions.
        ours: ratio of sums over ratio of sums.
        tokens: tokens per target call, of all calls in a row: both harnesses agree in it.
    """

    name: str
    questions: int
    theirs: float | None
    ours: float | None
    tokens: float


def rates(file: AnswerFile, baseline: AnswerFile, recount: Recount | None) -> list[Rates]:
    """The subtasks in Spec-Bench's order, those that it does not have by category, then overall.
    ``recount`` counts the baseline's tokens from its texts; None: as they were counted.
    """
    names = dict.fromkeys(subtask(each.category) for each in file.answers)
    order = [
        *(name for name in SUBTASKS if name in names),
        *(n for n in names if n not in SUBTASKS),
    ]
    shown = [name for name in order if name]
    parts = [(name, _of(file, name), _of(baseline, name)) for name in shown]
    return [_rates(*part, recount) for part in (*parts, (OVERALL, file.answers, baseline.answers))]


def _of(file: AnswerFile, name: str) -> tuple[Answer, ...]:
    return tuple(each for each in file.answers if subtask(each.category) == name)


def _rates(
    name: str, answers: Sequence[Answer], base: Sequence[Answer], recount: Recount | None
) -> Rates:
    calls = [count for each in answers for count in each.calls]
    theirs = ours = None
    if base:
        theirs = _mean([each.tokens / each.wall_s for each in answers]) / _mean(
            [_recounted(each, recount) / each.wall_s for each in base]
        )
        ours = _ratio(answers) / _ratio(base)
    return Rates(name, len(answers), theirs, ours, _mean(calls))


def _recounted(each: Answer, recount: Recount | None) -> int:
    return each.tokens if recount is None else sum(map(recount, each.texts))


def _ratio(answers: Sequence[Answer]) -> float:
    return sum(each.tokens for each in answers) / sum(each.wall_s for each in answers)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
