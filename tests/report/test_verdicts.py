"""From differences to verdicts: p-values, their composition, picks, and what a page says of all."""

import numpy as np
import pandas as pd
import pytest

from spec_bench.metrics.interval import Interval, p_above, p_below, simultaneous
from spec_bench.report.claims import measured
from spec_bench.report.claims.contrast import Contrast, Difference, composed, of_table
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_DECIDED,
    WITHIN_NOISE,
    Check,
    PValues,
    judged,
    p_of_all,
    p_of_most,
    summary_of,
    verdicts_of,
)

SURE, UNSURE, NEVER = 1e-9, 0.4, 1 - 1e-9
ROW = {"decoder": "sd", "spec": "2"}
TWO = ({**ROW, "spec": "2"}, {**ROW, "spec": "3"})
YES, OPEN, NO = PValues(SURE, NEVER), PValues(UNSURE, 0.6), PValues(NEVER, SURE)


def check(p_values, verdict=NOT_DECIDED):
    return Check("a", "task", "numbers", verdict, p_values=p_values)


def rates(table, left=(ROW,)):
    return of_table([Contrast(left, (ROW,))], np.array(table), "token_rate", relative=True)


def test_an_end_at_the_bound_is_one_in_forty():
    found = Interval(1.0, 0.5, 1.5, freedom=11)
    assert p_above(found, 0.5) == p_below(found, 1.5) == pytest.approx(0.025)
    assert p_above(found, 1.5) == pytest.approx(0.975)
    assert p_above(Interval(1.0), 0.0) is None


def test_the_best_of_many_needs_a_wider_interval():
    low, high = simultaneous((2.0, 1.8, 2.2), 30, 1)
    assert (low, high) == (pytest.approx(1.8), pytest.approx(2.2))
    wider_low, wider_high = simultaneous((2.0, 1.8, 2.2), 30, 20)
    assert 1.0 < wider_low < low and wider_high > high
    assert simultaneous((2.0, float("nan"), 2.2), 30, 20) is None
    assert simultaneous((2.0, 1.8, 2.2), 4, 1) is None


@pytest.mark.parametrize(
    ("p", "against", "verdict"),
    [(0.024, 0.976, HOLDS), (0.976, 0.024, DOES_NOT_HOLD), (0.026, 0.974, WITHIN_NOISE)],
)
def test_one_check_alone_is_judged_by_its_interval(p, against, verdict):
    assert verdicts_of([PValues(p, against)]) == [verdict]


def test_of_many_checks_on_a_page_one_needs_more_than_alone():
    page = [check(PValues(0.02, 0.98))] + [check(PValues(0.5, 0.5))] * 9
    assert [each.verdict for each in judged(page)] == [WITHIN_NOISE] * 10
    page[0] = check(PValues(0.05 / 20, 0.99))
    assert judged(page)[0].verdict == HOLDS
    # Counts and what nothing decides take no part in the correction.
    page = [check(PValues(0.02, 0.98)), *[check(None, HOLDS)] * 9, check(None)]
    assert [each.verdict for each in judged(page)] == [HOLDS] * 10 + [NOT_DECIDED]
    page = judged([check(YES), check(PValues(0.5, 0.5)), check(None, HOLDS)])
    assert "corrected for 2 made together (Holm)" in summary_of(page, None).sentence


def test_all_hold_only_if_each_does_and_one_contrary_is_enough():
    assert p_of_all([YES, OPEN]) == PValues(UNSURE, 1.0)
    assert p_of_all([YES, YES, PValues(NEVER, 0.001)]).against_claim == pytest.approx(0.003)


def test_most_hold_if_more_than_half_do_and_cannot_if_half_do_not():
    assert p_of_most([YES, YES, YES, OPEN, OPEN]).for_claim < 1e-6
    assert p_of_most([YES, YES, OPEN, OPEN, OPEN]).for_claim == 1.0
    assert p_of_most([YES, YES, NO, NO]).against_claim < 1e-6
    assert p_of_most([YES, YES, YES, NO]).against_claim == 1.0


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((-0.01, 0.01), HOLDS), ((-0.3, 0.3), WITHIN_NOISE), ((0.19, 0.21), DOES_NOT_HOLD)],
)
def test_equal_is_shown_by_small_differences_and_not_by_few_prompts(ends, verdict):
    value = sum(ends) / 2
    gap = Difference(value, Interval(value, *ends, freedom=50), relative=False)
    assert verdicts_of([gap.within(0.05)]) == [verdict]


def test_a_share_is_laid_out_on_its_logarithm_and_cannot_fall_below_minus_one():
    found = rates([[[[3.0, 6.0, 3.0, 6.0, 3.0]], [[1.0] * 5]], [[[5.0] * 5], [[1.0] * 5]]])
    assert found.value == pytest.approx(21 / 25 - 1)
    low, high = found.ends
    assert -1 < low < found.value < high
    assert found.above(0.0).for_claim == pytest.approx(p_above(found.tested, 0.0))


@pytest.mark.parametrize(("left", "prompts", "least"), [((ROW,), 4, 5), (TWO, 7, 8)])
def test_few_prompts_have_a_difference_without_interval_and_pick_nothing(left, prompts, least):
    table = np.random.default_rng(0).uniform(1, 2, (len(left) + 1, 2, 1, prompts))
    found = rates(table, left)
    assert found.ends is None and found.above() is None
    assert f"fewer than {least} prompts" in str(found)


def test_each_half_of_the_prompts_is_compared_on_the_cell_that_the_other_picked():
    # On the even prompts the first cell is faster, on the odd ones the second.
    counts = np.ones((2, 2, 1, 8))
    counts[:, 0, 0] = [3, 1] * 4, [2, 4] * 4
    assert composed(TWO, counts, "token_rate")[0, 0].tolist() == [2, 1] * 4


def test_the_best_of_equal_cells_is_not_ahead():
    rng, ahead = np.random.default_rng(3), 0
    side = tuple({**ROW, "spec": str(k)} for k in range(2, 42))
    for _ in range(60):
        table = np.ones((41, 2, 1, 20))
        table[:, 0, 0] = np.exp(0.3 * rng.standard_normal((41, 20)))
        ahead += rates(table, side).above().for_claim < 0.025
    assert ahead <= 6  # of 60; picked and compared on the same prompts 60 are


def test_a_picks_mbsu_is_that_of_its_own_tree():
    cheap, dear = ({**ROW, "draft_calls": calls, "parameter_ratio": 0.5} for calls in (1, 6))
    counts = np.ones((2, 2, 1, 8))
    counts[1, 0] = 4.0  # tau 4 at 1 / (6 * 0.5 + 1): MBSU 1, of the cheap one 1 / 1.5
    found = composed((cheap, dear), counts, "mbsu")
    assert found[0] / found[1] / 1.5 == pytest.approx(np.ones((1, 8)))


def test_what_a_search_screened_is_no_evidence():
    rows = pd.DataFrame({"status": "complete", "lossless": "exact", "stage": ["screen", "confirm"]})
    assert measured(rows).stage.tolist() == ["confirm"]
