"""The papers' recipes through the command line, on the embedded pair."""

import pytest

from tests.jobs.test_command_line import main
from tests.jobs.tiny import rows_of

SMALL = ("prompts=1", "warmup=0", "generation.max_new_tokens=4", "sink=quiet", "engine.threads=1")


@pytest.mark.slow
def test_two_pairs_three_tasks_and_41_rows_load_each_model_once(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spec_bench.jobs.work.models._models", {})
    caplog.set_level("INFO")
    sweep = ["-m", "rsd=exp2", "pair=embedded,embedded_plain", "results=results", *SMALL]
    assert main(monkeypatch, *sweep) == 0
    rows = rows_of(tmp_path / "results", "rsd-exp2")
    assert len(rows) == 2 * 3 * 41
    assert {row["status"] for row in rows} == {"complete"}
    loads = [record for record in caplog.records if record.getMessage().startswith("loading ")]
    assert len(loads) == 3  # one target, two drafts


@pytest.mark.parametrize("recipe", ["mcsd=acceptance", "mcsd=ablation"])
def test_a_recipe_runs_on_the_embedded_pair(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", recipe, "task=alpaca", "generation.temperature=1", "results=results", *SMALL]
    assert main(monkeypatch, *sweep) == 0
    rows = rows_of(tmp_path / "results", recipe.replace("=", "-"))
    assert {row["status"] for row in rows} == {"complete"}
    if recipe == "mcsd=ablation":
        off = [row for row in rows if row["tree_attention"] == "false"]
        assert sorted(row["decoder"] for row in off) == ["mcns", "mcsd", "mcsd_wor"]
