"""Numbers of a server's answers, by hand."""

import pytest

from spec_bench.metrics import CellRecords, metric
from spec_bench.metrics.summary import summarise
from spec_bench.records.types import Delivery, Generation, StepRecord


def answer(name, seconds, tokens, **more):
    """An answer in chunks, each a call."""
    steps = tuple(StepRecord(n - 1, n - 1, n - 1, n) for n in tokens[1:])
    return Generation(
        *(name, tuple(range(sum(tokens))), "length", steps, seconds[0]),
        *(seconds[-1] - seconds[0], 0.0, 0.0),
        latency_s=seconds[-1],
        delivery=Delivery(seconds, tokens, **more),  # type: ignore[arg-type]
    )


CELL = CellRecords(
    [
        answer("a", (0.1, 0.3, 0.4), (1, 3, 1)),
        answer("b", (0.2, 0.5), (1, 2), counted="requests"),
        answer("c", (0.3,), (1,)),
    ]
)


def test_waiting_gaps_and_whole_answers_have_percentiles_over_requests():
    row = summarise(CELL)
    assert row["ttft_s_p50"] == pytest.approx(0.2)
    assert row["ttft_s_p99"] == pytest.approx(0.298)
    assert row["latency_s_p50"] == pytest.approx(0.4)
    assert row["latency_s_p90"] == pytest.approx(0.48)
    # a: 0.3 s for 4 tokens, b: 0.3 s for 2, c: none
    assert row["inter_token_s_p50"] == pytest.approx((0.075 + 0.15) / 2)
    assert row["chunk_gap_s_p50"] == pytest.approx(0.2)  # of 0.2, 0.1, 0.3


def test_the_first_chunk_is_no_call_and_not_decoded():
    row = summarise(CELL)
    assert row["target_calls"] == 3
    assert row["block_efficiency"] == pytest.approx(6 / 3)
    assert row["block_efficiency_stream"] == pytest.approx(6 / 3)
    assert row["delivered_tokens"] == 9
    assert row["token_rate"] == pytest.approx(6 / 0.6)


def test_tokens_cut_off_the_last_call_count_in_one_of_the_two_alone():
    whole = answer("a", (0.1, 0.3), (1, 2))
    steps = (StepRecord(4, 4, 3, 2),)
    found = summarise(CellRecords([Generation(**{**vars(whole), "steps": steps})]))
    assert (found["block_efficiency"], found["block_efficiency_stream"]) == (4.0, 2.0)


def test_the_source_is_told_with_how_many_prompts_where_it_differs():
    assert summarise(CELL)["block_efficiency_source"] == "requests: 1, stream: 2"
    assert metric["block_efficiency_source"].value(CellRecords(CELL.generations[:1])) == "stream"


def test_of_what_was_decoded_here_none_of_it_is_known():
    plain = Generation("a", (1, 2), "length", (StepRecord(1, 1, 1, 2),), 0.1, 0.2, 0.0, 0.1)
    row = summarise(CellRecords([plain]))
    names = [name for name in row if name.endswith(("_p90", "_source"))]
    assert len(names) == 5
    assert all(row[name] is None for name in names)
    assert row["token_rate"] == pytest.approx(10.0)


def test_tokens_delivered_per_call_leave_out_what_lies_behind_an_answers_end():
    steps = (StepRecord(3, 3, 1, 2), StepRecord(3, 3, 3, 1))
    row = summarise(CellRecords([Generation("a", (1, 2, 3), "stop", steps, 0.1, 0.2, 0.0, 0.1)]))
    assert (row["block_efficiency"], row["block_efficiency_stream"]) == (3.0, 1.5)
