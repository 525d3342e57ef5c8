"""Every prompt decoded several times: order, resuming, extending, and the check that they agree."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.jobs.job.session import check_repeated
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.plan import state_of
from tests.jobs.test_job import count_generate
from tests.jobs.tiny import rows_of

CELLS = ("cells=[sd:3]", "warmup=0")


def lines_of(results, run_id):
    text = (results / "runs" / run_id / "generations.jsonl").read_text()
    return [(line["repeat"], line["prompt_id"]) for line in map(json.loads, text.splitlines())]


def test_a_repeat_starts_when_all_cells_have_decoded_all_prompts(run_job, tmp_path, monkeypatch):
    calls = count_generate(monkeypatch)
    results = run_job(*CELLS, "prompts=2", "repeats=2")
    assert [(name, ids[0]) for name, ids, _ in calls] == [
        *[("ar", "0"), ("sd", "0"), ("sd", "1"), ("ar", "1")],
        *[("ar", "0"), ("sd", "0"), ("sd", "1"), ("ar", "1")],
    ]
    for result in results:
        assert lines_of(tmp_path / "results", result.run_id) == [
            *[(0, "0"), (0, "1"), (1, "0"), (1, "1")]
        ]


def test_counts_are_of_one_repeat_and_seconds_of_all(run_job, tmp_path):
    once = run_job(*CELLS, results=tmp_path / "once")[1]
    thrice = run_job(*CELLS, "repeats=3", results=tmp_path / "thrice")[1]
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
    first = run_job(*CELLS)
    calls = count_generate(monkeypatch)
    second = run_job(*CELLS, "repeats=2")
    assert [each.run_id for each in first] == [each.run_id for each in second]
    assert len(calls) == 2 * 4
    assert [row["repeats"] for row in rows_of(tmp_path / "results")] == ["2", "2"]
    assert [row["baseline"] for row in rows_of(tmp_path / "results")] == ["same job"] * 2
    calls.clear()
    assert run_job(*CELLS)[1].metrics["repeats"] == 2
    assert calls == []


@pytest.mark.parametrize("lines", [3, 6])
def test_a_job_cut_in_any_repeat_resumes_there(run_job, tmp_path, monkeypatch, lines):
    whole = run_job(*CELLS, "repeats=2")[1]
    folder = tmp_path / "results" / "runs" / whole.run_id
    (folder / "result.json").unlink()
    text = (folder / "generations.jsonl").read_text()
    kept = "".join(text.splitlines(keepends=True)[:lines])
    (folder / "generations.jsonl").write_text(kept + text[len(kept) :][:20])
    assert state_of(CellStore(tmp_path / "results", whole.run_id), 4, 2) == ("partial", 8 - lines)
    calls = count_generate(monkeypatch)
    resumed = run_job(*CELLS, "repeats=2")[1]
    # In turn with the baseline, which is complete.
    assert Counter(name for name, _, _ in calls) == {"ar": 8 - lines, "sd": 8 - lines}
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
    baseline, sd = run_job(*CELLS, "repeats=2")
    assert (baseline.status, sd.status) == ("complete", "failed")
    assert "prompt '2': repeat 2 delivered other tokens" in sd.reason


def test_the_check_sees_other_target_calls_with_the_same_tokens(run_job, tmp_path):
    done = CellStore(tmp_path / "results", run_job(*CELLS)[1].run_id).load()
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
    results = run_job(*CELLS, "repeats=2")
    assert [each.status for each in results] == ["complete"] * 2
    assert any("repeats: 1 of 4 later windows" in each.reason for each in results)
