"""The row of numbers that a cell becomes."""

import json

import pytest

from spec_bench.metrics import COLUMNS, METRICS, quality_names, summarise
from spec_bench.records import Generation, StepRecord


def generation(prompt_id, accepted, decode_s, energy_j=None):
    steps = tuple(StepRecord(3, 3, a, a + 1) for a in accepted)
    tokens = tuple(range(sum(a + 1 for a in accepted)))
    return Generation(prompt_id, tokens, "stop", steps, 0.5, decode_s, 0.25, 0.5, energy_j)


CELL = [generation("a", (3, 1), 1.0), generation("b", (0, 2), 1.0)]
BASELINE = [generation("b", (0,) * 4, 2.0), generation("a", (0,) * 6, 3.0)]


def test_every_documented_column_is_there_and_no_other():
    assert list(summarise(CELL)) == list(COLUMNS)


@pytest.mark.parametrize(
    "name",
    [
        "block_efficiency",
        "mbsu",
        "acceptance_rate",
        "token_rate",
        "token_rate_end_to_end",
        "speedup",
        "host_overhead",
        "energy_j_per_token",
        "bleu",
        "rouge2",
        "exact_match",
        "f1",
        "execution_accuracy",
    ],
)
def test_published_numbers_have_interval_columns(name):
    assert {name, f"{name}_low", f"{name}_high"} <= set(COLUMNS)


def test_columns_hold_the_numbers_of_the_definitions():
    row = summarise(CELL, baseline=BASELINE, draft_calls=3, parameter_ratio=0.1)
    assert row["prompts"] == 2
    assert row["target_calls"] == 4
    assert row["delivered_tokens"] == 10
    assert row["block_efficiency"] == 2.5
    assert row["mbsu"] == pytest.approx(2.5 / 1.3)
    assert row["token_rate"] == 5.0
    assert row["token_rate_end_to_end"] == pytest.approx(10 / 3)
    assert row["speedup"] == pytest.approx(5.0 / 2.0)
    assert row["host_overhead"] == 0.25
    assert row["nodes_per_call"] == 3.0
    assert json.loads(row["acceptance_rate_by_depth"]) == [3 / 4, 2 / 3, 1 / 2]


def test_ends_of_the_intervals_enclose_the_value():
    row = summarise(CELL, baseline=BASELINE, draft_calls=3, parameter_ratio=0.1)
    for name in ("block_efficiency", "mbsu", "speedup"):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]


def test_the_baseline_against_itself_has_speedup_one_exactly():
    row = summarise(BASELINE, baseline=BASELINE)
    assert (row["speedup"], row["speedup_low"], row["speedup_high"]) == (1.0, 1.0, 1.0)


def test_what_was_not_measured_is_empty():
    row = summarise(CELL)
    for name in ("speedup", "mbsu", "energy_j_per_token", "bleu", "quality_signature"):
        assert row[name] is None


def test_quality_columns_are_filled_by_prompt_id_and_signed():
    row = summarise(
        CELL,
        texts={"b": "second text here", "a": "first text here"},
        references={"a": ["first text here"], "b": ["second text here"]},
        scores=["rouge2"],
    )
    assert row["rouge2"] == 1.0
    assert row["bleu"] is None
    assert row["quality_signature"].startswith("rouge-score")


def test_scores_are_told_from_other_columns_by_their_names_and_intervals():
    columns = [*COLUMNS, "peak_memory_bytes", "rouge_rougeL", "rouge_rougeL_low"]
    assert quality_names(columns) == [*METRICS, "rouge_rougeL"]
    assert quality_names(["task", "speedup", "speedup_low", "f1"]) == ["f1"]


def test_a_prompt_without_text_is_refused_by_name():
    with pytest.raises(ValueError, match="no texts for prompts: b"):
        summarise(
            CELL, texts={"a": "x"}, references={"a": ["x"], "b": ["y"]}, scores=["exact_match"]
        )


def test_a_row_is_plain_json():
    row = summarise(CELL, baseline=BASELINE, draft_calls=3, parameter_ratio=0.1)
    assert json.loads(json.dumps(row)) == row


def test_a_cell_without_generations_is_refused():
    with pytest.raises(ValueError, match="without generations"):
        summarise([])
