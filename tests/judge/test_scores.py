"""From grades to columns: mean ratings with intervals over questions, within 1 to 10."""

from __future__ import annotations

from spec_bench.judge.grade import Grade
from spec_bench.judge.scores import score_columns


def graded(*ratings: tuple[float | None, float | None]) -> dict[str, float | str | None]:
    """The columns of questions of two turns."""
    return score_columns([[Grade(0, one), Grade(1, two)] for one, two in ratings], "tiny")


def number(columns: dict[str, float | str | None], name: str) -> float:
    found = columns[name]
    assert isinstance(found, float)
    return found


def test_a_mean_rating_has_an_interval_over_questions_that_stays_within_10() -> None:
    found = graded((10, 9), (10, 10), (9, 10), (10, None), (10, 10), (7, 10))
    assert number(found, "judge_score") == 105 / 11
    low, high = number(found, "judge_score_low"), number(found, "judge_score_high")
    assert 7 < low < 105 / 11 < high <= 10
    assert number(found, "judge_score_turn_1") == 56 / 6
    assert number(found, "judge_score_later_turns") == 49 / 5
    assert (found["judgements"], found["judgements_failed"]) == (11, 1)


def test_ratings_that_are_all_the_same_are_not_sure_to_stay_so() -> None:
    found = graded(*[(1.0, 1.0)] * 6)
    assert number(found, "judge_score") == number(found, "judge_score_low") == 1.0
    assert 4 < number(found, "judge_score_high") < 6  # Clopper and Pearson's of 0 in 6, times 9


def test_four_questions_have_a_mean_and_no_interval() -> None:
    found = graded(*[(8.0, 9.0)] * 4)
    assert found["judge_score"] == 8.5
    assert found["judge_score_low"] is found["judge_score_high"] is None
