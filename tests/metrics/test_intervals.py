"""Intervals over prompts and repeats: where they lie, how often they cover, that they repeat."""

from math import log, sqrt
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import beta, norm
from scipy.stats import t as student_t

from spec_bench.metrics.interval import FEWEST, Interval
from spec_bench.metrics.intervals import (
    AS_TAU,
    interval_where_few_differ,
    median_interval,
    rate_ratio_interval,
    ratio_interval,
    ratio_intervals,
    widen_to_tau_width,
)
from spec_bench.metrics.p_values import p_value_above, sign_flip_p_value
from spec_bench.metrics.resampling import (
    SumOverColumnGroups,
    bootstrap_interval,
    label_clocks,
    sum_by_clock,
)
from spec_bench.metrics.score_intervals import (
    bounded_score_interval,
    mean_interval,
    score_difference_interval,
)
from spec_bench.vocabulary import columns


def log_ratio(sums):
    return np.log(sums[0] / sums[1])


def skewed(prompts, rng, *, limit=np.inf):
    """Tokens of lognormal length and their seconds, which grow faster than the length."""
    tokens = np.minimum(limit, np.exp(4 + rng.standard_normal(prompts)))
    return tokens, tokens * (1 + 0.002 * tokens) * np.exp(0.1 * rng.standard_normal(prompts))


@pytest.mark.parametrize(
    "interval",
    [
        lambda x: mean_interval(x / 10).map(lambda share: 10 * share),
        lambda x: ratio_interval(x, np.ones(400)),
        lambda x: score_difference_interval(lambda s: s[0] / s[1], [x - 5, np.ones(400)]),
    ],
)
def test_width_agrees_with_the_normal_approximation(interval):
    samples = np.random.default_rng(1).normal(5.0, 1.0, 400)
    found = interval(samples)
    half = 1.96 * samples.std() / np.sqrt(400)
    assert found.high - found.value == pytest.approx(half, rel=0.1)
    assert found.value - found.low == pytest.approx(half, rel=0.1)


def test_the_order_of_prompts_changes_little_and_their_pairing_much():
    rng = np.random.default_rng(5)
    tokens, seconds = skewed(60, rng, limit=256)
    shuffled = rng.permutation(60)
    paired, torn = ratio_interval(tokens, seconds), ratio_interval(tokens, seconds[shuffled])
    assert paired == ratio_interval(tokens, seconds)
    again = ratio_interval(tokens[shuffled], seconds[shuffled])
    assert again.low == pytest.approx(paired.low, rel=0.03)
    assert torn.high - torn.low > 2 * (paired.high - paired.low)


def test_rates_of_answers_of_skewed_length_are_covered():
    large = skewed(1_000_000, np.random.default_rng(6), limit=256)
    truth = large[0].sum() / large[1].sum()
    rng, covered = np.random.default_rng(7), 0
    for _ in range(300):
        found = ratio_interval(*skewed(12, rng, limit=256))
        covered += found.low <= truth <= found.high
    assert covered / 300 >= 0.89


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("prompts", [5, 12, 50])
def test_shares_of_right_answers_are_covered_where_none_or_all_were_right_too(share, prompts):
    rng, covered = np.random.default_rng(7), 0
    for _ in range(300):
        found = mean_interval((rng.random(prompts) < share).astype(float))
        assert 0 <= found.low <= found.value <= found.high <= 1
        covered += found.low <= share <= found.high
    assert covered / 300 >= 0.93


def test_all_right_and_all_equal_are_not_sure_to_stay_so():
    found = mean_interval([1.0] * 10)
    assert found.high == 1.0
    assert found.low == pytest.approx(0.025 ** (1 / 10))  # Clopper and Pearson's
    found = score_difference_interval(lambda s: s[0] - s[1], np.ones((2, 20)))
    assert found.value == 0
    assert -0.15 < found.low == -found.high < 0


