"""Jobs on a tiny random pair: resuming, repeating, failing, scoring, sharing the baseline."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.engine.static_pass import Buffers
from spec_bench.jobs.job.session import check_repeated
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.plan import state_of
from spec_bench.records.types import ENGINE
from tests.jobs.tiny import cut, make_task, rows_of, tokens_of
from tests.said import naming

CELLS = "cells=[sd:3,rsd_s:2x2]"


def count_generate(monkeypatch):
    """Notes each call: decoder and prompts."""
    calls, generate = [], Decoder.generate

    def noting(self, requests, *arguments):
        calls.append((self.name, [request.prompt_id for request in requests]))
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", noting)
    return calls


def failing(monkeypatch, error, decoder, prompt=None):
    """Makes a decoder fail at a prompt, or at any."""
    generate = Decoder.generate

    def fail(self, requests, *arguments):
        if self.name == decoder and prompt in (None, requests[0].prompt_id):
            raise error
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", fail)


def test_the_baseline_is_always_among_the_cells_and_never_twice(run_job):
    assert [r.facts.decoder for r in run_job("decoder=sd", "spec=2")] == ["ar", "sd"]
    assert [r.facts.decoder for r in run_job("cells=[ar,sd:2,ar]")] == ["ar", "sd"]


def test_a_row_has_labels_metrics_and_provenance(run_job, tmp_path):
    run_job(CELLS)
    rows = rows_of(tmp_path / "results")
    names = [(row["decoder"], row["spec"]) for row in rows]
    assert names == [("ar", "-"), ("sd", "3"), ("rsd_s", "2x2")]
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
    assert calls == [
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
    assert {name for name, _ in calls} == {"ar", "rsd_c"}
    rows = rows_of(tmp_path / "results")
    assert [row["decoder"] for row in rows] == ["ar", "sd", "rsd_c"]
    assert rows_of(tmp_path / "results", "again") == rows[:2]


def test_a_run_cut_at_any_line_resumes_to_the_same_tokens(run_job, tmp_path):
    whole = tmp_path / "whole"
    results = run_job(CELLS, results=whole)
    expected = {result.run_id: tokens_of(whole, result.run_id) for result in results}
    for lines in range(5):
        again = tmp_path / f"cut{lines}"
        for run_id in expected:
            cut(whole, run_id, lines, again)
        run_job(CELLS, results=again)
        for run_id, tokens in expected.items():
            assert tokens_of(again, run_id) == tokens
            store = CellStore(again, run_id)
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
    failing(monkeypatch, MemoryError("no room for 12 GiB\nsecond line"), "sd", "2")
    statuses = [result.status for result in run_job(CELLS)]
    assert statuses == ["complete", "failed", "complete"]
    row = rows_of(tmp_path / "results")[1]
    assert row["reason"].startswith("MemoryError: no room for 12 GiB (trace: ")
    assert row["lossless"] == row["block_efficiency"] == row["token_rate"] == ""
    trace = tmp_path / "results" / "runs" / row["run_id"] / "trace.txt"
    assert "second line" in trace.read_text()


def test_a_failed_cell_is_tried_again_and_keeps_what_it_had(run_job, monkeypatch):
    with monkeypatch.context() as patch:
        failing(patch, RuntimeError("once"), "sd", "2")
        run_job(CELLS, "warmup=0")
    calls = count_generate(monkeypatch)
    assert [result.status for result in run_job(CELLS, "warmup=0")] == ["complete"] * 3
    # What sd lacks is decoded in turn with the baseline, which is complete.
    assert sorted((name, *ids) for name, ids in calls) == [
        *(("ar", "2"), ("ar", "3"), ("sd", "2"), ("sd", "3"))
    ]


def test_a_failed_baseline_leaves_the_speedup_empty_with_its_reason(run_job, monkeypatch):
    with monkeypatch.context() as patch:
        failing(patch, RuntimeError("no"), "ar")
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


REPEATED = ("cells=[sd:3]", "warmup=0")


def lines_of(results, run_id):
    text = (results / "runs" / run_id / "generations.jsonl").read_text()
    return [(line["repeat"], line["prompt_id"]) for line in map(json.loads, text.splitlines())]


def test_a_repeat_starts_when_all_cells_have_decoded_all_prompts(run_job, tmp_path, monkeypatch):
    calls = count_generate(monkeypatch)
    results = run_job(*REPEATED, "prompts=2", "repeats=2")
    assert [(name, ids[0]) for name, ids in calls] == [
        *[("ar", "0"), ("sd", "0"), ("sd", "1"), ("ar", "1")],
        *[("ar", "0"), ("sd", "0"), ("sd", "1"), ("ar", "1")],
    ]
    for result in results:
        assert lines_of(tmp_path / "results", result.run_id) == [
            *[(0, "0"), (0, "1"), (1, "0"), (1, "1")]
        ]


def test_counts_are_of_one_repeat_and_seconds_of_all(run_job, tmp_path):
    once = run_job(*REPEATED, results=tmp_path / "once")[1]
    thrice = run_job(*REPEATED, "repeats=3", results=tmp_path / "thrice")[1]
    assert once.run_id == thrice.run_id
    for name in ("prompts", "target_calls", "delivered_tokens", "block_efficiency"):
        assert once.metrics[name] == thrice.metrics[name], name
    assert (once.metrics["repeats"], thrice.metrics["repeats"]) == (1, 3)
    windows = CellStore(tmp_path / "thrice", thrice.run_id).load_repeats()
    seconds = sum(each.decode_s for repeat in windows.values() for each in repeat.values())
    assert thrice.metrics["decode_s"] == pytest.approx(seconds / 3)
    tokens = thrice.metrics["delivered_tokens"]
    assert isinstance(tokens, int)
    assert thrice.metrics["token_rate"] == pytest.approx(3 * tokens / seconds)


def test_more_repeats_extend_the_same_cells(run_job, tmp_path, monkeypatch):
    first = run_job(*REPEATED)
    calls = count_generate(monkeypatch)
    second = run_job(*REPEATED, "repeats=2")
    assert [each.run_id for each in first] == [each.run_id for each in second]
    assert len(calls) == 2 * 4
    assert [row["repeats"] for row in rows_of(tmp_path / "results")] == ["2", "2"]
    assert [row["baseline"] for row in rows_of(tmp_path / "results")] == ["same job"] * 2
    calls.clear()
    assert run_job(*REPEATED)[1].metrics["repeats"] == 2
    assert calls == []


@pytest.mark.parametrize("lines", [3, 6])
def test_a_job_cut_in_any_repeat_resumes_there(run_job, tmp_path, monkeypatch, lines):
    whole = run_job(*REPEATED, "repeats=2")[1]
    cut(tmp_path / "results", whole.run_id, lines)
    assert state_of(CellStore(tmp_path / "results", whole.run_id), 4, 2) == ("partial", 8 - lines)
    calls = count_generate(monkeypatch)
    resumed = run_job(*REPEATED, "repeats=2")[1]
    # In turn with the baseline, which is complete.
    assert Counter(name for name, _ in calls) == {"ar": 8 - lines, "sd": 8 - lines}
    assert sorted(lines_of(tmp_path / "results", whole.run_id)) == [
        (repeat, str(prompt)) for repeat in range(2) for prompt in range(4)
    ]
    assert resumed.metrics["block_efficiency"] == whole.metrics["block_efficiency"]


def test_a_repeat_with_other_tokens_fails_the_cell_by_name(run_job, monkeypatch):
    generate = Decoder.generate
    seen = []

    def changing(self, requests, seed, *arguments):
        prompt_id = requests[0].prompt_id
        again = self.name == "sd" and prompt_id == "2" and prompt_id in seen
        seen.extend([prompt_id] * (self.name == "sd"))
        return generate(self, requests, seed + again, *arguments)

    monkeypatch.setattr(Decoder, "generate", changing)
    baseline, sd = run_job(*REPEATED, "repeats=2")
    assert (baseline.status, sd.status) == ("complete", "failed")
    assert "prompt '2': repeat 2 delivered other tokens" in sd.reason


def test_the_check_sees_other_target_calls_with_the_same_tokens(run_job, tmp_path):
    done = CellStore(tmp_path / "results", run_job(*REPEATED)[1].run_id).load()
    again = replace(done["1"], repeat=1)
    check_repeated([again], done)
    with pytest.raises(ValueError, match="prompt '1': repeat 2"):
        check_repeated([replace(again, steps=again.steps[:-1])], done)


def test_where_tokens_may_differ_the_row_says_how_often(run_job, tmp_path, monkeypatch):
    monkeypatch.setattr("spec_bench.jobs.config.settings.JobSettings.repeatable", False)
    generate, calls = Decoder.generate, list[str]()

    def changing(self, requests, seed, *arguments):
        calls.append(self.name)
        return generate(self, requests, seed + (len(calls) == 14), *arguments)

    monkeypatch.setattr(Decoder, "generate", changing)
    results = run_job(*REPEATED, "repeats=2")
    assert [each.status for each in results] == ["complete"] * 2
    assert any("repeats: 1 of 4 later windows" in each.reason for each in results)


SUFFIX = ("decoder=suffix_decoding", "generation.temperature=0", "generation.max_new_tokens=24")


def test_a_job_that_was_stopped_proposes_what_it_would_have(run_job, tmp_path):
    rows = [{"document": "ab"[place % 2] * 9, "summary": "x", "id": place} for place in range(6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def efficiency(folder, *more):
        given = (*SUFFIX, f"task.source.path={path}", *more)
        (_, found) = run_job(*given, results=tmp_path / folder)
        return float(found.metrics["block_efficiency"])

    whole = efficiency("whole", "prompts=6")
    assert efficiency("parts", "prompts=3") < whole, "each text is said three times"
    assert efficiency("parts", "prompts=6") == whole
    assert efficiency("repeated", "prompts=6", "repeats=2") == whole
    assert efficiency("none", "prompts=6", "decoder.drafter.memory=none") < whole


FIXED = ("cells=[rsd_s:2x2]", "prompts=2", "warmup=1")
STATIC = "engine.compile=static"


def test_static_rows_made_nothing_within_their_windows_and_have_the_plain_rows_tokens(
    run_job, tmp_path
):
    plain = run_job(*FIXED, results=tmp_path / "plain")
    static = run_job(*FIXED, STATIC)
    for row in rows_of(tmp_path / "results"):
        assert (row["status"], row["passes"], row["captures"]) == ("complete", "static", "0")
    for row in rows_of(tmp_path / "plain"):
        assert (row["passes"], row["captures"]) == ("", "")
    for one, other in zip(plain, static, strict=True):
        assert one.run_id != other.run_id
        assert tokens_of(tmp_path / "plain", one.run_id) == tokens_of(
            tmp_path / "results", other.run_id
        )


@pytest.mark.slow
def test_passes_that_miss_what_changes_are_caught_and_their_rows_say_eager(
    run_job, tmp_path, monkeypatch
):
    fill = Buffers.fill

    def stale(own, *given):
        """Tokens are never brought into the buffers."""
        kept = own.tokens.clone()
        fill(own, *given)  # type: ignore[arg-type]
        own.tokens.copy_(kept)

    plain = run_job(*FIXED, results=tmp_path / "plain")
    monkeypatch.setattr(Buffers, "fill", stale)
    caught = run_job(*FIXED, STATIC, "engine.threads=1")
    assert {row["passes"] for row in rows_of(tmp_path / "results")} == {"eager"}
    for one, other in zip(plain, caught, strict=True):
        assert tokens_of(tmp_path / "plain", one.run_id) == tokens_of(
            tmp_path / "results", other.run_id
        )


OWN = Path(__file__).parents[1] / "metrics" / "length_ratio.py"


def test_modules_asked_for_by_name_and_path_are_columns(run_job, tmp_path):
    enough = f"task.source.path={make_task(tmp_path, rows=5)}"
    run_job("cells=[sd:3]", "warmup=0", f"task.metrics=[sacrebleu,rouge,{OWN}]", enough)
    for row in rows_of(tmp_path / "results"):
        for name in ("sacrebleu_score", "rouge_rouge2", "rouge_rougeL", "length_ratio_ratio"):
            assert float(row[name]) >= 0
        assert row["rouge2"] == ""  # metrics stand in place of the task's scores
        assert row["quality_signature"].startswith("sacrebleu evaluate:")


def test_metrics_of_the_same_names_as_the_scores_are_the_same_cell(run_job):
    first = run_job("cells=[]", "spec=2x2", "prompts=1")
    # `xsum` scores rouge2 by itself.
    assert run_job("cells=[]", "spec=2x2", "prompts=1", "task.metrics=[rouge2]") == first


def test_a_metric_that_cannot_be_had_is_said_before_anything_is_decoded(run_job, tmp_path):
    with pytest.raises(ValueError, match=naming("'/no/where.py'")):
        run_job("cells=[sd:3]", "task.metrics=[/no/where.py]")
    assert not (tmp_path / "results").exists()


def test_what_a_random_model_says_of_a_database_does_not_run_and_is_counted(run_job, tmp_path):
    (result, *_) = run_job(
        "cells=[sd:3]", "warmup=0", "prompts=5", "task=spider", "task.source.kind=embedded"
    )
    for row in rows_of(tmp_path / "results"):
        assert float(row["execution_accuracy"]) == float(row["execution_accuracy_low"]) == 0.0
        assert 0.5 < float(row["execution_accuracy_high"]) < 0.55  # Clopper and Pearson's of 0 in 5
        assert (float(row["execution_errors"]), float(row["execution_timeouts"])) == (5.0, 0.0)
        assert row["quality_signature"].startswith("execution_accuracy sqlite:")
    config = (tmp_path / "results" / "runs" / result.run_id / "config.yaml").read_text()
    assert "  databases: " in config


def test_a_reference_that_does_not_run_is_said_before_anything_is_decoded(run_job, tmp_path):
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"db_id": "shop", "question": "?", "query": "SELECT x FROM customer"}\n')
    shop = files("spec_bench") / "embedded" / "tasks" / "spider" / "database"
    with pytest.raises(ValueError, match=naming("'SELECT x FROM customer'", "no such column")):
        run_job("task=spider", f"task.source.path={rows}", f"task.database={shop}")
    assert not (tmp_path / "results").exists()


def test_a_job_starts_without_what_only_reports_scores_or_sources_need():
    heavy = ["nltk", "pandas", "datasets", "evaluate", "wandb", "matplotlib"]
    code = (
        "import gc, sys; from spec_bench.__main__ import application; application();"
        f"assert gc.isenabled(); print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
