"""Rows that a server or transformers decodes: numbers, faults, concurrency, resume, refusals."""

import json
import logging
from contextlib import contextmanager

import pandas as pd
import pytest

from spec_bench.jobs.store.store import CellStore
from spec_bench.records import parquet
from spec_bench.system import files
from tests.jobs.tiny import cut, rows_of, tokens_of
from tests.said import naming, one_line
from tests.server.completions import Completions, serving

STEPS = [[5], [6, 7, 8], [9]]
PROBES = 2  # requests that see whether settings of the sampling are heard
PLAIN = [[5], [6], [7], [8], [9]]


def on(url, *more):
    quick = ("server.wait_s=0", "server.timeout_s=2", "generation.max_new_tokens=5", "prompts=4")
    return ("engine=server", f"server.url={url}", "server.model=target", *quick, *more)


@contextmanager
def served(steps=STEPS, **more):
    with serving(Completions(lambda _: steps, **more)) as found:
        yield found


def row_of(tmp_path, decoder="served"):
    (row,) = (row for row in rows_of(tmp_path / "results") if row["decoder"] == decoder)
    return row


def test_a_row_bears_its_mark_its_source_and_numbers_from_known_times(run_job, tmp_path):
    with served(delays=[0.1, 0.04, 0.04]) as server:
        run_job(*on(server.url, "prompts=2"))
    row = row_of(tmp_path)
    assert (row["status"], row["lossless"], row["device"]) == ("complete", "unaudited", "server")
    assert (row["library"], row["draft"]) == ("server 1.2", "")
    assert (row["target_calls"], row["delivered_tokens"]) == ("4", "10")
    assert float(row["block_efficiency"]) == float(row["block_efficiency_stream"]) == 2.0
    assert row["block_efficiency_source"] == "stream"
    assert 0.1 <= float(row["ttft_s_p50"]) < 0.4
    assert 0.02 <= float(row["inter_token_s_p50"]) < 0.1  # 0.08 s for 4 tokens
    assert 0.04 <= float(row["chunk_gap_s_p50"]) < 0.2
    assert 0.18 <= float(row["latency_s_p50"]) < 0.8
    assert 10 < float(row["token_rate"]) <= 50
    assert 0.2 <= float(row["prefill_s"]) < 0.8
    for column in ("speedup", "acceptance_rate", "host_overhead", "energy_j_per_token"):
        assert row[column] == ""
        assert f"{column}: " in row["reason"]
    assert "server.baseline_url" in row["reason"]
    # Chunks and their times are kept with the table, as pandas reads it.
    table = tmp_path / "results" / "default" / files.RESULTS
    kept = parquet.read_records(files.get_records_file(table)).get_generations(row["run_id"])
    own = CellStore(tmp_path / "results", row["run_id"]).load_first_repeat()
    assert [each.delivery for each in kept] == [each.delivery for each in own.values()]
    lines = pd.read_parquet(files.get_records_file(table))
    assert list(lines.served_counted) == ["stream"] * 2
    assert list(lines.served_tokens.map(list)) == [[1, 3, 1]] * 2
    assert list(lines.served_s.map(len)) == [3] * 2 and (lines.served_s.str[0] >= 0.1).all()


def test_a_plain_server_beside_it_makes_a_speedup_in_turn(run_job, tmp_path):
    with served(delays=[0, 0.06, 0.06]) as server, served(PLAIN, delays=[0, *[0.06] * 4]) as plain:
        run_job(*on(server.url, "server.decoder=ngram", f"server.baseline_url={plain.url}"))
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    assert rows.keys() == {"ar", "ngram"}
    assert rows["ngram"]["baseline"] == "same job"
    assert 1.5 < float(rows["ngram"]["speedup"]) < 2.5  # 0.24 s against 0.12 s
    assert float(rows["ar"]["block_efficiency"]) == 1.0
    assert len(plain.bodies) == len(server.bodies) == PROBES + 5  # one of them to warm up


def test_a_plain_model_of_the_same_server_is_a_baseline(run_job):
    with served() as server:
        run_job(*on(server.url, "server.baseline_model=plain", "warmup=0", "prompts=1"))
    assert {body["model"] for body in server.bodies} == {"target", "plain"}


