"""Repeats in the report: counts of the first, seconds of all, and intervals that know of both."""

import json

import pytest

from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.data.counts import Records
from tests.report.rows import record, row, write


def repeated(results, run_id, paces):
    """Writes a cell whose repeats take so many times the first one's seconds."""
    record(results, run_id, [[1, 2], [0, 3], [2, 2], [1, 1], [3, 0], [2, 1], [0, 1], [1, 3]])
    path = results.parent.parent / "runs" / run_id / "generations.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    every = [
        {**line, "repeat": repeat, "decode_s": line["decode_s"] * pace}
        for repeat, pace in enumerate(paces)
        for line in lines
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in every))


def test_seconds_are_of_all_repeats_and_counts_of_the_first(tmp_path):
    results = write(tmp_path, "mine", row("sd", "3", run_id="a")) / "mine" / "results.csv"
    repeated(results, "a", [1.0, 3.0])
    records, own = Records(results), row("sd", "3", run_id="a", seed=0)
    tokens, seconds = (records.counts(own, "token_rate") or {})["0"]
    assert (tokens, seconds) == (2 * 5, pytest.approx(5 * (1 + 3)))
    assert (records.counts(own, "block_efficiency") or {})["0"] == (5, 2)
    assert list(records.by_seed(own, "token_rate") or {}) == ["0", "0/1"]
    assert list(records.by_seed(own, "block_efficiency") or {}) == ["0"]


def test_a_difference_knows_that_whole_repeats_differ(tmp_path):
    results = write(tmp_path, "mine", row("sd", "3", run_id="a")) / "mine" / "results.csv"
    repeated(results, "steady", [1.0, 1.0, 1.0])
    repeated(results, "uneven", [0.8, 1.3, 0.9])
    steady, uneven = (row("sd", "3", run_id=name) for name in ("steady", "uneven"))
    found = difference([[Contrast((uneven,), (steady,))]], "token_rate", Records(results))
    assert found and found.ends is not None
    assert found.value == pytest.approx(0.0)
    assert found.ends[0] < -0.1 and found.ends[1] > 0.1
