"""Jobs on a tiny random pair: resuming, repeating, failing, scoring, timing the baseline beside."""

import json
import os
import re
import shutil
import time
from collections import Counter, defaultdict
from dataclasses import replace
from importlib.resources import files as resources
from itertools import product
from pathlib import Path

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.engine.cache import CachePool
from spec_bench.jobs.app import build_unpinned_settings
from spec_bench.jobs.config.compose import compose_config
from spec_bench.jobs.job import results
from spec_bench.jobs.job.job import run_job as run_a_job
from spec_bench.jobs.job.session import (
    find_untimed_keys,
    index_timings,
    require_equal_repeats,
    select_paired_timings,
)
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.plan import plan_stage, read_cell_state
from spec_bench.jobs.work import models
from spec_bench.measure import monitors
from spec_bench.metrics import plain
from spec_bench.records import cell_folder, parquet
from spec_bench.records.types import ENGINE, Generation, StepRecord
from spec_bench.report.claims.contrast import compute_difference
from spec_bench.report.comparison import compare_results
from spec_bench.report.data import rows as table_rows
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.page.headline import list_headline_sentences
from spec_bench.system import files
from tests.jobs.tiny import cut, failing, make_task, overrides, rows_of, tokens_of
from tests.question_files import written
from tests.said import naming

CELLS = "cells=[sd:3,rsd_s:2x2]"


def test_the_cells_are_the_baseline_once_and_those_asked_for(run_job, family):
    assert [r.facts.decoder for r in run_job("decoder=sd", "spec=2")] == ["ar", "sd"]
    assert [r.facts.decoder for r in run_job("cells=[ar,sd:2,ar]")] == ["ar", "sd"]
    two = f"pair.draft=[{family / 'draft'},{family / 'target'}]"
    results = run_job(two, "cells=[sd:2,{decoder:specinfer,spec:2-1,drafter:{drafts:2}}]")
    assert [len(r.facts.draft) for r in results] == [0, 1, 2]


def test_more_prompts_are_decoded_beside_those_that_are_answered(run_job, calls, tmp_path):
    few = run_job(CELLS, "prompts=2", "warmup=0")
    decoded = len(calls)
    many = run_job(CELLS, "prompts=3", "warmup=0")
    assert {name for name, _ in calls[decoded:]} == {each.facts.decoder for each in few}
    assert {prompt for _, prompts in calls[decoded:] for prompt in prompts} == {"2"}
    alone = run_job(CELLS, "prompts=3", "warmup=0", results=tmp_path / "alone")
    for one, other in zip(many, alone, strict=True):
        assert one.run_id == other.run_id and one.status == "complete"
        ours = tokens_of(tmp_path / "results", one.run_id)
        assert ours == tokens_of(tmp_path / "alone", one.run_id) and len(ours) == 3
        assert one.metrics["block_efficiency"] == other.metrics["block_efficiency"]
        done = CellStore(tmp_path / "results", one.run_id).load_first_repeat()
        sessions = [done[prompt].session for prompt in "012"]
        assert sessions[0] == sessions[1] != sessions[2]
        assert one.metrics["speedup"]


def test_a_damaged_cell_of_fewer_prompts_is_decoded_again_with_more(run_job, calls, tmp_path):
    few = run_job(CELLS, "prompts=2", "warmup=0")
    for each in few:
        (files.get_run_folder(tmp_path / "results", each.run_id) / files.CELL).write_text("{")
    decoded = len(calls)
    assert [each.status for each in run_job(CELLS, "prompts=3", "warmup=0")] == ["complete"] * 3
    assert {prompt for _, prompts in calls[decoded:] for prompt in prompts} == {"0", "1", "2"}


@pytest.mark.parametrize("other", ["seed=1", "generation.max_new_tokens=5", "engine.batch_size=2"])
def test_answers_under_other_settings_are_not_taken_for_more_prompts(other, run_job, calls):
    run_job(CELLS, "prompts=2", "warmup=0")
    decoded = len(calls)
    run_job(CELLS, "prompts=3", "warmup=0", other)
    assert {prompt for _, prompts in calls[decoded:] for prompt in prompts} == {"0", "1", "2"}