def test_counts_that_come_with_answers_are_preferred(run_job, tmp_path):
    own = {"per_step_accepted": [2, 3], "per_step_drafted": [3, 3]}
    with served(told=lambda _: {"speculative_decoding": own}) as server:
        run_job(*on(server.url))
    row = row_of(tmp_path)
    assert row["block_efficiency_source"] == "requests"
    assert (float(row["block_efficiency"]), float(row["block_efficiency_stream"])) == (3.5, 2.0)
    assert json.loads(row["acceptance_rate_by_depth"]) == [1.0, 1.0, 0.5]


def test_counters_are_read_where_requests_go_one_at_a_time(run_job, tmp_path):
    server = Completions(lambda _: PLAIN)

    def told():
        done = len(server.bodies)
        tokens = f"vllm:generation_tokens_total {5 * done}"
        return f"{tokens}\nvllm:inter_token_latency_seconds_count {4 * done}\n"

    server.counters = told
    with serving(server):
        run_job(*on(server.url, "warmup=0"))
        run_job(*on(server.url, "warmup=0", "engine.batch_size=2", "name=two"))
    assert row_of(tmp_path)["block_efficiency_source"] == "counters"
    assert rows_of(tmp_path / "results", "two")[0]["block_efficiency_source"] == "stream"


@pytest.mark.parametrize(
    ("fault", "said"), [(500, "status 500"), ("cut", "ends before"), ("stall", "within 0.3 s")]
)
def test_a_fault_leaves_a_prompt_out_in_one_line_and_a_rerun_asks_only_for_it(run_job, fault, said):
    patient = ("server.timeout_s=0.3", "server.answer_s=0.3", "server.attempts=2", "warmup=0")
    with served(faults=[*["none"] * (PROBES + 2), fault, fault]) as server:
        (partial,) = run_job(*on(server.url, *patient))
        found = partial.status, partial.metrics["prompts"], partial.metrics["prompts_failed"]
        assert found == ("partial", 3, 1)
        assert said in partial.reason.splitlines()[0]
        assert "prompts_failed: 1 of 4: '2'" in partial.reason
        assert "after 2 attempts" in partial.reason
        asked = [each for each in server.prompts[PROBES:] if server.prompts.count(each) == 1]
        server.bodies.clear()
        (whole,) = run_job(*on(server.url, *patient))
    assert whole.status == "complete"
    assert whole.metrics["prompts"] == 4
    assert len(server.bodies) == PROBES + 1
    assert not [prompt for prompt in server.prompts[PROBES:] if prompt in asked]


def test_a_fault_that_passes_costs_an_attempt_and_is_told(run_job, tmp_path):
    with served(faults=[*["none"] * (PROBES + 1), 500, "cut"]) as server:
        run_job(*on(server.url, "warmup=0"))
    row = row_of(tmp_path)
    assert (row["status"], row["prompts"]) == ("complete", "4")
    assert "latency_s: 1 of 4 answers took several requests" in row["reason"]
    assert len(server.bodies) == PROBES + 6


def test_answers_that_came_beside_one_that_did_not_are_kept(run_job):
    refused = []

    def answer(body):
        if not refused and body["max_tokens"] == 5:  # no probe
            refused.append(body["prompt"])
        return [[999]] if body["prompt"] in refused else STEPS

    with serving(Completions(answer)) as server:
        given = on(server.url, "warmup=0", "engine.batch_size=4")
        (partial,) = run_job(*given)
        assert (partial.status, partial.metrics["prompts"]) == ("partial", 3)
        assert len(server.bodies) == PROBES + 4
        assert "token 999" in partial.reason
        assert "another model is served" in partial.reason
        refused[:] = [[0]]
        server.bodies.clear()
        assert [each.status for each in run_job(*given)] == ["complete"]
        assert len(server.bodies) == PROBES + 1


@pytest.mark.parametrize(("batch", "batching"), [(1, "static"), (3, "static"), (3, "continuous")])
def test_so_many_requests_are_under_way_together(run_job, tmp_path, batch, batching):
    more = (f"engine.batch_size={batch}", f"engine.batching={batching}", "warmup=0")
    with served(delays=[0.1, 0.1]) as server:
        run_job(*on(server.url, *more))
    assert server.most == batch
    row = row_of(tmp_path)
    assert row["batch_size"] == str(batch)
    assert float(row["latency_s_p50"]) >= 0.2
    passed = float(row["prefill_s"]) + float(row["decode_s"])
    took = 4 * float(row["latency_s"])  # each request's own
    assert passed == pytest.approx(took) if batch == 1 else passed < 0.8 * took


