"""The row of numbers that a cell becomes."""

import json

import numpy as np
import pytest

from spec_bench.metrics import SCORES, CellRecords, metric, summarise, summary_of
from spec_bench.metrics.quality import score_of_sums
from spec_bench.records.types import Generation, StepRecord
from spec_bench.vocabulary import columns


def generation(prompt_id, accepted, decode_s, energy_j=None):
    steps = tuple(StepRecord(3, 3, a, a + 1) for a in accepted)
    tokens = tuple(range(sum(a + 1 for a in accepted)))
    return Generation(prompt_id, tokens, "stop", steps, 0.5, decode_s, 0.25, 0.5, energy_j)


CELL = [generation("a", (3, 1), 1.0), generation("b", (0, 2), 1.0)]
BASELINE = [generation("b", (0,) * 4, 2.0), generation("a", (0,) * 6, 3.0)]


def numbers(cell=CELL, scores=(), **more):
    return summarise(CellRecords(cell, **more), scores)


def test_every_registered_metric_fills_its_columns_and_no_other():
    wanted = [name for each in metric.values() for name in each.column.names]
    assert sorted(numbers()) == sorted([*wanted, "quality_signature"])
    assert set(wanted) <= set(columns.header())


def test_published_numbers_have_intervals():
    for each in columns.of_kind("efficiency", "score"):
        again = each.name.endswith("_stream")  # from another source, to hold the first against
        assert each.interval or each.holds == "text" or again, each.name


def test_columns_hold_the_numbers_of_the_definitions():
    row = numbers(baseline=BASELINE, draft_calls=3, parameter_ratio=0.1)
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
    cell = [generation(str(i), (3, i % 3), 1.0) for i in range(6)]
    baseline = [generation(str(i), (0,) * (5 + i % 3), 3.0 + i) for i in range(6)]
    row = numbers(cell, baseline=baseline, draft_calls=3, parameter_ratio=0.1)
    for name in ("block_efficiency", "mbsu", "speedup"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_two_prompts_have_numbers_without_intervals():
    row = numbers(baseline=BASELINE, draft_calls=3, parameter_ratio=0.1)
    ends = [name for each in columns.COLUMNS for name in each.names[1:] if name in row]
    assert "speedup_low" in ends
    assert {row[name] for name in ends} == {None}


def test_no_call_is_said_to_bring_more_than_the_whole_tree_and_one():
    cell = [generation(str(i), (3, 3, 3, 3 - i % 2), 1.0) for i in range(6)]
    row = numbers(cell, draft_calls=3, parameter_ratio=0.1)
    assert 3.5 < row["block_efficiency"] < row["block_efficiency_high"] <= 4
    assert row["mbsu_high"] == pytest.approx(row["block_efficiency_high"] / 1.3)
    assert row["acceptance_rate_high"] <= 1


def test_ends_that_leave_a_factor_of_more_than_ten_are_left_out():
    cell = [generation(str(i), (3,), 10.0 ** (i % 3)) for i in range(6)]
    row = numbers(cell)
    assert row["token_rate"] == pytest.approx(24 / 222)
    assert row["token_rate_low"] is row["token_rate_high"] is None


def test_the_baseline_against_itself_has_speedup_one_exactly():
    baseline = [generation(str(i), (0,) * (4 + i), 2.0) for i in range(5)]
    row = numbers(baseline, baseline=baseline)
    assert (row["speedup"], row["speedup_low"], row["speedup_high"]) == (1.0, 1.0, 1.0)


def test_the_interval_of_a_speedup_pairs_prompts_by_id_whatever_their_order():
    cell = [generation(str(i), (3, 1), 1.0 + i) for i in range(9)]
    baseline = [generation(str(i), (0,) * 6, 3.0 * (1.0 + i)) for i in range(9)]
    for order in (baseline, baseline[::-1]):
        row = numbers(cell, baseline=order)
        assert row["speedup"] == row["speedup_low"] == pytest.approx(3.0)
        assert row["speedup_high"] == pytest.approx(3.0)


def test_what_was_not_measured_is_empty():
    row = numbers()
    for name in ("speedup", "mbsu", "energy_j_per_token", "quality_signature"):
        assert row[name] is None


def test_quality_columns_are_filled_by_prompt_id_and_signed():
    row = numbers(
        texts={"b": "second text here", "a": "first text here"},
        references={"a": ["first text here"], "b": ["second text here"]},
        scores=["rouge2"],
    )
    assert row["rouge2"] == 1.0
    assert "bleu" not in row
    assert row["quality_signature"].startswith("rouge-score")


def test_every_score_has_a_column():
    assert set(SCORES) <= {each.name for each in columns.of_kind("score")}


def test_a_prompt_without_text_is_refused_by_name():
    with pytest.raises(ValueError, match="no texts for prompts: b"):
        numbers(texts={"a": "x"}, references={"a": ["x"], "b": ["y"]}, scores=["exact_match"])


def test_a_row_is_plain_json():
    row = numbers(baseline=BASELINE, draft_calls=3, parameter_ratio=0.1)
    assert json.loads(json.dumps(row)) == row


def test_a_cell_without_generations_is_refused():
    with pytest.raises(ValueError, match="without generations"):
        numbers([])


def test_what_each_prompt_adds_to_a_score_is_told():
    golds = {"a": ["the boat came back"], "b": ["a storm"]}
    texts = {"b": "no storm at all", "a": "The boat came back!"}
    cell = CellRecords(CELL, texts=texts, references=golds)
    found = summary_of(cell, ["exact_match", "f1", "bleu"])
    counts = found.scores.pop("bleu")  # matches and totals by order, both lengths
    assert counts == {"a": (3, 2, 1, 0, 5, 4, 3, 2, 5, 4), "b": (1, 0, 0, 0, 4, 3, 2, 1, 4, 2)}
    sums = np.array(list(counts.values()), float).sum(axis=0)[:, None]
    (again,) = score_of_sums("bleu", 10)(sums)
    assert again == found.row["bleu"] > 0
    assert found.scores == {"exact_match": {"a": 1.0, "b": 0.0}, "f1": {"a": 1.0, "b": 0.4}}
    assert found.row["f1"] == 0.7