def test_a_row_has_labels_metrics_and_provenance(run_job, tmp_path):
    run_job(CELLS)
    rows = rows_of(tmp_path / "results")
    names = [(row["decoder"], row["spec"]) for row in rows]
    assert names == [("ar", "-"), ("sd", "3"), ("rsd_s", "2x2")]
    assert float(rows[0]["block_efficiency"]) == float(rows[0]["speedup"]) == 1.0
    expected = {
        **{"status": "complete", "lossless": "exact", "pair": "target+draft"},
        **{"baseline": "same job", "energy_j_per_token": "", "data_source": "local"},
        **{"data_file": "rows.jsonl", "device": "cpu", "dtype": "float32", "threads": "1"},
        **{"attention": "sdpa", "stop_rule": "eos+newline", "engine": str(ENGINE)},
    }
    for row in rows:
        assert {name: row[name] for name in expected} == expected
        assert "no meter" in row["reason"]
        assert row["machine"].startswith(f"{os.cpu_count()} x ")
        assert row["target_revision"] == rows[0]["target_revision"] != ""
        assert (row["draft_revision"] == "") == (row["decoder"] == "ar")
        assert row["prompts_digest"] == rows[0]["prompts_digest"] != ""
        cell = cell_folder.read_cell_json(tmp_path / "results" / "runs" / row["run_id"])
        assert cell["starts"][0]["versions"]["torch"] and cell["settings"]["pair"]


def test_prompts_are_interleaved_and_the_first_decoder_rotates(run_job, calls):
    run_job(CELLS, "warmup=0", "prompts=3")
    assert calls == [
        *[("ar", ["0"]), ("sd", ["0"]), ("rsd_s", ["0"])],
        *[("sd", ["1"]), ("rsd_s", ["1"]), ("ar", ["1"])],
        *[("rsd_s", ["2"]), ("ar", ["2"]), ("sd", ["2"])],
    ]
    calls.clear()
    results = run_job(CELLS, "warmup=2", "prompts=3", "seed=1")
    assert len(calls) == 3 * (2 + 3)
    assert [result.metrics["prompts"] for result in results] == [3, 3, 3]


def test_a_complete_cell_is_not_run_again_and_the_baseline_is_shared(run_job, tmp_path, calls):
    run_job("cells=[sd:3]")
    calls.clear()
    run_job("cells=[sd:3]", "name=again")
    assert calls == []
    run_job("cells=[sd:3,rsd_c:2-1]")
    assert {name for name, _ in calls} == {"ar", "rsd_c"}
    rows = rows_of(tmp_path / "results")
    assert [row["decoder"] for row in rows] == ["ar", "sd", "rsd_c"]
    assert rows_of(tmp_path / "results", "again") == rows[:2]


def test_a_run_cut_at_any_line_resumes_in_turn_to_the_same_tokens(run_job, tmp_path, calls, caplog):
    caplog.set_level("INFO")
    whole, given = tmp_path / "whole", (CELLS, "warmup=0", "prompts=3")
    expected = {r.run_id: tokens_of(whole, r.run_id) for r in run_job(*given, results=whole)}
    for lines in range(4):
        again = tmp_path / f"cut{lines}"
        for run_id in expected:
            cut(whole, run_id, lines, again)
        calls.clear()
        caplog.clear()
        baseline, *results = run_job(*given, results=again)
        assert (f"{3 * lines} of 9 answers are there" in caplog.text) == (lines > 0)
        left = [(name, f"{prompt}") for name in ("ar", "rsd_s", "sd") for prompt in range(lines, 3)]
        assert sorted((name, *ids) for name, ids in calls) == left  # nothing is timed twice
        for run_id, tokens in expected.items():
            assert tokens_of(again, run_id) == tokens
            store = CellStore(again, run_id)
            assert store.is_complete()
            assert len((store.folder / "generations.jsonl").read_text().splitlines()) == 3
        assert files.find_retimed_paths(CellStore(again, baseline.run_id).folder) == []
        for result in results:
            assert (result.baseline, result.metrics["speedup"] is None) == ("same job", False)
            told = cell_folder.read_cell_json(again / "runs" / result.run_id)
            assert len(told["compared"]["sessions"]) == 1 + (0 < lines < 3)