def test_signs_of_right_against_wrong_are_tested_as_mcnemar_does():
    # Six of seven discordant prompts one way: 2 (C(7,0) + C(7,1)) / 2^7.
    assert sign_flip_p_value([1.0] * 6 + [-1.0] + [0.0] * 40) == pytest.approx(2 * 8 / 128)
    assert sign_flip_p_value([0.0] * 40) == 1.0
    # Signs of unequal differences are drawn: of 2^4 two give a sum of 15 either way.
    assert sign_flip_p_value([1.0, 2.0, 4.0, 8.0]) == pytest.approx(2 / 16, abs=0.015)


def test_one_run_repeated_exactly_adds_nothing():
    tokens, seconds = skewed(40, np.random.default_rng(8))
    once = ratio_interval(tokens, seconds)
    thrice = ratio_interval(np.tile(tokens, (3, 1)), np.tile(seconds, (3, 1)))
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))


def test_runs_that_differ_widen_the_interval_by_what_so_few_of_them_leave_open():
    tokens = np.full((3, 50), 100.0)
    seconds = np.array([[1.0], [1.1], [0.9]]) * np.ones((3, 50))
    found = ratio_interval(tokens, seconds)
    half = student_t.ppf(0.975, 2) * np.std(seconds[:, 0], ddof=1) / np.sqrt(3)
    ends = np.log(found.high / found.value), np.log(found.value / found.low)
    assert ends == pytest.approx((half, half), rel=1e-3)


@pytest.mark.parametrize("prompts", [3, 6, 20])
def test_several_tables_at_once_have_the_intervals_of_each_alone(prompts):
    tables = [*np.random.default_rng(3).uniform(0.5, 2.0, (3, 4, 4, prompts))]
    tables[2][0, 1] = 0.0  # not on the logarithm's scale
    tables += [table[:2] for table in tables]
    assert ratio_intervals(tables) == [each for one in tables for each in ratio_intervals([one])]


def test_what_both_sides_share_by_prompt_or_run_leaves_their_ratio_alone():
    # Prompts differ tenfold in length, but each is about twice as fast: little is left unsure.
    rng = np.random.default_rng(9)
    tokens, seconds = np.full((3, 50), 100.0), rng.uniform(1, 10, (3, 50))
    slower = seconds * np.array([[1.0], [1.5], [0.7]])
    plain = 2 * np.exp(rng.normal(0, 0.02, 50))
    for taken, own in ((slower, tokens), (seconds[0], tokens[0])):
        found = rate_ratio_interval(own, taken, own, plain * taken)
        assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0), rel=0.02)


@pytest.mark.parametrize("prompts", range(2, FEWEST))
def test_a_handful_of_prompts_has_a_value_and_no_interval(prompts):
    rng = np.random.default_rng(prompts)
    tokens, seconds = skewed(prompts, rng)
    assert ratio_interval(tokens, seconds).low is None
    assert ratio_interval(np.tile(tokens, (3, 1)), rng.uniform(1, 2, (3, prompts))).high is None
    assert mean_interval(rng.random(prompts)).low is None
    assert score_difference_interval(lambda s: s[0], [rng.random(prompts)]).low is None


def test_the_fewest_prompts_that_have_an_interval_have_one_of_some_width_where_they_differ():
    found = ratio_interval([10.0] * FEWEST, [1.0, 2.0, 1.5, 2.5, 1.2])
    assert found.low < found.value < found.high
    found = ratio_interval([0.0, 0.0, 3.0, 1.0, 0.0, 2.0, 0.0, 1.0, 4.0], [4.0] * 9)
    assert found.value == pytest.approx(11 / 36)
    assert 0 < found.low < found.value < found.high


