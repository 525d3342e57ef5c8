"""Bootstrap intervals: where they lie, how wide they are, and that they repeat."""

import time

import numpy as np
import pytest

from spec_bench.metrics.intervals import (
    Interval,
    bootstrap_sums,
    rate_ratio_interval,
    ratio_interval,
)


def test_value_is_the_ratio_of_sums():
    assert ratio_interval([4.0, 3.0], [1.0, 3.0]).value == 7 / 4


def test_the_same_numbers_give_the_same_interval_again():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 2, 30), rng.uniform(1, 2, 30)
    assert ratio_interval(a, b) == ratio_interval(a, b)


def test_width_agrees_with_the_normal_approximation():
    samples = np.random.default_rng(1).normal(5.0, 1.0, 400)
    interval = ratio_interval(samples, np.ones(400))
    half = 1.96 * samples.std() / np.sqrt(400)
    assert interval.high - interval.value == pytest.approx(half, rel=0.1)
    assert interval.value - interval.low == pytest.approx(half, rel=0.1)


def test_intervals_of_a_known_mean_cover_it_about_95_times_in_100():
    rng = np.random.default_rng(2)
    found = [ratio_interval(rng.exponential(1.0, 100), np.ones(100)) for _ in range(100)]
    assert 88 <= sum(i.low <= 1.0 <= i.high for i in found) <= 100


def test_constant_data_have_an_interval_of_no_width():
    assert ratio_interval([2.0] * 5, [1.0] * 5) == Interval(2.0, 2.0, 2.0)


def test_one_prompt_has_a_value_and_no_interval():
    assert ratio_interval([3.0], [2.0]) == Interval(1.5, None, None)


def test_a_ratio_over_nothing_has_no_value():
    assert ratio_interval([0.0, 0.0], [0.0, 0.0]) is None


def test_resamples_without_a_denominator_leave_the_value_but_no_interval():
    assert ratio_interval([0.0, 1.0], [0.0, 1.0]) == Interval(1.0, None, None)


def test_no_prompts_are_refused():
    with pytest.raises(ValueError, match="at least one prompt"):
        bootstrap_sums(lambda sums: sums[0], [[]])


def test_pairing_by_prompt_removes_what_both_sides_share():
    # Prompts differ tenfold in length, but each is exactly twice as fast: no uncertainty is left.
    seconds = np.random.default_rng(3).uniform(1.0, 10.0, 50)
    tokens = np.full(50, 100.0)
    assert rate_ratio_interval(tokens, seconds, tokens, 2 * seconds) == Interval(
        2.0, pytest.approx(2.0), pytest.approx(2.0)
    )


def test_scaling_by_a_constant_scales_the_ends():
    assert Interval(2.0, 1.0, 3.0).scaled(0.5) == Interval(1.0, 0.5, 1.5)
    assert Interval(2.0).scaled(0.5) == Interval(1.0)


def test_an_interval_over_100_prompts_takes_well_under_a_second():
    rng = np.random.default_rng(4)
    a, b = rng.uniform(1, 2, 100), rng.uniform(1, 2, 100)
    started = time.process_time()  # what others do on the machine is not ours
    ratio_interval(a, b)
    assert time.process_time() - started < 0.5  # some 10 ms alone on a core
