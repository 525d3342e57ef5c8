"""What the report that W&B would be sent contains, block by block."""

import json
import re

import pytest

from spec_bench.sinks.wandb import HISTORY
from spec_bench.vocabulary import names
from tests.commands import report as main
from tests.report.rows import row, squad, write

pytest.importorskip("wandb_workspaces", reason="needs the extra `reports`")
JOULES = [f"energy_j_per_token{end}" for end in ("_low", "", "_high")]


def blocks_of(tmp_path, *arguments):
    """The report's blocks in their order: heading's texts, markdown, grids of panels."""
    file = tmp_path / "report.json"
    assert main(["wandb", *arguments, "--dry-run", str(file)]) == 0
    found = []
    for block in json.loads(file.read_text())["blocks"]:
        if block["type"] == "heading":
            found.append("".join(part["text"] for part in block["children"]))
        elif block["type"] != "paragraph":
            found.append(block)
    return found


def panels_of(grid):
    return grid["metadata"]["panelBankSectionConfig"]["panels"]


def keys_of(panel):
    """What a panel plots, by the names in summaries and histories."""
    config = panel["config"]
    axes = [config[axis].removeprefix("summary:") for axis in ("xAxis", "yAxis") if axis in config]
    return config.get("metrics", axes)


def runs_of(grid):
    """The run ids that each set of runs is made of."""
    return [each["filters"]["filters"][0]["value"] for each in grid["metadata"]["runSets"]]


@pytest.fixture
def results(tmp_path):
    """A paper's experiment on its pair and one of no paper on another pair and task."""
    speeds = {"speedup": (1.4, 1.3, 1.5), "block_efficiency": (2.0, 1.9, 2.1)}
    rows = (
        row("ar", speedup=1.0, block_efficiency=1.0, nodes_per_call=0.0, rouge2=0.2),
        row("sd", "2", **speeds, nodes_per_call=2.0, rouge2=(0.2, 0.1, 0.3)),
        row("rsd_s", "3x2", **speeds, nodes_per_call=6.0, rouge2=(0.2, 0.1, 0.3)),
    )
    write(tmp_path, "rsd-exp1", *rows)
    joules = {"energy_j_per_token": (0.5, 0.4, 0.6), "exact_match": (0.5, 0.4, 0.6)}
    own = (squad("ar", speedup=1.0, exact_match=0.5), squad("sd", "3", speedup=1.6, **joules))
    return write(tmp_path, "mine", *own)


@pytest.fixture
def blocks(results, tmp_path):
    return blocks_of(tmp_path, "rsd-exp1", "mine", "--results", str(results))


def after(blocks, heading):
    """The blocks under a heading."""
    rest = blocks[blocks.index(heading) + 1 :]
    return rest[: next((n for n, each in enumerate(rest) if isinstance(each, str)), len(rest))]


def test_a_report_goes_by_pair_and_task_then_papers_and_checks_then_prompt_by_prompt(blocks):
    assert [each for each in blocks if isinstance(each, str)] == [
        "llama2_7b: XSum",
        "embedded: SQuAD",
        "rsd-exp1: printed beside measured, and the checks",
        "mine: the checks",
        "All rows",
        "Prompt by prompt: a line is a cell, a step is a prompt",
        "llama2_7b: XSum",
        "embedded: SQuAD",
    ]
    first, last = (each for each in blocks[-4:] if not isinstance(each, str))
    keys = [{key for panel in panels_of(grid) for key in keys_of(panel)} for grid in (first, last)]
    unmetered = {*HISTORY} - {"prompt/energy_j"}
    assert keys == [unmetered | {"prompt/rouge2"}, {*HISTORY, "prompt/exact_match"}]
    for grid, runs in ((first, ["ar--", "sd-2", "rsd_s-3x2"]), (last, ["ar--", "sd-3"])):
        assert {each["viewType"] for each in panels_of(grid)} == {"Run History Line Plot"}
        assert runs_of(grid) == [runs]


def test_speedups_scores_and_joules_are_bars_between_their_ends_and_tau_is_by_nodes(blocks):
    panels = panels_of(after(blocks, "llama2_7b: XSum")[0])
    assert [(each["viewType"], keys_of(each)) for each in panels] == [
        ("Bar Chart", ["speedup_low", "speedup", "speedup_high"]),
        ("Scatter Plot", ["nodes_per_call", "block_efficiency"]),
        ("Bar Chart", ["rouge2_low", "rouge2", "rouge2_high"]),
    ]
    bars = [keys_of(each) for each in panels_of(after(blocks, "embedded: SQuAD")[0])]
    exact_match = ["exact_match_low", "exact_match", "exact_match_high"]
    assert bars == [["speedup_low", "speedup", "speedup_high"], exact_match, JOULES]
    places = [tuple(each["layout"].values()) for each in panels]
    assert len({*places}) == len(panels)


def test_a_groups_runs_are_those_of_its_rows_in_their_decoders_colours(blocks):
    grid, text = after(blocks, "llama2_7b: XSum")
    assert runs_of(grid) == [["ar--", "sd-2", "rsd_s-3x2"]]
    (key,) = {each["filters"]["filters"][0]["key"]["name"] for each in grid["metadata"]["runSets"]}
    assert key == "name"  # W&B's word for a run's id
    colours = grid["metadata"]["customRunColors"]
    assert colours["rsd_s-3x2"] == names.get_decoder_style("rsd_s").colour.light
    assert "| rsd_s | 3x2 |" in text["content"] and "1.40 [1.30, 1.50]" in text["content"]


def test_a_papers_numbers_stand_beside_ours_and_its_claims_beside_their_verdicts(blocks):
    *tables, checks = after(blocks, "rsd-exp1: printed beside measured, and the checks")
    (table,) = [each["content"] for each in tables if "XSum" in each["content"]]
    assert ", paper |" in table and ", ours |" in table and "2.000 [1.900, 2.100]" in table
    assert "rsd_s" in checks["content"] and "| verdict |" in checks["content"]
    (own,) = after(blocks, "mine: the checks")
    assert "| exact_match of exact decoders is that of ar" in own["content"]


def test_of_one_task_the_others_are_left_out(results, tmp_path):
    only = blocks_of(tmp_path, "rsd-exp1", "mine", "--task", "squad", "--results", str(results))
    assert only[0] == "embedded: SQuAD" and "XSum" not in json.dumps(only)


@pytest.mark.parametrize("task", ["", "a task of mine"])
def test_without_results_here_a_report_has_the_panels_of_all_runs(task, tmp_path, capsys):
    told = [*(["--task", task] if task else []), "--project", "mine", "--results", str(tmp_path)]
    blocks = blocks_of(tmp_path, *told)
    assert "nothing of project 'mine'" in capsys.readouterr().out
    summary, tables, histories = (each for each in blocks if not isinstance(each, str))
    plotted = [name for panel in panels_of(summary) for name in keys_of(panel)]
    assert {"speedup_low", "block_efficiency", "rouge2", *JOULES} <= {*plotted}
    lines = [name for panel in panels_of(histories) for name in keys_of(panel)]
    assert {*HISTORY, "prompt/bleu"} <= {*lines}
    assert "results" in json.dumps(panels_of(tables))
    assert all(task in json.dumps(grid["metadata"]["runSets"]) for grid in (summary, tables))


def test_an_experiment_that_is_not_there_is_one_line_with_the_others(results, tmp_path, capsys):
    told = ["wandb", "nosuch", "--dry-run", str(tmp_path / "x.json"), "--results", str(results)]
    assert main(told) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"'nosuch'.*mine, rsd-exp1", line) and not (tmp_path / "x.json").exists()