def test_a_ratio_over_nothing_has_no_value_and_resamples_over_nothing_leave_no_interval():
    assert ratio_interval([0.0, 0.0], [0.0, 0.0]) is None
    assert bounded_score_interval(lambda s: s[0] / s[1], [[0.0, 0.0], [0.0, 0.0]]) is None
    one = [0.0, 0.0, 0.0, 0.0, 1.0]
    assert ratio_interval(one, one) == mean_interval(one, one) == Interval(1.0, None, None)
    for interval in (bounded_score_interval, score_difference_interval, bootstrap_interval):
        with pytest.raises(ValueError, match="at least one prompt"):
            interval(lambda sums: sums[0], [[]])


def test_the_derivative_of_the_statistic_is_taken_where_the_resample_lies():
    # Of a mean the studentised interval is the textbook's, no side shorter than Student's t.
    rng = np.random.default_rng(10)
    x = rng.exponential(1.0, 30)
    found = bootstrap_interval(lambda sums: sums[0] / 30, [x])
    draws = np.random.default_rng(11).integers(0, 30, (20_000, 30))
    again = x[draws]
    t = (again.mean(1) - x.mean()) / (again.std(1, ddof=1) / np.sqrt(30))
    error = x.std(ddof=1) / np.sqrt(30)
    low, high = np.quantile(t, [0.025, 0.975])
    assert high < student_t.ppf(0.975, 29) < -low
    assert found.low == pytest.approx(x.mean() - student_t.ppf(0.975, 29) * error)
    assert found.high == pytest.approx(x.mean() - low * error, rel=0.05)


def test_a_total_has_the_interval_of_the_sum_and_asks_a_term_for_its_own_columns_alone():
    tokens, seconds = skewed(20, np.random.default_rng(13))
    columns = np.array([tokens, seconds, 2 * seconds, tokens + 5])
    term = Mock(side_effect=log_ratio)
    found = bootstrap_interval(SumOverColumnGroups(((2, term), (2, term))), columns)
    plain = bootstrap_interval(lambda s: log_ratio(s[:2]) + log_ratio(s[2:]), columns)
    expected = (plain.value, plain.low, plain.high)
    assert (found.value, found.low, found.high) == pytest.approx(expected, rel=1e-6)
    # The value, leaving one out, the resamples; derivatives of the value and of the resamples.
    assert [len(call.args[0]) for call in term.call_args_list] == [2] * 2 * 5


def test_a_large_test_set_in_several_batches_has_the_interval_of_one():
    tokens, seconds = skewed(5000, np.random.default_rng(12), limit=256)
    found = ratio_interval(tokens, seconds)
    influence = tokens / tokens.sum() - seconds / seconds.sum()
    half = 1.96 * np.sqrt((influence**2).sum())
    assert np.log(found.high / found.value) == pytest.approx(half, rel=0.1)


def test_the_interval_of_a_median_covers_it_whatever_the_law():
    rng = np.random.default_rng(0)
    for prompts in (6, 12, 50):
        found = [median_interval(row) for row in np.exp(rng.standard_normal((600, prompts)))]
        covered = np.mean([(f.low or 9) <= 1 <= (f.high or 0) for f in found])
        assert covered >= 0.935, prompts
    assert median_interval([3.0, 1.0, 2.0, 5.0, 4.0]).low is None
    six = median_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
    assert (six.value, six.low, six.high) == (3.5, 1.0, 6.0)


SCORES = {
    5: [1.0, 0.0, 1.0, 0.5, 1.0],
    12: [1.0, 0.0, 0.0, 1.0, 1.0, 0.25, 1.0, 1.0, 0.0, 1.0, 0.75, 1.0],
}


@pytest.mark.parametrize("prompts", SCORES)
def test_a_scores_ends_are_korn_and_graubards(prompts):
    x = np.array(SCORES[prompts])
    wider = student_t.ppf(0.975, prompts - 1) / norm.ppf(0.975)
    worth = x.mean() * (1 - x.mean()) / (x.var(ddof=1) / prompts) / wider**2
    right, wrong = x.mean() * worth, (1 - x.mean()) * worth
    found = mean_interval(x)
    assert found.low == pytest.approx(beta.ppf(0.025, right, wrong + 1))
    assert found.high == pytest.approx(beta.ppf(0.975, right + 1, wrong))