def test_a_failing_cell_is_a_row_without_numbers_and_is_tried_again(
    run_job, tmp_path, calls, monkeypatch
):
    with monkeypatch.context() as patch:
        failing(patch, MemoryError("no room for 12 GiB\nsecond line"), "sd")
        results = run_job(CELLS, "warmup=0")
    assert [result.status for result in results] == ["complete", "failed", "complete"]
    row = rows_of(tmp_path / "results")[1]
    assert row["reason"].startswith("MemoryError: no room for 12 GiB (trace: ")
    assert row["lossless"] == row["block_efficiency"] == row["token_rate"] == ""
    trace = tmp_path / "results" / "runs" / row["run_id"] / "trace.txt"
    assert "second line" in trace.read_text()
    calls.clear()
    assert [result.status for result in run_job(CELLS, "warmup=0")] == ["complete"] * 3
    # What sd lacks is decoded in turn with the baseline, which is complete.
    assert sorted((name, *ids) for name, ids in calls) == [
        *((name, str(prompt)) for name in ("ar", "sd") for prompt in range(4))
    ]


def test_a_failed_baseline_leaves_the_speedup_empty_with_its_reason(run_job, calls, monkeypatch):
    with monkeypatch.context() as patch:
        failing(patch, RuntimeError("no"), "ar")
        baseline, sd = run_job("cells=[sd:3]")
    assert (baseline.status, sd.status) == ("failed", "partial")
    assert sd.metrics["block_efficiency"] is not None
    assert sd.metrics["speedup"] is None
    assert sd.baseline is None
    assert "speedup: the baseline failed" in sd.reason
    calls.clear()
    baseline, sd = run_job("cells=[sd:3]")
    assert (baseline.status, sd.status) == ("complete", "complete")
    assert (sd.baseline, sd.metrics["speedup"] is None) == ("same job", False)
    assert len(calls) == 2 * (1 + 4)  # both, in turn: what stood alone is timed again


@pytest.mark.parametrize(("temperature", "said"), [("0", 1), ("1", 0)])
def test_greedy_answers_that_are_not_plain_decodings_are_counted(
    temperature, said, run_job, monkeypatch, caplog
):
    def pair_with_another_answer(*given):
        (first, *rest), *again = select_paired_timings(*given)
        return [[replace(first, tokens=(*first.tokens, 0)), *rest], *again]

    monkeypatch.setattr(results, "select_paired_timings", pair_with_another_answer)
    run_job("cells=[sd:3]", "warmup=0", f"generation.temperature={temperature}")
    assert caplog.text.count("sd 3: 1 of 4 greedy answers differ from plain decoding's") == said


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


