"""The W&B report, built without an account."""

import json
import sys

import pytest

from spec_bench.report.cli.command_line import main
from spec_bench.sinks.wandb import HISTORY


@pytest.mark.parametrize("task", ["", "a task of mine"])
def test_a_dry_run_writes_a_line_plot_of_each_part_of_a_history_and_the_tables(task, tmp_path):
    pytest.importorskip("wandb_workspaces", reason="needs the extra `reports`")
    words = ["wandb", *(["--task", task] if task else []), "--project", "mine"]
    assert main([*words, "--dry-run", str(tmp_path / "report.json")]) == 0
    text = (tmp_path / "report.json").read_text()
    grids = [block["metadata"] for block in json.loads(text)["blocks"] if "metadata" in block]
    lines, results = (grid["panelBankSectionConfig"]["panels"] for grid in grids)
    assert {each["viewType"] for each in lines} == {"Run History Line Plot"}
    assert [name for each in lines for name in each["config"]["metrics"]] == [*HISTORY]
    assert len(results) == 1 and "results" in json.dumps(results)
    assert [grid["runSets"][0]["name"] for grid in grids] == ["cells", "tables"]
    assert [task in json.dumps(grid["runSets"]) for grid in grids] == [True, True]


def test_publishing_without_an_account_is_one_line(monkeypatch, tmp_path, capsys):
    pytest.importorskip("wandb_workspaces", reason="needs the extra `reports`")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(["wandb"]) == 2
    assert "--dry-run FILE needs no account" in capsys.readouterr().err.splitlines()[-1]


def test_without_what_makes_reports_one_line_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert main(["wandb", "--dry-run", "x.json"]) == 2
    assert "pip install 'spec-bench[reports]'" in capsys.readouterr().err