@pytest.mark.parametrize("prompts", SCORES)
def test_a_differences_ends_have_two_more_prompts(prompts):
    x = np.array(SCORES[prompts]) - 0.25
    squares = (x**2).sum() + 0.5 * 0.75**2 + 0.5 * (-0.75) ** 2  # and one of both in equal halves
    spread = squares / (prompts + 2) - (x.sum() / (prompts + 2)) ** 2
    half = student_t.ppf(0.975, prompts - 1) * np.sqrt(spread / (prompts + 2))
    found = score_difference_interval(lambda sums: sums[0] / prompts, [x])
    assert (found.value - found.low, found.high - found.value) == pytest.approx((half, half))


def test_a_rate_of_five_prompts_has_students_ends_of_its_logarithm():
    tokens, seconds = skewed(5, np.random.default_rng(14))
    left = np.log((tokens.sum() - tokens) / (seconds.sum() - seconds))
    half = student_t.ppf(0.975, 4) * np.sqrt(((left - left.mean()) ** 2).sum() * 4 / 5)
    found = ratio_interval(tokens, seconds)
    ends = [np.log(each / found.value) for each in (found.low, found.high)]
    assert ends == pytest.approx([-half, half], rel=1e-4)


@pytest.mark.parametrize("prompts", SCORES)
def test_beyond_an_interval_p_falls_as_with_a_degree_of_freedom_less(prompts):
    found = Interval(3.0, 2.0, 5.0, degrees_of_freedom=prompts - 1)
    usual = student_t.ppf(0.975, prompts - 2)
    for bound in (2.0, 1.0, -1.0):
        beyond = student_t.sf((3 - bound) * usual, prompts - 2)
        assert p_value_above(found, bound) == pytest.approx(beyond)
    assert p_value_above(found, 4.0) == pytest.approx(student_t.cdf(usual / 2, prompts - 2))


@pytest.mark.parametrize("prompts", [5, 12, 40])
def test_prompts_of_which_none_shows_a_hit_leave_room_for_what_one_to_come_can_show(prompts):
    found = ratio_interval([10.0] * prompts, [10.0] * prompts, largest_difference=10.0)
    # As if two more prompts were half a hit and half a miss by all that a tree of ten levels shows.
    reach = student_t.ppf(0.975, prompts - 1) * 10 / (prompts + 2)
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1 - reach, 1 + reach))
    assert 1 + 10 / (2 * prompts) < found.high < 1 + 20 / prompts
    assert ratio_interval([10.0] * prompts, [10.0] * prompts).ends is None
    assert ratio_interval([10.0] * prompts, [10.0] * prompts, largest_difference=0.0).ends == (
        1.0,
        1.0,
    )


def test_one_of_twelve_prompts_that_differs_widens_what_none_leaves_open():
    none, one = (
        ratio_interval([*[10.0] * 11, last], [10.0] * 12, largest_difference=10.0)
        for last in (10.0, 30.0)
    )
    assert one.value == pytest.approx(14 / 12)
    assert one.high - one.value > none.high - none.value > 1.0


def test_five_prompts_that_differ_are_resampled():
    sums = [[*[10.0] * 7, 11.0, 12.0, 13.0, 14.0, 15.0], [10.0] * 12]
    assert interval_where_few_differ(lambda s: s[0] / s[1], sums, 10.0) is None
    assert ratio_interval(*sums, 10.0) == ratio_interval(*sums)


