"""The W&B report, built without an account."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from spec_bench.published import FILE, read_published
from tests.sinks.offline_run import offline_runs

pytest.importorskip("wandb_workspaces", reason="needs the extra `reports`")
SCRIPT = Path(__file__).parents[2] / "scripts" / "wandb_report.py"
DECODERS = ["sd", "spectr", "rsd_c", "rsd_s"]
T = "T0.3"  # the paper's temperature on these tasks


def report(*arguments: str) -> int:
    status: int = runpy.run_path(str(SCRIPT))["main"](list(arguments))
    return status


def panels_of(spec: dict) -> list[dict]:
    grids = [block for block in spec["blocks"] if block["type"] == "panel-grid"]
    return [
        panel for grid in grids for panel in grid["metadata"]["panelBankSectionConfig"]["panels"]
    ]


def test_a_dry_run_writes_four_panels_an_axis_and_both_run_sets(tmp_path: Path) -> None:
    assert report("--task", "xsum", "--dry-run", str(tmp_path / "report.json")) == 0
    spec = json.loads((tmp_path / "report.json").read_text())
    lines = [p["config"] for p in panels_of(spec) if p["viewType"] == "Run History Line Plot"]
    drawn = {tuple(config["metrics"]) for config in lines}
    assert drawn == {
        tuple(f"{axis}/{metric}/{decoder}/{T}" for decoder in ("ar", *DECODERS))
        for axis in ("draft_length", "budget")
        for metric in ("block_efficiency", "mbsu", "token_rate", "accuracy")
    }
    assert {config["xAxis"] for config in lines} == {"draft_length", "budget"}
    text = json.dumps(spec)
    assert '"measured"' in text
    assert '"reference"' in text
    assert "Llama-2-7B with Llama-2-115M" in text


def test_the_reference_run_has_the_papers_best_numbers_at_each_length(tmp_path: Path) -> None:
    report("--task", "wmt18_deen", "--dry-run", str(tmp_path / "report.json"))
    ((run,),) = offline_runs(tmp_path).values()
    assert (run.run.run_group, run.run.job_type) == ("paper", "reference")
    rows = [
        row
        for row in read_published(SCRIPT.parents[1] / "experiments" / "rsd" / FILE)
        if (row["target"], row["task"]) == ("Llama-2-7B", "wmt18_deen")
        and row["metric"] == "token_rate"
    ]
    for axis, name, values in (
        ("draft_length", "draft_length", (2, 3, 4, 5)),
        ("target_budget", "budget", (6, 10, 14, 21, 30)),
    ):
        logged = {line[name]: line for line in run.history.values() if name in line}
        assert tuple(logged) == values
        for value in values:
            for decoder in DECODERS:
                published = [
                    float(row["value"])
                    for row in rows
                    if (row["axis"], row["axis_value"], row["decoder"])
                    == (axis, str(value), decoder)
                    and row["value"]  # the paper's tables have gaps
                ]
                assert published
                assert logged[value][f"{name}/token_rate/{decoder}/{T}"] == max(published)
            assert logged[value][f"{name}/block_efficiency/ar/{T}"] == 1.0


def test_a_table_that_the_paper_does_not_have_is_said_with_the_choices(tmp_path: Path, capsys):
    assert report("--task", "dolly", "--dry-run", str(tmp_path / "x.json")) == 2
    assert "no table of task dolly; Llama-2-7B has wmt18_deen, xsum" in capsys.readouterr().err
    assert report("--target", "GPT", "--dry-run", str(tmp_path / "x.json")) == 2
    assert "no table of GPT with Llama-2-115M; choose from Llama-2-7B with" in (
        capsys.readouterr().err
    )
