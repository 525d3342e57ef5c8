"""Other tools' acceptance lengths from small records, by hand."""

from __future__ import annotations

import pytest

from spec_bench.metrics.lengths import lengths_of
from spec_bench.records.types import Generation, StepRecord


def answer(prompt: str, category: str, *steps: tuple[int, int]) -> Generation:
    """Of calls (tokens drafted in a chain, accepted)."""
    records = tuple(StepRecord(n, n, accepted, accepted + 1) for n, accepted in steps)
    return Generation(prompt, (1,), "stop", records, 0, 0, 0, 0, category=category)


# Five calls, one of them plain, one with a shorter draft.
ANSWERS = [
    answer("a", "code", (3, 3), (0, 0)),
    answer("b", "code", (3, 1)),
    answer("c", "prose", (1, 1), (3, 0)),
]


def test_tools_divide_by_different_things() -> None:
    found = lengths_of(ANSWERS)
    assert found.ratio_of_sums == pytest.approx((4 + 1 + 2 + 2 + 1) / 5)
    assert found.vllm == pytest.approx(1 + (3 + 1 + 1 + 0) / 4)
    assert found.draft_rate == pytest.approx(5 / 10)
    # Turns of code: 2.5 and 2; of prose: 1.5.
    assert found.mean_of_means == pytest.approx((2.25 + 1.5) / 2)


def test_rates_by_position_are_of_calls_with_a_draft_and_joint_ones_of_all() -> None:
    found = lengths_of(ANSWERS)
    assert found.at_position == pytest.approx((3 / 4, 1 / 4, 1 / 4))
    assert found.joint == pytest.approx((1.0, 3 / 5, 1 / 5, 1 / 5))
    assert found.conditional == pytest.approx((3 / 5, 1 / 3, 1.0))


def test_plain_decoding_has_a_length_of_one_and_no_rates() -> None:
    found = lengths_of([answer("a", "", (0, 0), (0, 0))])
    assert (found.ratio_of_sums, found.vllm, found.draft_rate) == (1.0, None, None)
    assert (found.at_position, found.joint, found.conditional) == ((), (1.0,), ())
    assert lengths_of([]).ratio_of_sums is None
