"""Stalled windows are counted, said where they decide a number, and decide no median."""

from math import exp

import numpy as np
import pytest

from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.efficiency import stall_note, stalled
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import median_interval
from spec_bench.records.types import Generation, StepRecord

PROMPTS = 12


def window(prompt, calls, seconds_per_call, repeat=0):
    """A window with 24 tokens; a prompt has its own pace."""
    seconds = calls * seconds_per_call * (1 + 0.02 * prompt)
    steps = (StepRecord(3, 3, 24 // calls - 1, 24 // calls),) * calls
    return Generation(
        str(prompt), tuple(range(24)), "length", steps, 0.1, seconds, 0.0, 0.0, repeat=repeat
    )


def windows(calls, seconds, stall_at=-1, times=60):
    return [
        window(prompt, calls, seconds * (times if prompt == stall_at else 1))
        for prompt in range(PROMPTS)
    ]


def test_a_window_far_beyond_the_median_per_call_is_stalled():
    flags = stalled([windows(8, 0.02, 3, times=5.5), windows(8, 0.02, 4, times=4.0)])
    assert [sum(each) for each in flags] == [1, 0] and flags[0][3]
    assert not any(map(any, stalled([[window(0, 8, 0.0)]])))


def test_one_stall_decides_the_ratio_of_sums_and_not_the_median():
    records = CellRecords(windows(8, 0.02, stall_at=3), windows(24, 0.01))
    row = summarise(records)
    assert row["stalls"] == 1
    assert float(row["speedup"] or 0) < 0.5
    assert row["speedup_median"] == pytest.approx(1.5)
    assert stall_note(records) == "stalled: 1 of 12 windows; median says 1.50"


def test_a_stall_of_the_baseline_is_said_as_the_baselines():
    records = CellRecords(windows(8, 0.02), windows(24, 0.01, stall_at=0))
    assert stall_note(records) == "stalled: 1 of 12 of the baseline's; median says 1.50"


def test_no_stall_or_one_within_the_interval_says_nothing():
    rng = np.random.default_rng(0)
    uneven = [window(p, 8, 0.02 * float(np.exp(rng.standard_normal() / 2))) for p in range(PROMPTS)]
    assert stall_note(CellRecords(windows(8, 0.02), windows(24, 0.01))) is None
    short = window(PROMPTS, 1, 0.15)
    records = CellRecords([*uneven, short], [*windows(24, 0.01), window(PROMPTS, 24, 0.01)])
    assert summarise(records)["stalls"] == 1
    assert stall_note(records) is None


def test_a_prompt_counts_with_the_median_of_its_repeats():
    calm, shaken = windows(8, 0.02), windows(8, 0.02, stall_at=5)
    base = windows(24, 0.01)
    records = CellRecords(calm, base, again=(shaken, calm), baseline_again=(base, base))
    row = summarise(records)
    assert (row["stalls"], row["repeats"], row["prompts"]) == (1, 3, PROMPTS)
    assert row["speedup_median_low"] == pytest.approx(1.5)


def test_the_interval_of_a_median_covers_it_whatever_the_law():
    rng = np.random.default_rng(0)
    for prompts in (6, 12, 50):
        found = [median_interval(row) for row in np.exp(rng.standard_normal((600, prompts)))]
        covered = np.mean([(f.low or 9) <= 1 <= (f.high or 0) for f in found])
        assert covered >= 0.935, prompts
    assert median_interval([3.0, 1.0, 2.0, 5.0, 4.0]).low is None
    six = median_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
    assert (six.value, six.low, six.high) == (3.5, 1.0, 6.0)


def test_repeats_that_differ_as_a_whole_widen_the_interval_of_a_rate():
    calm = [window(prompt, 8, 0.02) for prompt in range(PROMPTS)]
    slow = [window(prompt, 8, 0.022) for prompt in range(PROMPTS)]
    one, two = summarise(CellRecords(calm)), summarise(CellRecords(calm, again=(slow,)))

    def width(row, name):
        return row[f"{name}_high"] - row[f"{name}_low"]

    assert two["token_rate"] == pytest.approx(one["token_rate"] / 1.05)
    for name in ("token_rate", "token_rate_end_to_end"):
        assert width(two, name) > 3 * width(one, name)
    assert width(two, "block_efficiency") == width(one, "block_efficiency")


def test_an_end_beyond_all_numbers_is_no_end():
    assert Interval(1.0, 0.0, 1e4).mapped(exp) == Interval(exp(1.0))
    assert Interval(1.0, 0.0, 2.0).mapped(exp) == Interval(exp(1.0), 1.0, exp(2.0))