def test_a_rate_reaches_as_far_as_tokens_per_call_where_few_prompts_differ_in_these():
    tau = ratio_interval([*[10.0] * 11, 30.0], [10.0] * 12, largest_difference=10.0).clip(1.0, 11.0)
    speed = Interval(1.2, 1.1, 1.3)
    share = tau.high / tau.value
    assert widen_to_tau_width(speed, tau, "speedup").high == pytest.approx(1.2 * share)
    assert widen_to_tau_width(speed, tau, "energy_j_per_token").low == pytest.approx(1.2 / share)
    assert widen_to_tau_width(speed, tau, "speedup").low == pytest.approx(1.2 / tau.value)
    assert widen_to_tau_width(speed, tau, "latency_s") == speed
    assert widen_to_tau_width(speed, Interval(2.0, 1.0, 4.0), "speedup") == speed
    stalled = Interval(1.2, 0.01, 100.0)
    for name in ("speedup", "speedup_end_to_end"):
        assert widen_to_tau_width(stalled, tau, name).high == pytest.approx(1.2 * share)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_repeated_and_is_set_against_itself_has_no_interval(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 20, (3, 8)).astype(float)
    seconds = tokens / rng.uniform(10, 50, (3, 8))
    found = rate_ratio_interval(tokens, seconds, tokens, seconds)
    assert found.low == found.high and f"{found:.2f}" == "1.00"
    assert f"{Interval(1.0, 1 - 1e-12, 1 + 1e-12):.2f}" == "1.00"


def test_every_rate_of_tokens_reaches_as_far_but_the_median_which_one_prompt_does_not_move():
    rates = {
        column.name
        for column in columns.list_columns_of_kind("time", "energy")
        if column.interval and column.unit in ("×", "1/s", "J/token")
    }
    assert rates - {*AS_TAU} == {"speedup_median"} and {*AS_TAU} <= rates


def test_rows_of_one_clock_are_one_block_and_fewer_than_five_clocks_are_one_altogether():
    rng = np.random.default_rng(2)
    tokens, seconds = rng.uniform(9, 11, 160), np.repeat(rng.uniform(9, 11, 5), 32)
    for clocks in (4, 5):
        count = 32 * clocks
        table = np.stack([tokens[:count], seconds[:count]])[:, None]
        summed = sum_by_clock(table, [place // 32 for place in range(count)])
        assert summed.shape == (2, 1, clocks if clocks == 5 else 1)
        assert summed.sum() == pytest.approx(table.sum())
        assert (ratio_interval(*summed).ends is not None) == (clocks == 5)


def test_prompts_that_share_a_clock_in_any_repeat_are_of_one_label():
    assert label_clocks(np.array([[0.1, 0.1, 0.2, 0.3]])).tolist() == [0, 0, 1, 2]
    assert label_clocks(np.array([[0.1, 0.1, 0.2, 0.3], [0.4, 0.5, 0.5, 0.6]])).tolist() == [
        *(0, 0, 0),
        1,
    ]


def test_one_block_measured_in_three_rounds_has_students_t_over_these_and_in_two_no_ends():
    seconds = np.array([[2.0], [2.1], [1.95]])
    tokens = np.full((3, 1), 8.0)
    found = ratio_interval(tokens, seconds)
    rates = np.log(8 / seconds.ravel())
    error = rates.std(ddof=1) / sqrt(3)
    assert log(found.high / found.value) == pytest.approx(student_t.ppf(0.975, 2) * error, rel=0.02)
    assert (found.between_seeds_share, ratio_interval(tokens[:2], seconds[:2]).ends) == (1.0, None)
    # Repeats of a single prompt say nothing of prompts to come.
    assert ratio_interval(*sum_by_clock(np.stack([tokens, seconds]))).ends is None


def test_times_that_are_equal_on_every_prompt_have_no_ends_but_over_themselves():
    same = [8.0] * 6, [2.0] * 6
    assert ratio_interval(*same) == Interval(4.0)
    assert rate_ratio_interval(*same, *same) == Interval(1.0, 1.0, 1.0)
    assert rate_ratio_interval(*same, same[0], [4.0] * 6) == Interval(2.0)
