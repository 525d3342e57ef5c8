"""A search in two stages: who goes on, on which prompts, and what its rows say."""

import pytest

from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.sweep.confirm import best_of
from tests.cells import result
from tests.jobs.test_command_line import main
from tests.jobs.test_job import count_generate
from tests.jobs.tiny import overrides, rows_of

CELLS = "cells=[sd:1,sd:2,sd:3,rsd_s:2x1,rsd_s:2x2]"
SEARCH = (CELLS, "prompts=2", "confirm={best: 1, by: block_efficiency, prompts: 2}", "warmup=0")


def test_the_best_of_each_decoder_go_on_and_never_the_baseline():
    rates = {"a": ("ar", 9.0), "b": ("sd", 1.0), "c": ("sd", 3.0), "d": ("sd", 2.0)}
    rates |= {"e": ("rsd_s", 0.5)}
    screened = [
        result(name, {"speedup": rate, "latency_s": rate}, decoder=decoder)
        for name, (decoder, rate) in rates.items()
    ]
    screened.append(result("failed", {"speedup": None}, decoder="sd"))
    assert best_of(screened, ConfirmSettings(2, best=2)) == ["c", "d", "e"]
    assert best_of(screened, ConfirmSettings(2, best=1, by="latency_s")) == ["b", "e"]


def test_the_best_are_decoded_again_on_prompts_that_the_search_did_not_see(
    run_job, tmp_path, monkeypatch
):
    calls = count_generate(monkeypatch)
    results = run_job(*SEARCH)
    rows = {stage: [] for stage in ("screen", "confirm")}
    for row in rows_of(tmp_path / "results"):
        rows[row["stage"]].append(row)
    assert [row["decoder"] for row in rows["screen"]] == ["ar", *["sd"] * 3, *["rsd_s"] * 2]
    assert [row["decoder"] for row in rows["confirm"]] == ["ar", "sd", "rsd_s"]
    for row in rows["confirm"][1:]:
        same = [each for each in rows["screen"] if each["decoder"] == row["decoder"]]
        best = max(same, key=lambda each: float(each["block_efficiency"]))
        assert row["spec"] == best["spec"] and row["run_id"] != best["run_id"]
        assert row["baseline"] == "same job" and float(row["speedup"]) > 0
    prompts = [ids[0] for _, ids, _ in calls]
    assert set(prompts[: 2 * 6]) == {"0", "1"} and set(prompts[2 * 6 :]) == {"2", "3"}
    assert [each.facts.stage for each in results] == ["screen"] * 6 + ["confirm"] * 3
    calls.clear()
    again = run_job(*SEARCH)
    assert [each.run_id for each in again] == [each.run_id for each in results] and not calls


def test_a_cell_measured_before_is_a_row_of_the_search_too(run_job, tmp_path):
    before = run_job("cells=[sd:1]", "prompts=2", "warmup=0", "name=other")
    results = run_job("cells=[sd:1,sd:2]", *SEARCH[1:])
    assert results[1].run_id == before[1].run_id
    stages = [row["stage"] for row in rows_of(tmp_path / "results")]
    assert sorted(stages) == ["confirm"] * 2 + ["screen"] * 3
    assert {row["stage"] for row in rows_of(tmp_path / "results", "other")} == {""}


def test_a_plan_lists_the_second_stage_before_and_after_the_first(
    run_job, family, tmp_path, monkeypatch, capsys
):
    asked = overrides(family, tmp_path / "results", *SEARCH, "plan=true")
    assert main(monkeypatch, *asked) == 0
    said = capsys.readouterr().out
    assert "9 cells: 9 missing" in said
    assert "best 1 of 3 by block_efficiency" in said and "best 1 of 2 by block_efficiency" in said
    run_job(*SEARCH)
    assert main(monkeypatch, *asked) == 0
    said = capsys.readouterr().out
    assert "9 cells: 9 complete" in said and "best 1 of" not in said


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("confirm={prompts: 2, by: speed}", "confirm.by must be one of .*speedup.* got 'speed'"),
        ("confirm={prompts: 2, best: 0}", "confirm.best must be .* got 0"),
        ("prompts=null", "confirm wants prompts that the search has not seen"),
        ("prompts=4", "has 4 prompts, and prompts=4 leaves none fresh for confirm"),
    ],
)
def test_what_cannot_be_confirmed_is_named(run_job, wrong, message):
    with pytest.raises(ValueError, match=message):
        run_job(*SEARCH, wrong)
