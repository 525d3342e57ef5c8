"""Jobs on a tiny random pair: resuming, failing, sharing the baseline."""

import json
import os
import time

from spec_bench.decode.decoder import Decoder
from spec_bench.jobs.store.store import CellStore
from spec_bench.records.types import ENGINE
from tests.jobs.tiny import rows_of, tokens_of

CELLS = "cells=[sd:3,rsd_s:2x2]"


def count_generate(monkeypatch):
    """Notes each call: decoder, prompts, token limit."""
    calls = []
    generate = Decoder.generate

    def noting(self, requests, *arguments):
        ids = [request.prompt_id for request in requests]
        calls.append((self.name, ids, requests[0].max_new_tokens))
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", noting)
    return calls


def test_the_baseline_is_always_among_the_cells_and_never_twice(run_job):
    assert [r.facts.decoder for r in run_job("decoder=sd", "spec=2")] == ["ar", "sd"]
    assert [r.facts.decoder for r in run_job("cells=[ar,sd:2,ar]")] == ["ar", "sd"]


def test_a_row_has_labels_metrics_and_provenance(run_job, tmp_path):
    run_job(CELLS)
    rows = rows_of(tmp_path / "results")
    assert [(row["decoder"], row["spec"]) for row in rows] == [
        ("ar", "-"),
        ("sd", "3"),
        ("rsd_s", "2x2"),
    ]
    assert float(rows[0]["block_efficiency"]) == 1.0
    assert float(rows[0]["speedup"]) == 1.0
    for row in rows:
        assert row["status"] == "complete"
        assert row["lossless"] == "exact"
        assert row["pair"] == "target+draft"
        assert row["baseline"] == "same job"
        assert row["energy_j_per_token"] == ""
        assert "no meter" in row["reason"]
        assert (row["data_source"], row["data_file"]) == ("local", "rows.jsonl")
        assert (row["device"], row["dtype"], row["threads"]) == ("cpu", "float32", "1")
        assert (row["attention"], row["stop_rule"]) == ("sdpa", "eos")  # no newline token
        assert row["machine"].startswith(f"{os.cpu_count()} x ")
        assert row["engine"] == str(ENGINE)
        assert row["target_revision"] == rows[0]["target_revision"] != ""
        assert (row["draft_revision"] == "") == (row["decoder"] == "ar")
        assert row["prompts_digest"] == rows[0]["prompts_digest"] != ""
        folder = tmp_path / "results" / "runs" / row["run_id"]
        assert json.loads((folder / "provenance.json").read_text())[0]["versions"]["torch"]
        assert (folder / "config.yaml").exists()


def test_rows_that_changed_under_their_name_are_decoded_and_told_apart(
    family, run_job, tmp_path, monkeypatch
):
    rows = tmp_path / "rows.jsonl"
    own, text = f"task.source.path={rows}", (family / "rows.jsonl").read_text()
    rows.write_text(text)
    before = run_job("cells=[]", "spec=2x2", own)
    rows.write_text(text.replace("harbour", "airport"))
    calls = count_generate(monkeypatch)
    after = run_job("cells=[]", "spec=2x2", own, "warmup=1")
    assert len(calls) == 2 * (1 + 4)
    digests = [result.facts.prompts_digest for result in (*before, *after)]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert {result.facts.data_file for result in (*before, *after)} == {"rows.jsonl"}


def test_prompts_are_interleaved_and_the_first_decoder_rotates(run_job, monkeypatch):
    calls = count_generate(monkeypatch)
    run_job(CELLS, "warmup=0", "prompts=3")
    assert [(name, ids) for name, ids, _ in calls] == [
        *[("ar", ["0"]), ("sd", ["0"]), ("rsd_s", ["0"])],
        *[("sd", ["1"]), ("rsd_s", ["1"]), ("ar", ["1"])],
        *[("rsd_s", ["2"]), ("ar", ["2"]), ("sd", ["2"])],
    ]


def test_warm_up_is_not_recorded(run_job, monkeypatch):
    calls = count_generate(monkeypatch)
    results = run_job(CELLS, "warmup=2", "prompts=3")
    assert len(calls) == 3 * (2 + 3)
    assert [result.metrics["prompts"] for result in results] == [3, 3, 3]


def test_a_complete_cell_is_not_run_again_and_the_baseline_is_shared(
    run_job, tmp_path, monkeypatch
):
    run_job("cells=[sd:3]")
    calls = count_generate(monkeypatch)
    run_job("cells=[sd:3]", "name=again")
    assert calls == []
    run_job("cells=[sd:3,rsd_c:2-1]")
    assert {name for name, _, _ in calls} == {"ar", "rsd_c"}
    rows = rows_of(tmp_path / "results")
    assert [row["decoder"] for row in rows] == ["ar", "sd", "rsd_c"]
    assert rows_of(tmp_path / "results", "again") == rows[:2]


