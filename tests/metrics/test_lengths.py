"""Other tools' acceptance lengths from small records, by hand."""

from pathlib import Path

import pytest

from spec_bench.metrics.calls import lengths_of
from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.cli.command_line import main

SMOLLM2 = Path(__file__).parents[2] / "results" / "smollm2" / "results.csv"


def answer(prompt, category, *steps):
    """Of calls (tokens drafted in a chain, accepted)."""
    records = tuple(StepRecord(n, n, accepted, accepted + 1) for n, accepted in steps)
    return Generation(prompt, (1,), "stop", records, 0, 0, 0, 0, category=category)


# Five calls, one of them plain, one with a shorter draft.
ANSWERS = [
    answer("a", "code", (3, 3), (0, 0)),
    answer("b", "code", (3, 1)),
    answer("c", "prose", (1, 1), (3, 0)),
]


def test_tools_divide_by_different_things():
    found = lengths_of(ANSWERS)
    assert found.ratio_of_sums == pytest.approx((4 + 1 + 2 + 2 + 1) / 5)
    assert found.vllm == pytest.approx(1 + (3 + 1 + 1 + 0) / 4)
    assert found.draft_rate == pytest.approx(5 / 10)


def test_speed_benchs_average_is_over_all_calls_of_a_question_then_over_questions():
    turns = [
        answer("81/0", "writing", (3, 3)),
        answer("81/1", "writing", (3, 0), (3, 1), (3, 0)),
        answer("82", "writing", (3, 1)),
        answer("a/83", "math", (3, 2)),
    ]
    # 81 emits 4, then 1, 2, 1: 2 a call, where its turns' means average 8/3; then 82's and 83's.
    assert lengths_of(turns, turns=True).mean_of_means == pytest.approx((2 + 2 + 3) / 3)
    # Without turns every prompt is a question, whatever its name: HumanEval/0, HumanEval/1.
    found = lengths_of([answer("H/0", "", (3, 3)), answer("H/1", "", (3, 1), (3, 1))])
    assert found.mean_of_means == pytest.approx((4 + 2) / 2)


def test_rates_by_position_are_of_calls_with_a_draft_and_joint_ones_of_all():
    found = lengths_of(ANSWERS)
    assert found.at_position == pytest.approx((3 / 4, 1 / 4, 1 / 4))
    assert found.joint == pytest.approx((1.0, 3 / 5, 1 / 5, 1 / 5))
    assert found.conditional == pytest.approx((3 / 5, 1 / 3, 1.0))


def test_plain_decoding_has_a_length_of_one_and_no_rates():
    found = lengths_of([answer("a", "", (0, 0), (0, 0))])
    assert (found.ratio_of_sums, found.vllm, found.draft_rate) == (1.0, None, None)
    assert (found.at_position, found.joint, found.conditional) == ((), (1.0,), ())
    assert lengths_of([]).ratio_of_sums is None


def test_a_committed_tables_problems_are_questions_each_whatever_their_names_slashes(capsys):
    assert main(["lengths", str(SMOLLM2)]) == 0
    lookup = next(line for line in capsys.readouterr().out.splitlines() if "prompt_lookup" in line)
    assert "2.444" in lookup  # HumanEval/0, HumanEval/1, ... as one question: 1.884
