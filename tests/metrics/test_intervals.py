"""Intervals over prompts and repeats: where they lie, how often they cover, that they repeat."""

import numpy as np
import pytest
from scipy.stats import t as student_t

from spec_bench.metrics.bootstrap import Total, percentile_interval, studentised_interval
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import mean_interval, rate_ratio_interval, ratio_interval


def log_ratio(sums):
    return np.log(sums[0] / sums[1])


def skewed(prompts, rng, *, limit=np.inf):
    """Tokens of lognormal length and their seconds, which grow faster than the length."""
    tokens = np.minimum(limit, np.exp(4 + rng.standard_normal(prompts)))
    return tokens, tokens * (1 + 0.002 * tokens) * np.exp(0.1 * rng.standard_normal(prompts))


def test_value_is_the_ratio_of_sums():
    assert ratio_interval([4.0, 3.0], [1.0, 3.0]).value == pytest.approx(7 / 4)


def test_the_same_numbers_give_the_same_interval_again():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 2, 30), rng.uniform(1, 2, 30)
    assert ratio_interval(a, b) == ratio_interval(a, b)


@pytest.mark.parametrize("interval", [mean_interval, lambda x: ratio_interval(x, np.ones(400))])
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
    paired = ratio_interval(tokens, seconds)
    again = ratio_interval(tokens[shuffled], seconds[shuffled])
    torn = ratio_interval(tokens, seconds[shuffled])
    assert again.low == pytest.approx(paired.low, rel=0.03)
    assert torn.high - torn.low > 2 * (paired.high - paired.low)


def test_rates_of_answers_of_skewed_length_are_covered_where_percentiles_miss_them():
    large = skewed(1_000_000, np.random.default_rng(6), limit=256)
    truth = large[0].sum() / large[1].sum()
    rng, ours, percentiles = np.random.default_rng(7), 0, 0
    for _ in range(300):
        columns = skewed(12, rng, limit=256)
        found = ratio_interval(*columns)
        ours += found.low <= truth <= found.high
        found = percentile_interval(lambda s: s[0] / s[1], columns)
        percentiles += found.low <= truth <= found.high
    assert ours / 300 >= 0.89
    assert percentiles / 300 < 0.85


def test_one_run_repeated_exactly_adds_nothing():
    rng = np.random.default_rng(8)
    tokens, seconds = skewed(40, rng)
    once = ratio_interval(tokens, seconds)
    thrice = ratio_interval(np.tile(tokens, (3, 1)), np.tile(seconds, (3, 1)))
    assert thrice.low == pytest.approx(once.low)
    assert thrice.high == pytest.approx(once.high)


def test_runs_that_differ_widen_the_interval_by_what_so_few_of_them_leave_open():
    tokens = np.full((3, 50), 100.0)
    seconds = np.array([[1.0], [1.1], [0.9]]) * np.ones((3, 50))
    found = ratio_interval(tokens, seconds)
    error = np.std(seconds[:, 0] / 1.0, ddof=1) / np.sqrt(3)
    half = student_t.ppf(0.975, 2) * error
    assert np.log(found.high / found.value) == pytest.approx(half, rel=1e-3)
    assert np.log(found.value / found.low) == pytest.approx(half, rel=1e-3)


def test_what_all_decoders_of_a_run_share_leaves_their_ratio_alone():
    rng = np.random.default_rng(9)
    tokens, seconds = np.full((3, 50), 100.0), rng.uniform(1, 2, (3, 50))
    slower = seconds * np.array([[1.0], [1.5], [0.7]])
    found = rate_ratio_interval(tokens, slower, tokens, 2 * slower)
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_a_single_prompt_measured_several_times_has_the_interval_of_its_repeats():
    found = ratio_interval([[100.0], [100.0], [100.0]], [[1.0], [1.1], [0.9]])
    assert found.low < found.value < found.high


def test_constant_data_have_an_interval_of_no_width():
    assert ratio_interval([2.0] * 5, [1.0] * 5) == Interval(*[pytest.approx(2.0)] * 3)
    assert mean_interval([1.0] * 5) == Interval(1.0, 1.0, 1.0)


def test_one_prompt_has_a_value_and_no_interval():
    assert ratio_interval([3.0], [2.0]) == Interval(pytest.approx(1.5), None, None)
    assert mean_interval([3.0]) == Interval(3.0, None, None)


def test_two_prompts_that_differ_have_an_interval_of_some_width():
    found = ratio_interval([10.0, 10.0], [1.0, 2.0])
    assert found.low < found.value < found.high


def test_a_ratio_over_nothing_has_no_value():
    assert ratio_interval([0.0, 0.0], [0.0, 0.0]) is None
    assert percentile_interval(lambda s: s[0] / s[1], [[0.0, 0.0], [0.0, 0.0]]) is None


@pytest.mark.parametrize("interval", [ratio_interval, lambda a, b: mean_interval(a, b)])
def test_resamples_without_a_denominator_leave_the_value_but_no_interval(interval):
    assert interval([0.0, 1.0], [0.0, 1.0]) == Interval(1.0, None, None)


def test_nothing_accepted_by_some_prompts_still_has_an_interval():
    found = ratio_interval([0.0, 0.0, 3.0, 1.0, 0.0, 2.0, 0.0, 1.0, 4.0], [4.0] * 9)
    assert found.value == pytest.approx(11 / 36)
    assert 0 < found.low < found.value < found.high


def test_no_prompts_are_refused():
    for interval in (percentile_interval, studentised_interval):
        with pytest.raises(ValueError, match="at least one prompt"):
            interval(lambda sums: sums[0], [[]])


def test_the_derivative_of_the_statistic_is_taken_where_the_resample_lies():
    # Of a mean the studentised interval is the textbook's, no side shorter than Student's t.
    rng = np.random.default_rng(10)
    x = rng.exponential(1.0, 30)
    found = studentised_interval(lambda sums: sums[0] / 30, [x])
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
    asked = []

    def term(sums):
        asked.append(len(sums))
        return log_ratio(sums)

    found = studentised_interval(Total(((2, term), (2, term))), columns)
    plain = studentised_interval(lambda s: log_ratio(s[:2]) + log_ratio(s[2:]), columns)
    assert (found.value, found.low, found.high) == pytest.approx(
        (plain.value, plain.low, plain.high), rel=1e-6
    )
    assert set(asked) == {2}
    # The value, leaving one out, the resamples; derivatives of the value and of the resamples.
    assert len(asked) == 2 * 5


def test_pairing_by_prompt_removes_what_both_sides_share():
    # Prompts differ tenfold in length, but each is exactly twice as fast: no uncertainty is left.
    seconds = np.random.default_rng(3).uniform(1.0, 10.0, 50)
    tokens = np.full(50, 100.0)
    assert rate_ratio_interval(tokens, seconds, tokens, 2 * seconds) == Interval(
        pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0)
    )


def test_a_large_test_set_in_several_batches_has_the_interval_of_one():
    tokens, seconds = skewed(5000, np.random.default_rng(12), limit=256)
    found = ratio_interval(tokens, seconds)
    influence = tokens / tokens.sum() - seconds / seconds.sum()
    half = 1.96 * np.sqrt((influence**2).sum())
    assert np.log(found.high / found.value) == pytest.approx(half, rel=0.1)


def test_scaling_by_a_constant_scales_the_ends():
    assert Interval(2.0, 1.0, 3.0).scaled(0.5) == Interval(1.0, 0.5, 1.5)
    assert Interval(2.0).scaled(0.5) == Interval(1.0)
