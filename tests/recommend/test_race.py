"""Who goes on in a search, and on how many prompts."""

import numpy as np
import pandas as pd
import pytest

from spec_bench.recommend.race import CandidateElimination


def run_race(race, rates):
    """Decodes as a race asks; ``rates`` (candidates, prompts). Candidates and prompts by round."""
    rounds = []
    while count := race.count_next_round_prompts():
        rounds.append((len(race.candidates), count))
        seen = pd.DataFrame(
            rates[race.candidates, : race.used_prompts + count],
            index=race.candidates,
        )
        race.drop_candidates_after_round(count, seen.mean(axis=1), seen)
    return rounds


@pytest.fixture
def alike():
    return 1 + 0.2 * np.random.default_rng(0).normal(size=(61, 40))


def test_fewer_candidates_get_more_prompts_and_no_more_is_decoded_than_may_be(alike):
    race = CandidateElimination([*range(60)], 3, 243, 15)
    rounds = run_race(race, alike)
    assert rounds == [(60, 2), (14, 4), (6, 8)]
    assert race.answer_budget == 243 - sum((cells + 1) * count for cells, count in rounds) >= 0


def test_who_is_told_apart_is_out_and_the_others_get_its_time(alike):
    rates = alike[:20] * np.where(np.arange(20) < 5, 1.0, 0.1)[:, None]
    race = CandidateElimination([*range(20)], 3, 123, 40)
    (_, first), (second, more), *_ = run_race(race, rates)
    assert (first, second) == (2, 5) and more > 4
    assert set(race.candidates) <= set(range(5))


def test_who_is_not_told_apart_stays_while_there_is_time_and_the_best_leads():
    rates = np.full((6, 30), 1.0)
    rates[3] = 1.5
    rates[:, ::2] -= 0.5  # prompts differ, and all candidates alike
    race = CandidateElimination([*range(6)], 2, 81, 30)
    assert [cells for cells, _ in run_race(race, rates)] == [6, 2, 2] and race.candidates[0] == 3
    noisy = rates + np.random.default_rng(1).normal(size=rates.shape)
    assert run_race(race := CandidateElimination([*range(6)], 2, 81, 30), noisy)[1][0] == 6
    assert len(race.candidates) == 2


def test_a_candidate_without_a_number_is_out_and_missing_prompts_are_no_difference(alike):
    rates = alike[:6].copy()
    rates[0] = np.nan
    rates[1, 1] = np.nan
    race = CandidateElimination([*range(6)], 2, 81, 15)
    run_race(race, rates)
    assert 0 not in race.candidates
    race = CandidateElimination([*range(3)], 2, 81, 15)
    run_race(race, np.full((3, 15), np.nan))
    assert race.candidates == []


def test_a_skipped_round_drops_nobody_and_is_repeated_on_other_prompts_while_answers_are_left(
    alike,
):
    race = CandidateElimination([*range(10)], 3, 93, 15)
    assert race.count_next_round_prompts() == 2 and race.skip_round_if_affordable(2)
    assert (len(race.candidates), race.next_prompt, race.answer_budget) == (10, 2, 71)
    assert race.count_next_round_prompts() == 2
    seen = pd.DataFrame(alike[:10, 2:4])
    race.drop_candidates_after_round(2, seen.mean(axis=1), seen)
    assert race.next_prompt == 4 and race.used_prompts == 2 and race.answer_budget >= 0
    few = CandidateElimination([*range(10)], 3, 43, 15)
    assert not few.skip_round_if_affordable(2) and few.next_prompt == 0
    assert not CandidateElimination([*range(10)], 3, 93, 3).skip_round_if_affordable(2)


@pytest.mark.parametrize(("cells", "best"), [(3, 3), (2, 3), (1, 1)])
def test_there_is_no_race_where_all_are_wanted(cells, best):
    assert CandidateElimination([*range(cells)], best, 100, 15).count_next_round_prompts() == 0
