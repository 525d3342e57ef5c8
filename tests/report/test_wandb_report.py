"""The W&B report, built without an account."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from spec_bench.report.cli.command_line import main
from spec_bench.report.papers.paper import load_paper, paper_names
from spec_bench.report.wandb_report.build import curves_named
from spec_bench.report.wandb_report.reference import log_reference, reference, reference_lines
from spec_bench.report.wandb_report.sweep import log_sweep, shown
from spec_bench.sinks.curves import AXES, METRICS
from spec_bench.sinks.wandb import Wandb, log_table
from spec_bench.system import files
from spec_bench.vocabulary.published import FILE, read_published
from tests.report.rows import MT_BENCH, record, row, write
from tests.sinks.offline_run import offline_runs

ROOT = Path(__file__).parents[2]
DECODERS = ["sd", "spectr", "rsd_c", "rsd_s"]
T = "T0.3"  # the paper's temperature on these tasks


def offline(folder: Path) -> Wandb:
    return Wandb(project="p", group="own", mode="offline", folder=folder)


def report(*arguments: str) -> int:
    pytest.importorskip("wandb_workspaces", reason="needs the extra `reports`")
    return main(["wandb", *arguments])


def grids_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [block["metadata"] for block in spec["blocks"] if block["type"] == "panel-grid"]


def panels_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [p for grid in grids_of(spec) for p in grid["panelBankSectionConfig"]["panels"]]


@pytest.mark.parametrize(
    ("words", "runsets"),
    [
        ((), {"measured", "cells"}),
        (("--task", "a task of mine"), {"measured", "cells"}),
        (("--paper", "dsbd", "--task", "spider"), {"measured", "paper", "cells"}),
    ],
)
def test_a_dry_run_writes_every_metrics_panel_over_each_axis_and_of_cells(
    words: tuple[str, ...], runsets: set[str], tmp_path: Path
) -> None:
    assert report(*words, "--dry-run", str(tmp_path / "report.json")) == 0
    spec = json.loads((tmp_path / "report.json").read_text())
    lines = [p["config"] for p in panels_of(spec) if p["viewType"] == "Run History Line Plot"]
    drawn = {(config["xAxis"], config["metricRegex"]) for config in lines}
    assert drawn == {(axis, f"^{axis}/{metric}/") for axis in AXES for metric in METRICS}
    assert {each["name"] for grid in grids_of(spec) for each in grid["runSets"]} == runsets
    kinds = [panel["viewType"] for panel in panels_of(spec)]
    assert (kinds.count("Scatter Plot"), kinds.count("Bar Chart")) == (2, 2)
    assert all(word in json.dumps(spec) for word in words if not word.startswith("--"))


def test_the_panels_show_the_curves_of_ones_own_sweep_energy_among_them(tmp_path: Path) -> None:
    numbers = {name: "1.5" for name in METRICS if name != "accuracy"} | {"f1": "0.5"}
    cells = (("ar", "-"), ("mine", "3"), ("mine", "2x2"))
    rows = [
        {"pair": "own", "task": "mine", "decoder": d, "spec": s, "temperature": "1", **numbers}
        for d, s in cells
    ]
    assert log_table(offline(tmp_path), rows)
    ((run,),) = offline_runs(tmp_path).values()
    assert run.run.job_type == "table"
    assert "mine" in run.run.tags
    names = {name for line in run.history.values() for name in line}
    for axis in AXES:
        for metric in METRICS:
            named = re.compile(curves_named(axis, metric))
            found = {name for name in names if named.search(name)}
            assert found == {f"{axis}/{metric}/{decoder}/T1" for decoder in ("ar", "mine")}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A results file: ``sd`` is twice as fast as plain decoding; nothing is scored."""
    fast = {"speedup": (2.0, 1.9, 2.1), "nodes_per_call": 3.0}
    write(
        tmp_path,
        "own",
        row("ar", "-", **MT_BENCH, run_id="ar"),
        row("sd", "3", **MT_BENCH, run_id="sd", **fast),
    )
    table = tmp_path / "own" / files.RESULTS
    record(table, "ar", [[0] * 6] * 8, depth=0, rate=1.0, sitting="a", categories=["qa"] * 8)
    record(table, "sd", [[3, 0]] * 8, rate=2.0, sitting="a", categories=["qa"] * 8)
    return table


def test_a_run_carries_what_a_sweeps_page_shows_and_is_logged_once(sweep: Path) -> None:
    found = shown(str(sweep), Path("results"))
    assert log_sweep(offline(sweep.parent), found)
    assert not log_sweep(offline(sweep.parent), found)
    ((run,),) = offline_runs(sweep.parent).values()
    assert (run.run.job_type, run.run.run_group) == ("sweep", "own")
    assert "own" in run.run.tags
    (line,) = run.history.values()
    drawn = {name: value["_type"] for name, value in line.items() if name.startswith("sweep 1/")}
    assert drawn == {f"sweep 1/{key}": "plotly-file" for key in ("nodes", "lengths", "prompts")}
    assert line["what to use"]["nrows"] == 2


def test_the_report_of_a_sweep_begins_with_what_to_use_and_shows_its_figures(
    sweep: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    assert report("--sweep", str(sweep), "--dry-run", str(file)) == 0
    text = file.read_text()
    first = next(panel["config"] for panel in panels_of(json.loads(text)))
    assert first["mediaKeys"] == ["sweep 1/nodes"]
    assert text.index("What to use") < text.index("SD 3") < text.index("sweep 1/nodes")
    assert "Not drawn: " in text
    assert len(offline_runs(tmp_path)) == 1
    assert report("--sweep", "none", "--results", str(tmp_path), "--dry-run", str(file)) == 2


def test_the_reference_run_has_the_papers_best_numbers_at_each_length(tmp_path: Path) -> None:
    found = reference("rsd", "", None, "wmt18_deen")
    assert found.pair == "Llama-2-7B with Llama-2-115M"
    log_reference(offline(tmp_path), found)
    ((run,),) = offline_runs(tmp_path).values()
    assert (run.run.job_type, "rsd" in run.run.tags) == ("reference", True)
    rows = [
        row
        for row in read_published(ROOT / "experiments" / "rsd" / FILE)
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


@pytest.mark.parametrize("paper", [each for each in paper_names() if load_paper(each).numbers])
def test_every_paper_has_printed_cells_for_a_report(paper: str) -> None:
    found = reference(paper, "", None, "")
    assert found.rows
    assert len({(row["target"], row["draft"]) for row in found.rows}) == 1
    lines = reference_lines(found.rows)
    assert lines or paper in ("redrafter", "dsbd")  # which print no trees


def test_a_table_that_the_paper_does_not_have_is_said_with_the_choices() -> None:
    with pytest.raises(ValueError, match="nothing of task dolly; Llama-2-7B with Llama-2-115M has"):
        reference("rsd", "Llama-2-7B", None, "dolly")
    with pytest.raises(ValueError, match="nothing of GPT with any draft; choose from Llama-2-7B"):
        reference("rsd", "GPT", None, "")
    with pytest.raises(ValueError, match="beyond prints no numbers"):
        reference("beyond", "", None, "")
    with pytest.raises(ValueError, match="mcsd"):
        reference("none", "", None, "")


def test_without_what_makes_reports_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert main(["wandb", "--dry-run", "x.json"]) == 2
    assert "pip install 'spec-bench[reports]'" in capsys.readouterr().err
