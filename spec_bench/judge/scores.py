"""From grades to columns: the mean rating and its interval over questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spec_bench.judge.grade import Grade
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import mean_interval

SCORE = "judge_score"
_TURNS = {SCORE: None, f"{SCORE}_turn_1": True, f"{SCORE}_later_turns": False}
Columns = dict[str, float | str | None]


def score_columns(grades: Sequence[Sequence[Grade]], model: str) -> Columns:
    """A cell's columns.

    Args:
        grades: of each question, those of its turns.
        model: the judge.

    Returns:
        ``judge_score`` (mean of all ratings, 1 to 10) and those of the first and the later turns,
        each with its 95% interval over questions, so that a question's turns stay together; how
        many judgements there are and how many failed; the judge.
    """
    columns: Columns = {}
    for name, first in _TURNS.items():
        mean = _mean(grades, first)
        columns[name] = mean.value if mean else None
        columns[f"{name}_low"] = mean.low if mean else None
        columns[f"{name}_high"] = mean.high if mean else None
    every = [grade for each in grades for grade in each]
    columns["judgements"] = sum(grade.rating is not None for grade in every)
    columns["judgements_failed"] = sum(grade.rating is None for grade in every)
    columns["judge_model"] = model
    return columns


def score_parts(grades: Mapping[str, Sequence[Grade]]) -> dict[str, dict[str, list[float]]]:
    """What each question adds to a cell's scores: the sum of its ratings and how many there are."""
    ratings = {
        name: {each: _ratings(graded, first) for each, graded in grades.items()}
        for name, first in _TURNS.items()
    }
    return {
        name: {each: [sum(rated), len(rated)] for each, rated in by_prompt.items() if rated}
        for name, by_prompt in ratings.items()
        if any(by_prompt.values())
    }


def _mean(grades: Sequence[Sequence[Grade]], first: bool | None) -> Interval | None:
    """Mean rating of all turns (None), the first (True) or the later ones; None without any."""
    ratings = [rated for each in grades if (rated := _ratings(each, first))]
    if not ratings:
        return None
    return mean_interval(
        [sum(each) for each in ratings], [len(each) for each in ratings], 1.0, 10.0
    )


def _ratings(grades: Sequence[Grade], first: bool | None) -> list[float]:
    """The ratings of one question's turns."""
    return [
        grade.rating
        for grade in grades
        if grade.rating is not None and first in (None, grade.turn == 0)
    ]
