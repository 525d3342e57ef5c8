"""transformers' rows in a job: beside ours, resumed, planned, and refused where it has no batch."""

import logging

import pytest

from spec_bench.system import files
from tests.jobs.tiny import rows_of
from tests.said import naming

CELLS = "cells=[sd:2,hf_generate,hf_assisted:2,hf_prompt_lookup]"
THEIRS = ("hf_generate", "hf_assisted", "hf_prompt_lookup")


def test_rows_stand_in_our_table_with_mark_library_and_speedup(run_job, tmp_path):
    run_job(CELLS, "prompts=2")
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    assert {rows[name]["status"] for name in THEIRS} == {"complete"}
    assert {rows[name]["lossless"] for name in THEIRS} == {"unaudited"}
    assert all(rows[name]["library"].startswith("transformers ") for name in THEIRS)
    assert rows["sd"]["library"] == rows["ar"]["library"] == ""
    for name in THEIRS:
        assert rows[name]["baseline"] == "same job"
        assert float(rows[name]["speedup"]) > 0
        assert float(rows[name]["perplexity"]) >= 1
    assert float(rows["hf_generate"]["block_efficiency"]) == 1


def test_tokens_per_call_are_cut_alike_at_an_answers_end(run_job, tmp_path):
    """transformers drops what it accepts behind an end, so only what was delivered compares."""
    run_job(CELLS, "prompts=4", "generation.temperature=0", "generation.max_new_tokens=3")
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    for row in rows.values():
        cut = float(row["delivered_tokens"]) / float(row["target_calls"])
        assert float(row["block_efficiency_stream"]) == pytest.approx(cut)
    assert float(rows["sd"]["block_efficiency"]) >= 1
    for name in ("hf_assisted", "hf_prompt_lookup"):
        left = ("block_efficiency", "block_efficiency_low", "mbsu", "acceptance_rate")
        assert {rows[name][column] for column in left} == {""}
        assert "behind an answer's end" in rows[name]["reason"]


def test_a_killed_cell_goes_on_where_it_stopped(run_job, tmp_path):
    results = run_job(CELLS, "prompts=3")
    run = {each.facts.decoder: each.run_id for each in results}["hf_assisted"]
    folder = tmp_path / "results" / files.RUNS / run
    path = folder / files.GENERATIONS
    whole = path.read_text()
    (folder / files.RESULT).unlink()
    path.write_text("".join(whole.splitlines(keepends=True)[:1]))
    again = run_job(CELLS, "prompts=3")
    assert [each.run_id for each in again] == [each.run_id for each in results]
    assert path.read_text().splitlines()[0] == whole.splitlines()[0]
    tokens = [
        [line.split('"tokens"')[1].split("]")[0] for line in text.splitlines()]
        for text in (whole, path.read_text())
    ]
    assert tokens[0] == tokens[1]


def test_a_batch_that_it_cannot_decode_is_left_out_with_a_line(run_job, tmp_path, caplog):
    greedy = "generation.temperature=0"
    with caplog.at_level(logging.WARNING):
        run_job(CELLS, "prompts=2", "engine.batch_size=2", greedy)
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    assert rows.keys() == {"ar", "sd", "hf_generate"}
    said = [line for line in caplog.messages if "left out" in line]
    assert len(said) == 2
    assert all("engine.batch_size must be 1, got 2" in line for line in said)


@pytest.mark.parametrize(
    ("cell", "more", "why"),
    [
        ("hf_assisted:2", "generation.temperature=0", "one prompt at a time"),
        ("hf_generate", "generation.temperature=1", "one generator"),
        ("hf_generate", "engine.batching=continuous", "continuous"),
    ],
)
def test_where_nothing_is_left_the_job_is_refused(run_job, cell, more, why):
    greedy = "generation.temperature=0" if "continuous" in more else more
    with pytest.raises(ValueError, match=naming(why)):
        run_job(f"cells=[{cell}]", "engine.batch_size=2", *{greedy, more})