def test_a_run_cut_at_any_line_resumes_to_the_same_tokens(run_job, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    results = run_job(CELLS, results=whole)
    expected = {result.run_id: tokens_of(whole, result.run_id) for result in results}
    for lines in range(5):
        for result in results:
            text = (whole / "runs" / result.run_id / "generations.jsonl").read_text()
            kept = "".join(text.splitlines(keepends=True)[:lines])
            folder = cut / str(lines) / "runs" / result.run_id
            folder.mkdir(parents=True)
            # A kill tears the line that was being written.
            (folder / "generations.jsonl").write_text(kept + text[len(kept) :][:20])
        run_job(CELLS, results=cut / str(lines))
        for run_id, tokens in expected.items():
            assert tokens_of(cut / str(lines), run_id) == tokens
            store = CellStore(cut / str(lines), run_id)
            assert store.complete()
            assert len((store.folder / "generations.jsonl").read_text().splitlines()) == 4


def test_a_batch_gives_the_tokens_of_single_rows(run_job, tmp_path):
    single = run_job(CELLS, results=tmp_path / "1")
    batched = run_job(CELLS, "engine.batch_size=3", results=tmp_path / "3")
    for one, many in zip(single, batched, strict=True):
        assert one.run_id != many.run_id
        assert tokens_of(tmp_path / "1", one.run_id) == tokens_of(tmp_path / "3", many.run_id)


def test_a_failing_cell_is_a_row_without_numbers_and_the_others_go_on(
    run_job, tmp_path, monkeypatch
):
    generate = Decoder.generate

    def failing(self, requests, *arguments):
        if self.name == "sd" and requests[0].prompt_id == "2":
            raise MemoryError("no room for 12 GiB\nsecond line")
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", failing)
    statuses = [result.status for result in run_job(CELLS)]
    assert statuses == ["complete", "failed", "complete"]
    row = rows_of(tmp_path / "results")[1]
    assert row["reason"].startswith("MemoryError: no room for 12 GiB (trace: ")
    assert row["lossless"] == row["block_efficiency"] == row["token_rate"] == ""
    trace = tmp_path / "results" / "runs" / row["run_id"] / "trace.txt"
    assert "second line" in trace.read_text()


def test_a_failed_cell_is_tried_again_and_keeps_what_it_had(run_job, monkeypatch):
    generate = Decoder.generate

    def failing(self, requests, *arguments):
        if self.name == "sd" and requests[0].prompt_id == "2":
            raise RuntimeError("once")
        return generate(self, requests, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "generate", failing)
        run_job(CELLS, "warmup=0")
    calls = count_generate(monkeypatch)
    assert [result.status for result in run_job(CELLS, "warmup=0")] == ["complete"] * 3
    # What sd lacks is decoded in turn with the baseline, which is complete.
    assert sorted((name, *ids) for name, ids, _ in calls) == [
        *(("ar", "2"), ("ar", "3"), ("sd", "2"), ("sd", "3"))
    ]


def test_a_failed_baseline_leaves_the_speedup_empty_with_its_reason(run_job, monkeypatch):
    generate = Decoder.generate

    def failing(self, *arguments):
        if self.name == "ar":
            raise RuntimeError("no")
        return generate(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "generate", failing)
        baseline, sd = run_job("cells=[sd:3]")
    assert (baseline.status, sd.status) == ("failed", "partial")
    assert sd.metrics["block_efficiency"] is not None
    assert sd.metrics["speedup"] is None
    assert sd.baseline is None
    assert "speedup: the baseline failed" in sd.reason
    calls = count_generate(monkeypatch)
    baseline, sd = run_job("cells=[sd:3]")
    assert (baseline.status, sd.status) == ("complete", "complete")
    assert (sd.baseline, sd.metrics["speedup"] is None) == ("same job", False)
    assert len(calls) == 2 * (1 + 4)  # both, in turn: what stood alone is timed again


def test_several_drafts_go_to_the_decoder_that_asks_for_them(run_job, family):
    two = f"pair.draft=[{family / 'draft'},{family / 'target'}]"
    results = run_job(two, "cells=[sd:2,{decoder:specinfer,spec:2-1,drafter:{drafts:2}}]")
    assert [len(r.facts.draft) for r in results] == [0, 1, 2]


def test_wandb_gets_one_offline_run_a_cell(run_job, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    results = run_job("cells=[]", "spec=2x2", "prompts=2", "sink.wandb.enabled=true")
    folders = [path.name for path in tmp_path.glob("results/default/wandb/offline-run-*")]
    for result in results:
        assert sum(name.endswith(result.run_id) for name in folders) == 1


def test_a_clock_that_runs_backwards_fails_the_row(run_job, monkeypatch):
    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: -real())
    for result in run_job("cells=[sd:2]", "prompts=1", "warmup=0"):
        assert result.status == "failed"
        assert "the clock ran backwards" in result.reason