def test_greedy_or_warm_the_request_says_so_with_a_seed_of_the_prompts_own(run_job):
    with served() as server:
        more = ("generation.temperature=0.5", "generation.top_k=7", "generation.top_p=0.9")
        for seed in (0, 1):
            run_job(*on(server.url, "warmup=0", *more, f"seed={seed}"))
    bodies = [body for body in server.bodies if body["max_tokens"] == 5]  # no probe
    for body in bodies:
        assert (body["temperature"], body["top_k"], body["top_p"]) == (0.5, 7, 0.9)
        assert body["stop_token_ids"]
    assert len({each["seed"] for each in bodies}) == 8


def test_a_server_without_token_ids_is_read_by_its_text(run_job, tmp_path):
    with served(text=lambda step: " the" * len(step)) as server:
        run_job(*on(server.url, "server.tokens=text", "prompts=1", "warmup=0"))
    row = row_of(tmp_path)
    assert (row["status"], row["block_efficiency_source"]) == ("complete", "stream")
    assert int(row["delivered_tokens"]) >= 5
    assert "delivered_tokens: of the answers' text" in row["reason"]
    assert "return_token_ids" not in server.bodies[0]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["decoder=sd"], ["decoder=sd", "server.decoder"]),
        (["cells=[sd:3]"], ["cells=['sd:3']"]),
        (["spec=3"], ["spec=3"]),
        (["simulate=0.5"], ["simulate=0.5"]),
        (["server.url=null"], ["server.url", "null"]),
        (["server.url=localhost:1"], ["server.url", "localhost:1"]),
        (["+server.urls=x"], ["server.urls"]),
        (["server.attempts=0"], ["server.attempts", "got 0"]),
        (["generation.draft_temperature=0"], ["generation.draft_temperature=0"]),
        (["+task.generation.draft_temperature=0.5"], ["generation.draft_temperature=0.5"]),
        (["server.decoder=ar", "server.baseline_model=b"], ["server.decoder", "'ar'"]),
        (["generation.min_p=0.1", "generation.top_p=0.9"], ["generation.min_p=0.1", "top_p"]),
        (["energy=nvml"], ["energy=nvml", "energy.devices"]),
        (["engine=default"], ["server.url=", "engine=server"]),
        (["engine=default", "server.url=null", "decoder=served"], ["served", "engine=server"]),
    ],
)
def test_what_a_server_cannot_be_told_is_refused_before_it_is_asked(run_job, more, why, tmp_path):
    with served() as server, one_line(naming(*why)):
        run_job(*on(server.url), *more)
    assert not server.bodies
    assert not (tmp_path / "results").exists()


def test_a_server_that_is_not_there_fails_the_row_in_one_line(run_job):
    with served() as server:
        pass
    (failed,) = run_job(*on(server.url, "server.attempts=1"))
    assert "Connection refused, after 1 attempt" in failed.reason
    assert failed.metrics == {}


OTHERS = "cells=[sd:2,hf_generate,hf_assisted:2,hf_prompt_lookup]"
THEIRS = ("hf_generate", "hf_assisted", "hf_prompt_lookup")


def test_rows_stand_in_our_table_with_mark_library_and_speedup(run_job, tmp_path):
    run_job(OTHERS, "prompts=2")
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
    run_job(OTHERS, "prompts=4", "generation.temperature=0", "generation.max_new_tokens=3")
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
    results = run_job(OTHERS, "prompts=3")
    run_id = {each.facts.decoder: each.run_id for each in results}["hf_assisted"]
    store, tokens = (each(tmp_path / "results", run_id) for each in (CellStore, tokens_of))
    first = store.load_first_repeat()["0"]
    cut(tmp_path / "results", run_id, 1)
    again = run_job(OTHERS, "prompts=3")
    assert [each.run_id for each in again] == [each.run_id for each in results]
    assert store.load_first_repeat()["0"] == first
    assert tokens_of(tmp_path / "results", run_id) == tokens


def test_a_batch_that_it_cannot_decode_is_left_out_with_a_line(run_job, tmp_path, caplog):
    greedy = "generation.temperature=0"
    with caplog.at_level(logging.WARNING):
        run_job(OTHERS, "prompts=2", "engine.batch_size=2", greedy)
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
