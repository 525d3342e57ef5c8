"""Calls by where they stand: columns by powers of two, checked by hand."""

from dataclasses import replace

import pytest

from spec_bench.metrics.calls import by_position
from spec_bench.records.types import Generation, StepRecord


def answer(prompt, tokens, *delivered):
    steps = tuple(StepRecord(4, 4, count - 1, count) for count in delivered)
    said = (1,) * sum(delivered)
    made = Generation(prompt, said, "length", steps, 0.1, 1.0, 0.2, 0.5)
    return replace(made, prompt_tokens=tokens)


def test_a_call_counts_where_it_begins():
    """After 6 tokens, 8 and 11: one call below 8, two up to 15; after 15 and 16 the next."""
    found = by_position([answer("a", 6, 2, 3, 4), answer("b", 15, 1, 3)])
    assert [(each.first, each.last) for each in found] == [(4, 7), (8, 15), (16, 31)]
    assert [(each.calls, each.prompts) for each in found] == [(1, 1), (3, 2), (1, 1)]
    emitted = [each.emitted.value for each in found if each.emitted]
    assert emitted == pytest.approx([2, (3 + 4 + 1) / 3, 3])


def test_an_interval_needs_several_prompts():
    found = by_position([answer(str(i), 40, 1 + i % 3, 2) for i in range(12)])
    (stretch,) = found
    assert stretch.emitted is not None
    assert stretch.emitted.low is not None
    assert stretch.emitted.low < stretch.emitted.value < stretch.emitted.high
    (few,) = by_position([answer("a", 40, 2)])
    assert few.emitted is not None
    assert few.emitted.low is None


def test_prompts_of_unknown_length_have_no_place():
    assert by_position([answer("a", None, 2, 3)]) == []
