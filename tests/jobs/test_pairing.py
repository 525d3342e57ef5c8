"""A speed-up is against a baseline of the same sitting, or there is none."""

import json
import shutil
from collections import defaultdict

import pytest

from spec_bench.jobs.job.session import paired, timings, unpaired
from spec_bench.jobs.store.store import CellStore
from spec_bench.records import cell_folder, parquet
from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import read_results, rows_of
from spec_bench.system import files
from spec_bench.system.files import retimed_files
from tests.jobs.test_job import count_generate, failing
from tests.jobs.tiny import cut, tokens_of

QUICK = ("warmup=0", "prompts=3")


def of(prompt, sitting, seconds=1.0, repeat=0):
    step = StepRecord(0, 0, 0, 1)
    times = (0.1, seconds, 0.0, seconds / 2)
    return Generation(prompt, (5,), "stop", (step,), *times, repeat=repeat, sitting=sitting)


def rate(generations):
    return sum(len(each.tokens) for each in generations) / sum(
        each.decode_s for each in generations
    )


def test_only_a_baseline_of_the_same_sitting_repeat_and_prompt_is_a_pair():
    against = timings([of("0", "a", 1.0), of("0", "b", 2.0), of("1", "a", 3.0), of("1", "c", 4.0)])
    assert paired([[of("0", "b"), of("1", "a")]], against) == [
        [of("0", "b", 2.0), of("1", "a", 3.0)]
    ]
    assert paired([[of("0", "c"), of("1", "a")]], against) is None
    assert paired([[of("0", "a")], [of("0", "a", repeat=1)]], against) is None
    done = defaultdict(dict, {0: {"0": of("0", "b"), "1": of("1", "b")}})
    assert unpaired(done, against) == {(0, "1")}


def test_cells_that_are_added_to_a_finished_job_have_a_baseline_timed_in_turn(
    run_job, tmp_path, monkeypatch
):
    baseline, _ = run_job("cells=[sd:3]", *QUICK)
    calls = count_generate(monkeypatch)
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
    speedup = rate([*ours.load().values()]) / rate(retimed)
    assert added.metrics["speedup"] == pytest.approx(speedup)
    assert speedup != pytest.approx(rate([*ours.load().values()]) / rate([*theirs.load().values()]))
    compared = json.loads((ours.folder / "result.json").read_text())["compared"]
    (sitting,) = {each.sitting for each in retimed}
    assert compared == {"run_id": baseline.run_id, "sittings": [sitting]}
    assert [path.name for path in retimed_files(theirs.folder)] == [f"retimed-{sitting}.jsonl"]

    # What is committed knows of both timings, so that the cells can be paired without the runs.
    table = files.results_file(results, "default")
    shutil.rmtree(results / files.RUNS)
    kept = parquet.read(files.records_file(table))
    assert [each.decode_s for each in kept.retimed(baseline.run_id)] == [
        each.decode_s for each in retimed
    ]
    rows = {row["run_id"]: row for row in rows_of(read_results(table))}
    pair = Contrast((rows[added.run_id],), (rows[baseline.run_id],))
    gap = difference([[pair]], "token_rate", Records(table))
    assert gap and gap.tested and gap.value == pytest.approx(speedup - 1)


def test_a_job_that_was_killed_goes_on_in_turn_and_times_nothing_twice(
    run_job, tmp_path, monkeypatch
):
    whole = run_job("cells=[sd:3]", *QUICK, results=tmp_path / "whole")
    for result in whole:
        cut(tmp_path / "whole", result.run_id, 1, tmp_path / "cut")
    calls = count_generate(monkeypatch)
    baseline, sd = run_job("cells=[sd:3]", *QUICK, results=tmp_path / "cut")
    assert sorted((name, *ids) for name, ids in calls) == [
        *(("ar", "1"), ("ar", "2"), ("sd", "1"), ("sd", "2"))
    ]
    assert sd.baseline == "same job"
    assert sd.metrics["speedup"] is not None
    stored = CellStore(tmp_path / "cut", baseline.run_id)
    assert retimed_files(stored.folder) == []
    folder = tmp_path / "cut" / "runs" / sd.run_id
    assert len(json.loads((folder / "result.json").read_text())["compared"]["sittings"]) == 2


@pytest.mark.parametrize("late", ["ar", "sd"])
def test_a_prompt_that_a_kill_left_to_one_of_the_two_is_timed_for_both(late, run_job, tmp_path):
    whole = run_job("cells=[sd:3]", *QUICK)
    for result in whole:
        cut(tmp_path / "results", result.run_id, 2 if result.facts.decoder == late else 3)
    resumed = run_job("cells=[sd:3]", *QUICK)
    assert [result.baseline for result in resumed] == ["same job", "same job"]
    for before, after in zip(whole, resumed, strict=True):
        assert tokens_of(tmp_path / "results", after.run_id).keys() == {"0", "1", "2"}
        assert after.metrics["block_efficiency"] == before.metrics["block_efficiency"]


def test_a_baseline_that_delivers_other_tokens_than_before_fails_the_cells_by_name(
    run_job, tmp_path
):
    baseline, _ = run_job("cells=[sd:3]", *QUICK)
    path = tmp_path / "results" / "runs" / baseline.run_id / "generations.jsonl"
    stored = CellStore(tmp_path / "results", baseline.run_id).load()
    first = stored["0"]
    other = Generation.from_json({**first.to_json(), "tokens": [7] * len(first.tokens)})
    cell_folder.replace(path, [other, stored["1"], stored["2"]])
    result = path.with_name("result.json")
    _, added = run_job("cells=[rsd_c:2-1]", *QUICK)
    assert result.exists()
    assert added.status == "failed"
    assert "prompt '0'" in added.reason
    assert baseline.run_id in added.reason


def test_a_baseline_that_cannot_be_timed_leaves_no_speedup(run_job, monkeypatch):
    """Not one against the records of an earlier sitting."""
    run_job("cells=[sd:3]", *QUICK)
    failing(monkeypatch, MemoryError("no room"), "ar")
    baseline, added = run_job("cells=[rsd_c:2-1]", *QUICK)
    assert baseline.status == "complete"
    assert (added.status, added.baseline, added.metrics["speedup"]) == ("partial", None, None)
    assert "speedup: " in added.reason