def test_a_repeat_starts_behind_all_cells_extends_them_and_resumes_wherever_it_was_cut(
    run_job, tmp_path, calls
):
    given, results = (*REPEATED, "prompts=2"), tmp_path / "results"
    (_, first) = run_job(*given, "repeats=2")
    once = [("ar", ["0"]), ("sd", ["0"]), ("sd", ["1"]), ("ar", ["1"])]
    assert calls == [*once, *once]
    assert lines_of(results, first.run_id) == [(0, "0"), (0, "1"), (1, "0"), (1, "1")]
    calls.clear()
    (_, whole) = run_job(*given, "repeats=3")
    assert (calls, whole.run_id) == (once, first.run_id)
    rows = [(row["repeats"], row["baseline"]) for row in rows_of(results)]
    assert rows == [("3", "same job")] * 2
    for lines in (1, 3, 5):
        cut(results, whole.run_id, lines)
        left = 6 - lines
        assert read_cell_state(CellStore(results, whole.run_id), 2, 3) == ("partial", left)
        calls.clear()
        (_, resumed) = run_job(*given, "repeats=3")
        # In turn with the baseline, which is complete.
        assert Counter(name for name, _ in calls) == {"ar": left, "sd": left}
        assert sorted(lines_of(results, whole.run_id)) == sorted(product(range(3), "01"))
        assert resumed.metrics["block_efficiency"] == whole.metrics["block_efficiency"]
    calls.clear()
    assert run_job(*given)[1].metrics["repeats"] == 3
    assert calls == []


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
    assert thrice.metrics["token_rate"] == pytest.approx(3 * tokens / seconds)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_repeat_with_other_tokens_fails_the_cell_unless_tokens_may_differ(
    run_job, monkeypatch, repeatable
):
    monkeypatch.setattr("spec_bench.jobs.config.settings.JobSettings.is_repeatable", repeatable)
    generate, seen = Decoder.generate, []

    def changing(self, requests, seed, *arguments):
        seen.extend(each.prompt_id for each in requests if self.name == "sd")
        again = self.name == "sd" and seen[-1] == "2" and seen.count("2") == 2
        return generate(self, requests, seed + again, *arguments)

    monkeypatch.setattr(Decoder, "generate", changing)
    baseline, sd = run_job(*REPEATED, "repeats=2")
    assert (baseline.status, sd.status) == (
        "complete",
        "complete" if repeatable is False else "failed",
    )
    said = "prompt '2': repeat 2 delivered other tokens"
    assert (said if repeatable else "repeats: 1 of 4 later windows") in sd.reason


def test_a_job_that_was_stopped_proposes_what_it_would_have(run_job, tmp_path):
    rows = [{"document": "ab"[place % 2] * 9, "summary": "x", "id": place} for place in range(6)]
    path = written(tmp_path / "rows.jsonl", *rows)
    suffix = ("decoder=suffix_decoding", "generation.temperature=0", f"task.source.path={path}")

    def efficiency(folder, *more):
        given = (*suffix, "generation.max_new_tokens=24", *more)
        (_, found) = run_job(*given, results=tmp_path / folder)
        return float(found.metrics["block_efficiency"])

    whole = efficiency("whole", "prompts=6")
    assert efficiency("parts", "prompts=3") < whole, "each text is said three times"
    assert efficiency("parts", "prompts=6") == whole
    assert efficiency("repeated", "prompts=6", "repeats=2") == whole
    assert efficiency("none", "prompts=6", "decoder.drafter.memory=none") < whole


def test_rows_that_would_be_recorded_on_a_gpu_say_how_they_ran_and_have_the_plain_rows_tokens(
    run_job, tmp_path
):
    given, own, plain = ("cells=[rsd_s:2x2]", "prompts=2"), tmp_path / "static", tmp_path / "plain"
    for one, other in zip(
        run_job(*given, results=plain),
        run_job(*given, "engine.compile=static", results=own),
        strict=True,
    ):
        assert one.run_id != other.run_id
        assert tokens_of(plain, one.run_id) == tokens_of(own, other.run_id)
    for row in rows_of(own):
        assert (row["status"], row["passes"], row["captures"]) == ("complete", "eager", "0")
    for row in rows_of(plain):
        assert (row["passes"], row["captures"]) == ("", "")


OWN = Path(__file__).parents[1] / "metrics" / "length_ratio.py"


def test_modules_asked_for_by_name_and_path_are_columns(run_job, tmp_path):
    enough = f"task.source.path={make_task(tmp_path, rows=5)}"
    run_job("cells=[sd:3]", "warmup=0", f"task.metrics=[sacrebleu,rouge,{OWN}]", enough)
    for row in rows_of(tmp_path / "results"):
        for name in ("sacrebleu_score", "rouge_rouge2", "rouge_rougeL", "length_ratio_ratio"):
            assert float(row[name]) >= 0
        assert row["rouge2"] == ""  # metrics stand in place of the task's scores
        assert row["quality_signature"].startswith("sacrebleu evaluate:")
    first = run_job("cells=[]", "spec=2x2", "prompts=1")
    # `xsum` scores rouge2 by itself.
    assert run_job("cells=[]", "spec=2x2", "prompts=1", "task.metrics=[rouge2]") == first


MINE = ["task.source.path=mine.jsonl"]
SHOP = resources("spec_bench") / "embedded" / "tasks" / "spider" / "database"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["task.metrics=[/no/where.py]"], ["'/no/where.py'"]),
        (
            ["task=jsonl", 'task.template="{question}"', f"task.metrics=[{OWN}]", *MINE],
            ["mine.jsonl, line 1 has no reference for", "length_ratio.py: give one in 'reference'"],
        ),
        (
            ["task=spider", *MINE, f"task.database={SHOP}"],
            ["'SELECT x FROM customer'", "no such column"],
        ),
    ],
)
def test_a_score_that_cannot_be_is_said_before_anything_is_decoded(
    run_job, tmp_path, monkeypatch, given, named
):
    monkeypatch.chdir(tmp_path)
    row = {"db_id": "shop", "question": "?", "query": "SELECT x FROM customer"}
    Path("mine.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=naming(*named)):
        run_job(*given)
    assert not Path("results").exists()


def test_a_field_of_references_that_no_row_has_is_said(run_job, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"prompt": "the cat", "reference": "sat"}')
    run_job("task=jsonl", *MINE, "cells=[]", "decoder=ar", "task.reference=answer")
    assert "no row has an answer in task.reference=answer" in caplog.text


def test_what_a_random_model_says_of_a_database_does_not_run_and_is_counted(run_job, tmp_path):
    spider = ("task=spider", "task.source.kind=embedded", "task.source.path=null")
    (result, *_) = run_job("cells=[sd:3]", "warmup=0", "prompts=5", *spider)
    for row in rows_of(tmp_path / "results"):
        assert float(row["execution_accuracy"]) == float(row["execution_accuracy_low"]) == 0.0
        assert 0.5 < float(row["execution_accuracy_high"]) < 0.55  # Clopper and Pearson's of 0 in 5
        assert (float(row["execution_errors"]), float(row["execution_timeouts"])) == (5.0, 0.0)
        assert row["quality_signature"].startswith("execution_accuracy sqlite:")
    config = (tmp_path / "results" / "runs" / result.run_id / "cell.json").read_text()
    assert '"databases": ' in config


def test_a_jobs_caches_are_freed_at_its_end(run_job, monkeypatch):
    taken, cache = [], CachePool.get_or_grow_cache
    monkeypatch.setattr(
        CachePool,
        "get_or_grow_cache",
        lambda pool, *how: taken.append(cache(pool, *how)) or taken[-1],
    )
    run_job("cells=[sd:2]", "prompts=1")
    assert taken and not any(each.bytes for each in taken)


QUICK = ("warmup=0", "prompts=3")


def of(prompt, session, seconds=1.0, repeat=0):
    step = StepRecord(0, 0, 0, 1)
    times = (0.1, seconds, 0.0, seconds / 2)
    return Generation(prompt, (5,), "stop", (step,), *times, repeat=repeat, session=session)


def rate(generations):
    seconds = sum(each.decode_s for each in generations)
    return sum(len(each.tokens) for each in generations) / seconds


def test_only_a_baseline_of_the_same_session_repeat_and_prompt_is_a_pair():
    again = of("1", "a", repeat=1)
    require_equal_repeats([again], {"1": of("1", "a")})
    with pytest.raises(ValueError, match="prompt '1': repeat 2"):  # of the same tokens
        require_equal_repeats([replace(again, steps=())], {"1": of("1", "a")})
    against = index_timings(
        [of("0", "a", 1.0), of("0", "b", 2.0), of("1", "a", 3.0), of("1", "c", 4.0)]
    )
    both = [[of("0", "b", 2.0), of("1", "a", 3.0)]]
    assert select_paired_timings([[of("0", "b"), of("1", "a")]], against) == both
    assert select_paired_timings([[of("0", "c"), of("1", "a")]], against) is None
    assert select_paired_timings([[of("0", "a")], [of("0", "a", repeat=1)]], against) is None
    done = defaultdict(dict, {0: {"0": of("0", "b"), "1": of("1", "b")}})
    assert find_untimed_keys(done, against) == {(0, "1")}


def test_cells_that_are_added_to_a_finished_job_have_a_baseline_timed_in_turn(
    run_job, tmp_path, calls
):
    baseline, _ = run_job("cells=[sd:3]", *QUICK)
    calls.clear()
    again, _, added = run_job("cells=[sd:3,rsd_c:2-1]", *QUICK)
    assert calls == [
        *(("ar", ["0"]), ("rsd_c", ["0"])),
        *(("rsd_c", ["1"]), ("ar", ["1"])),
        *(("ar", ["2"]), ("rsd_c", ["2"])),
    ]
    assert again == baseline
    assert added.baseline == "same job"
    results = tmp_path / "results"
    ours, theirs = CellStore(results, added.run_id), CellStore(results, baseline.run_id)
    retimed = theirs.load_retimed()
    speedup = rate([*ours.load_first_repeat().values()]) / rate(retimed)
    assert added.metrics["speedup"] == pytest.approx(speedup)
    assert speedup != pytest.approx(
        rate([*ours.load_first_repeat().values()]) / rate([*theirs.load_first_repeat().values()])
    )
    compared = cell_folder.read_cell_json(ours.folder)["compared"]
    (session,) = {each.session for each in retimed}
    assert compared == {"run_id": baseline.run_id, "sessions": [session]}
    names = [path.name for path in files.find_retimed_paths(theirs.folder)]
    assert names == [f"retimed-{session}.jsonl"]

    # What is committed knows of both timings, so that the cells can be paired without the runs.
    table = files.get_results_file(results, "default")
    shutil.rmtree(results / files.RUNS)
    kept = parquet.read_records(files.get_records_file(table)).get_generations(
        f"{baseline.run_id}/again"
    )
    assert [each.decode_s for each in kept] == [each.decode_s for each in retimed]
    rows = {row["run_id"]: row for row in table_rows.to_rows(table_rows.read_results_file(table))}
    pair = ((rows[added.run_id],), (rows[baseline.run_id],))
    gap = compute_difference([[pair]], "token_rate", RecordReader(table))
    assert gap and gap.tested and gap.value == pytest.approx(speedup - 1)


def test_a_job_waits_for_a_cell_that_another_holds_and_then_runs(family, tmp_path):
    given = overrides(family, tmp_path, "decoder=sd", "spec=2", "prompts=1")
    settings, said = build_unpinned_settings(compose_config(given)), []
    other = CellStore(tmp_path, settings.compute_run_id(settings.cells[1]))
    assert other.lock(wait=False)

    def says(state):
        said.append((state, other.load_result()))
        other.unlock()

    assert [result.status for result in run_a_job(settings, says)] == ["complete", "complete"]
    assert said == [("waiting", None), ("running", None)]


def test_a_baseline_that_another_job_holds_is_timed_here_too_and_nobody_waits(
    run_job, tmp_path, calls
):
    results, (baseline, _) = tmp_path / "results", run_job("cells=[sd:3]", *QUICK)
    tokens = tokens_of(results, baseline.run_id)
    for cell, kept, timed in (("sd:2", 3, 1), ("sd:1", 1, 2)):  # it has decoded all, and a part
        cut(results, baseline.run_id, kept)
        other = CellStore(results, baseline.run_id)
        other.lock()
        *_, added = run_job(f"cells=[{cell}]", *QUICK)
        assert added.status == "complete" and added.metrics["speedup"] > 0
        assert (
            len(other.load_first_repeat()) == kept
            and len(files.find_retimed_paths(other.folder)) == timed
        )
        other.unlock()
    calls.clear()
    again, same = run_job("cells=[sd:1]", *QUICK)
    assert [name for name, _ in calls] == ["ar", "ar"]
    assert tokens_of(results, again.run_id) == tokens and same == added
    assert (
        len(
            cell_folder.pack_valid_cell_folder(other.folder).get_generations(
                f"{baseline.run_id}/again"
            )
        )
        == 6
    )


@pytest.mark.parametrize("late", ["ar", "sd"])
def test_a_prompt_that_a_kill_left_to_one_of_the_two_is_timed_for_both(late, run_job, tmp_path):
    whole = run_job("cells=[sd:3]", *QUICK)
    for result in whole:
        cut(tmp_path / "results", result.run_id, 2 if result.facts.decoder == late else 3)
    resumed = run_job("cells=[sd:3]", *QUICK)
    assert [result.baseline for result in resumed] == ["same job", "same job"]
    for before, after in zip(whole, resumed, strict=True):
        assert tokens_of(tmp_path / "results", after.run_id).keys() == {"0", "1", "2"}
        path = tmp_path / "results" / "runs" / after.run_id / "generations.jsonl"
        assert len(path.read_text().splitlines()) == 3  # a line a prompt
        assert after.metrics["block_efficiency"] == before.metrics["block_efficiency"]


SIX = ("cells=[sd:3]", "prompts=6", "generation.max_new_tokens=8", "warmup=0")


def test_a_job_beside_programs_that_take_its_cores_says_so_is_marked_and_decides_nothing(
    run_job, tmp_path, monkeypatch, caplog
):
    quiet = run_job(*SIX, results=tmp_path / "quiet")
    assert not any("disturbed" in each.reason for each in quiet)
    # One of the threads waits for a core 70% of the time; the job looks as if it took minutes.
    monkeypatch.setattr(monitors, "read_thread_waits_s", lambda: {"1": 0.7 * time.perf_counter()})
    monitors.log_busy_cores_warning_once.cache_clear()
    monkeypatch.setattr(monitors, "BUSY", -1e3)  # so that a moment is a second too much
    busy = run_job(*SIX)
    lines = [each.message for each in caplog.records if "disturbs times" in each.message]
    assert len(lines) == 1
    share = r"speedup: disturbed: threads waited for a core (69|70|71)\.[0-9]% of the time"
    assert all(re.match(share, each.reason) for each in busy)
    (answer,) = list_headline_sentences(
        tmp_path / "results/default/results.csv", {e.run_id for e in busy}
    )
    assert "surely" not in answer and "disturbed" in answer and "use " not in answer
    both = compare_results(tmp_path / "quiet", tmp_path / "results")
    times = [each for each in both.changes if each.column.name in ("speedup", "token_rate")]
    assert times and {each.verdict for each in times} == {"not judged"}
    assert all("disturbed" in each.why for each in times) and not both.regressed


def test_a_job_whose_passes_are_slower_after_decoding_than_when_threads_were_chosen_is_marked(
    run_job, monkeypatch
):
    monkeypatch.setattr(models, "set_thread_count", lambda *_: lambda: 8.2)
    for result in run_job(*SIX):
        assert result.reason.startswith("speedup: disturbed: a pass took 8.2 times as long")


def test_a_baseline_that_delivers_other_tokens_than_before_fails_the_cells_by_name(
    run_job, tmp_path
):
    baseline, _ = run_job("cells=[sd:3]", *QUICK)
    store = CellStore(tmp_path / "results", baseline.run_id)
    first, *others = store.load_first_repeat().values()
    other = replace(first, tokens=(7,) * len(first.tokens))
    cell_folder.rewrite_generations(store.folder / "generations.jsonl", [other, *others])
    _, added = run_job("cells=[rsd_c:2-1]", *QUICK)
    assert store.load_result().status == added.status == "failed"
    assert "prompt '0'" in added.reason and baseline.run_id in added.reason


def test_a_baseline_that_cannot_be_timed_leaves_no_speedup(run_job, monkeypatch):
    run_job("cells=[sd:3]", *QUICK)
    failing(monkeypatch, MemoryError("no room"), "ar")
    baseline, added = run_job("cells=[rsd_c:2-1]", *QUICK)
    assert baseline.status == "complete"
    assert (added.status, added.baseline, added.metrics["speedup"]) == ("partial", None, None)
    assert "speedup: " in added.reason


def test_answers_are_scored_again_when_the_metric_changes_and_are_not_decoded_again(
    run_job, calls, tmp_path
):
    file, found = tmp_path / "mine.py", []
    for value in (1.0, 22.0):
        file.write_text(f"def compute(predictions):\n    return {{'v': {value}}}\n")
        results = run_job("decoder=sd", "spec=2", f"task.metrics=[{file}]")
        found.append([(each.metrics["mine_v"], each.metrics["decode_s"]) for each in results])
        decoded, calls[:] = len(calls), []
        assert (decoded > 0) == (value == 1.0)
    first, again = found
    assert again == [(22.0, seconds) for _, seconds in first]


def test_categories_are_those_of_the_file_now_and_nothing_is_decoded_again(
    run_job, calls, tmp_path
):
    def ask(kinds, *more):
        lines = [
            {"id": f"{n}", "document": f"the boat {n}", "summary": "it left", "category": kind}
            for n, kind in enumerate(kinds)
        ]
        file = written(tmp_path / "kinds.jsonl", *lines)
        results = run_job("cells=[sd:2]", "warmup=0", f"task.source.path={file}", *more)
        records = RecordReader(tmp_path / "results" / "default" / files.RESULTS)
        cells = [records.get_categories({"run_id": each.run_id}) for each in results]
        assert cells == [{f"{n}": kind for n, kind in enumerate(kinds)}] * 2
        return results

    first = ask("aba", "prompts=3")
    calls.clear()
    again = ask("azz", "prompts=3")
    assert not calls and ask("azz", "prompts=3") == again
    assert [each.metrics["decode_s"] for each in again] == [
        each.metrics["decode_s"] for each in first
    ]
    ask("cccd", "prompts=4")  # of three there are answers
    assert {tuple(ids) for _, ids in calls} == {("3",)}


def test_a_finished_cell_bears_the_name_that_it_is_given_now(run_job):
    for name in ("mine", "other"):
        results = run_job(f"cells=[{{decoder: sd, spec: 2, name: {name}}}]")
        assert [each.facts.decoder for each in results] == ["ar", name]


def test_plain_decoding_is_looked_at_before_any_other_cell_decodes_and_never_twice(
    run_job, calls, monkeypatch, caplog, tmp_path, family
):
    data = f"task.source.path={make_task(tmp_path, rows=6)}"
    asked = ("warmup=0", "prompts=6", "gate=5", data, "generation.temperature=0.3")
    run_job(CELLS, *asked)
    assert len(calls) == 18 and "printed is" not in caplog.text  # of a pair that no paper has
    monkeypatch.setattr(plain, "find_pair_spellings", lambda _: [("Llama-2-7B", "Llama-2-115M")])
    calls.clear()
    run_job(CELLS, *asked, "seed=1")
    assert {name for name, _ in calls[:-18]} == {"ar"}
    assert [[*ids] for _, ids in calls[:-18]] == [["0"], ["1"], ["2"], ["3"], ["4"]]
    (line,) = (each.message for each in caplog.records if "printed is" in each.message)
    assert "ROUGE-2 is " in line and "on 5 prompts" in line and "printed is 0.141" in line
    calls.clear()
    run_job("cells=[sd:3,rsd_s:2x2,rsd_c:2-1]", *asked, "seed=1")
    assert len(calls) == 2 * 6 and "on 6 prompts" in caplog.text
    planned = plan_stage(
        build_unpinned_settings(compose_config(overrides(family, tmp_path / "results", *asked)))
    )
    assert (
        all("printed is 0.141" in line for line in planned[0].printed_comparisons)
        and planned[0].printed_comparisons
    )


def test_a_look_at_plain_decoding_that_fails_is_said_and_ends_no_job(run_job, monkeypatch, caplog):
    monkeypatch.setattr(plain, "find_pair_spellings", lambda _: 1 / 0)
    results = run_job("cells=[sd:3]", "prompts=1", "gate=1")
    assert [each.status for each in results] == ["complete"] * 2
    assert "gate=1 left out: division by zero" in caplog.text
