"""Measured numbers beside the printed ones: differences, intervals, marks, what is missing."""

import csv
import io
import re

import pytest

from spec_bench.report.cli.command_line import main
from spec_bench.report.papers.paper import find_table
from spec_bench.report.tables.build import build_table, build_tables
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import comma, latex, markdown
from tests.report.rows import record, row, write


def measured_table(name, folder, pair=None):
    return build_table(find_table(name), Measured.below(folder), pair)


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_paper_ours_interval_and_difference_stand_side_by_side(tmp_path):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=(2.266, 2.2, 2.3), rouge2=0.153))
    text = markdown(measured_table("rsd/1", tmp_path))
    line = line_of(text, "| 2 | SD | 2 |")
    assert line.startswith("| 2 | SD | 2 | 2.166 | 2.266 [2.200, 2.300] | +0.100 |")
    assert line.endswith("| 0.143 | 0.153 | +0.010 |")


@pytest.mark.parametrize("sizes", [(8, 30), (30, 8)], ids=["small first", "large first"])
def test_of_a_cell_measured_twice_a_table_shows_the_larger_run(sizes, tmp_path):
    taus = {8: 2.9, 30: 2.2}
    rows = (row("sd", "2", prompts=n, block_efficiency=taus[n], run_id=f"run{n}") for n in sizes)
    write(tmp_path, "rsd-exp1", *rows)
    line = line_of(markdown(measured_table("rsd/1", tmp_path)), "| 2 | SD | 2 |")
    assert "| 2.166 | 2.200 |" in line and "2.900" not in line


def test_a_cell_that_was_not_run_says_so_and_the_command_runs_it(tmp_path):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=2.2))
    grid = measured_table("rsd/1", tmp_path)
    assert "| SpecTr | 2x2 | 2.218 | not run |  |" in markdown(grid)
    assert grid.commands == ("spec-bench rsd=exp1 pair=llama2_7b engine=cuda task=xsum",)


@pytest.mark.parametrize(("device", "way", "words"), [
    ("NVIDIA A100", "none", " engine=cuda engine.compile=none"),
    ("NVIDIA A100", "static", " engine=cuda"),
    ("cpu", "none", " engine=cuda"),
])  # fmt: skip
def test_what_is_missing_runs_as_the_rows_on_a_gpu_did_so_that_one_table_has_all(
    tmp_path, device, way, words
):
    own = {"block_efficiency": 2.2, "device": device, "compile": way}
    write(tmp_path, "rsd-exp1", row("sd", "2", **own))
    run = f"spec-bench rsd=exp1 pair=llama2_7b{words} task=xsum"
    assert measured_table("rsd/1", tmp_path).commands == (run,)


def test_a_pair_without_a_config_goes_on_where_its_rows_were(tmp_path):
    own = {"block_efficiency": 2.2, "pair": "mine", "target": "a/b", "draft": "a/c"}
    for device, words in (("cpu", ""), ("NVIDIA A100", " engine=cuda")):
        write(tmp_path, "rsd-exp1", row("sd", "2", **own, device=device, compile="static"))
        models = f"pair.target=a/b pair.draft=a/c pair.name=mine{words} task=xsum"
        (run,) = measured_table("rsd/1", tmp_path, "mine").commands
        assert run == f"spec-bench rsd=exp1 {models}"


def test_prompts_that_the_models_had_no_room_for_are_counted_under_the_table(tmp_path):
    own = {"block_efficiency": 2.2, "prompts_skipped": 3, "prompts_truncated": 0}
    write(tmp_path, "rsd-exp1", row("sd", "2", **own), row("sd", "3", **own))
    notes = [each for each in measured_table("rsd/1", tmp_path).notes if "too long" in each]
    assert len(notes) == 1
    assert "XSum on llama2_7b: 3 prompts left out" in notes[0]


def test_a_failed_cell_says_why_and_is_still_missing(tmp_path):
    failed = row("sd", "2", status="failed", reason="OutOfMemoryError: 80 GB (trace: runs/1)")
    write(tmp_path, "rsd-exp1", failed, row("ar", "-", block_efficiency=1.0))
    grid = measured_table("rsd/1", tmp_path)
    assert "failed: OutOfMemoryError: 80 GB |" in markdown(grid)
    assert grid.commands


def test_ours_stands_out_only_where_no_interval_overlaps(tmp_path):
    write(
        tmp_path,
        "rsd-exp1",
        row("sd", "2", block_efficiency=(2.0, 1.9, 2.1), mbsu=(1.9, 1.8, 2.0)),
        row("rsd_s", "3x2", block_efficiency=(2.4, 2.2, 2.6), mbsu=(2.1, 1.95, 2.2)),
    )
    line = line_of(markdown(measured_table("rsd/1", tmp_path)), "|  | RSD-S | 3x2 |")
    assert "| **2.400** [2.200, 2.600] |" in line
    assert "| 2.100 [1.950, 2.200] |" in line


def test_a_lone_measured_cell_is_no_best(tmp_path):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=(2.0, 1.9, 2.1)))
    text = markdown(measured_table("rsd/1", tmp_path))
    assert "| 2.000 [1.900, 2.100] |" in text


@pytest.mark.parametrize("mark", ["simulated", "approximate"])
def test_rows_that_are_not_exact_are_marked_and_never_best(tmp_path, mark):
    write(
        tmp_path,
        "rsd-exp1",
        row("sd", "2", block_efficiency=(2.0, 1.9, 2.1)),
        row("rsd_s", "3x2", block_efficiency=(3.0, 2.9, 3.1), lossless=mark),
    )
    grid = measured_table("rsd/1", tmp_path)
    line = line_of(markdown(grid), "|  | RSD-S |  3x2".replace("  3", " 3"))
    assert f"| RSD-S | 3x2 ({mark}) |" in line
    assert "| 3.000 [2.900, 3.100] |" in line
    assert any(note.startswith(f"{mark}:") for note in grid.notes)
    rows = list(csv.DictReader(io.StringIO(comma(grid))))
    assert (
        next(r for r in rows if r["tree"] == "3x2" and r["decoder"] == "RSD-S")["lossless"] == mark
    )


def test_the_recipes_own_experiment_is_preferred_and_its_seeds_are_pooled(tmp_path):
    write(tmp_path, "quickstart", row("sd", "2", block_efficiency=1.5))
    write(
        tmp_path,
        "rsd-exp1",
        row("sd", "2", seed=3, block_efficiency=1.7),
        row("sd", "2", seed=1, block_efficiency=1.6),
    )
    assert "| 2 | SD | 2 | 2.166 | 1.650 |" in markdown(measured_table("rsd/1", tmp_path))


def test_rows_at_another_temperature_are_no_part_of_the_table(tmp_path):
    write(tmp_path, "rsd-exp1", row("sd", "2", temperature=1.0, block_efficiency=1.5))
    assert not measured_table("rsd/1", tmp_path).measured


def test_results_two_levels_down_are_read_and_raw_runs_are_not(tmp_path):
    write(tmp_path / "embedded", "rsd-exp1", row("sd", "2", pair="embedded", block_efficiency=2))
    write(tmp_path, "runs", row("sd", "3", pair="embedded", block_efficiency=9))
    assert len(Measured.below(tmp_path).rows) == 1


def test_an_unmeasured_pair_names_the_pairs_that_were_measured(tmp_path):
    write(tmp_path, "rsd-exp1", row("sd", "2", pair="embedded", block_efficiency=2.0))
    notes = " ".join(measured_table("rsd/1", tmp_path).notes)
    assert "no cell of this table was run on llama2_7b" in notes
    assert "add --pair embedded" in notes


def test_another_pair_takes_the_same_layout_and_is_named(tmp_path):
    write(tmp_path, "rsd-exp1", row("sd", "2", pair="embedded", block_efficiency=2.0))
    grid = measured_table("rsd/1", tmp_path, "embedded")
    assert "| 2 | SD | 2 | 2.166 | 2.000 | -0.166 |" in markdown(grid)
    assert any(
        "pair embedded, small models on invented text, not the paper's" in note
        for note in grid.notes
    )
    assert grid.commands == ("spec-bench rsd=exp1 pair=embedded task=xsum",)


def test_a_label_made_of_model_names_is_the_pair_with_these_models(tmp_path):
    models = {"pair": "target+draft_distilled", "target": "embedded:target"}
    write(
        tmp_path,
        "rsd-exp1",
        row("sd", "2", **models, draft="embedded:draft_distilled", block_efficiency=2.0),
    )
    assert measured_table("rsd/1", tmp_path, "embedded").measured


MCSD = {"pair": "llama_33b_68m", "task": "alpaca", "temperature": 0.0}


def test_mcsd_takes_its_fastest_tree_and_sd_at_the_same_depth(tmp_path):
    write(
        tmp_path,
        "mcsd-search",
        row("ar", "-", **MCSD, speedup=1.0, block_efficiency=1.0),
        row("sd", "1", **MCSD, speedup=1.9, block_efficiency=1.5),
        row("sd", "2", **MCSD, speedup=1.7, block_efficiency=1.8),
        row("mcsd_wor", "4-1", **MCSD, speedup=2.5, block_efficiency=2.1),
        row("mcsd_wor", "8-2-1", **MCSD, speedup=2.2, block_efficiency=2.6),
    )
    grid = measured_table("mcsd/2", tmp_path)
    text = markdown(grid)
    assert "| SD (same γ) | 0 | 1x1x1x1x1 | 1x1 | 2.71 | 1.70 | -1.01 | 3.19 | 1.80 |" in text
    assert "| SD (best γ) | 0 | 1x1x1x1x1x1x1x1x1x1 | 1 | 2.89 | 1.90 |" in text
    assert "| MCSD | 0 | 4x2x2x1x1 | 4x1 | **3.06** | 2.50 |" in text
    assert any("fastest of those measured (2 MCSD trees)" in note for note in grid.notes)


def test_where_a_search_was_confirmed_the_fastest_is_of_those_confirmed(tmp_path):
    screen, confirm = {**MCSD, "stage": "screen"}, {**MCSD, "stage": "confirm"}
    write(
        tmp_path,
        "mcsd-search",
        row("ar", "-", **screen, speedup=1.0, block_efficiency=1.0),
        row("mcsd_wor", "4-1", **screen, speedup=2.9, block_efficiency=2.1),
        row("mcsd_wor", "8-2-1", **screen, speedup=2.7, block_efficiency=2.6),
        row("mcsd_wor", "1", **screen, speedup=9.0, block_efficiency=1.2),
        row("ar", "-", **confirm, speedup=1.0, block_efficiency=1.0),
        row("mcsd_wor", "4-1", **confirm, speedup=2.1, block_efficiency=2.1),
        row("mcsd_wor", "8-2-1", **confirm, speedup=2.2, block_efficiency=2.6),
    )
    grid = measured_table("mcsd/2", tmp_path)
    assert "| MCSD | 0 | 4x2x2x1x1 | 8x2x1 | **3.06** | 2.20 |" in markdown(grid)
    assert any("few that a search of 3 trees confirmed" in note for note in grid.notes)
    # Each stage's table counts what was searched, not what the second stage was left with.
    first, _ = build_tables(find_table("mcsd/2"), Measured.below(tmp_path))
    assert "stage confirm" in first.title
    assert any("few that a search of 3 trees confirmed" in note for note in first.notes)


def test_acceptance_with_four_candidates_less_that_with_one(tmp_path):
    pair = {**MCSD, "pair": "llama_13b_68m"}
    write(
        tmp_path,
        "mcsd-acceptance",
        row("mcsd_wor", "1", **pair, acceptance_rate=(0.70, 0.67, 0.73)),
        row("mcsd_wor", "4", **pair, acceptance_rate=(0.90, 0.86, 0.94)),
    )
    grid = measured_table("mcsd/7", tmp_path)
    line = line_of(markdown(grid), "| LLaMA-68M | LLaMA-13B |")
    assert "| 0.12 | 0.20 | +0.08 |" in line
    assert any("no interval where the records by prompt" in note for note in grid.notes)


def test_a_difference_of_two_cells_is_paired_by_prompt(tmp_path):
    """Both cells move alike from prompt to prompt, so that their difference hardly moves."""
    pair = {**MCSD, "pair": "llama_13b_68m"}
    file = tmp_path / "mcsd-acceptance" / "results.csv"
    write(
        tmp_path,
        "mcsd-acceptance",
        row("mcsd_wor", "1", **pair, acceptance_rate=(0.50, 0.30, 0.70)),
        row("mcsd_wor", "4", **pair, acceptance_rate=(0.60, 0.40, 0.80)),
    )
    one = [7, 3, 7, 3, 7, 3, 7, 3]
    four = [8, 4, 8, 4, 8, 4, 9, 3]
    for name, counts in (("mcsd_wor-1", one), ("mcsd_wor-4", four)):
        record(file, name, [[1] * count + [0] * (10 - count) for count in counts], depth=1)
    grid = measured_table("mcsd/7", tmp_path)
    line = line_of(markdown(grid), "| LLaMA-68M | LLaMA-13B |")
    own = re.search(r"\| 0\.12 \| (0\.\d\d) \[(0\.\d\d), (0\.\d\d)\]", line)
    assert own is not None
    value, low, high = map(float, own.groups())
    assert low <= value <= high
    assert high - low < 0.1  # as if they were independent: 0.57
    assert any("paired by prompt" in note for note in grid.notes)


def test_the_ablation_compares_decoders_on_the_tree_that_was_ablated(tmp_path):
    pair = {**MCSD, "pair": "llama_13b_68m", "temperature": 1.0}
    write(
        tmp_path,
        "mcsd-ablation",
        row("mcsd_wor", "4-2-1", **pair, speedup=1.9, block_efficiency=2.4),
        row("mcsd_wor", "4-2-1", **pair, tree_attention=False, speedup=1.5, block_efficiency=2.4),
        row("mcns", "4-2-1", **pair, tree_attention=False, speedup=1.1, block_efficiency=1.5),
    )
    write(tmp_path, "mcsd-search", row("mcsd_wor", "8-1", **pair, speedup=9.0))
    grid = measured_table("mcsd/4", tmp_path)
    text = markdown(grid)
    assert "| without replacement | yes | 1.91 | 1.90 | -0.01 |" in text
    assert "|  | no |" in text or "| without replacement | no | 1.61 | 1.50 | -0.11 |" in text
    assert "| naive (MCNS) | no |  | 1.10 |" in text
    assert any("llama_13b_68m 4x2x1" in note for note in grid.notes)


def test_another_pair_has_lines_or_columns_of_its_own_in_tables_of_many_pairs(tmp_path):
    own = {**MCSD, "pair": "embedded"}
    write(
        tmp_path,
        "mcsd-search",
        row("mcsd_wor", "4", **own, speedup=2.0, acceptance_rate=0.8),
        row("mcsd_wor", "1", **own, speedup=1.5, acceptance_rate=0.5),
    )
    search = markdown(measured_table("mcsd/2", tmp_path, "embedded"))
    assert "embedded: speedup (×), ours" in search
    assert "LLaMA-33B: speedup (×), ours" not in search
    acceptance = markdown(measured_table("mcsd/1", tmp_path, "embedded"))
    assert "|  | embedded | 0 |  | 0.50 |" in acceptance


@pytest.mark.parametrize(
    "name", ["rsd/1", "rsd/30", "mcsd/2", "mcsd/4", "mcsd/7", "dsbd/1", "redrafter/1"]
)
def test_latex_is_balanced_and_every_line_has_all_columns(tmp_path, name):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=(2.2, 2.1, 2.3)))
    text = latex(measured_table(name, tmp_path))
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}") == 1
    assert all(rule in text for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
    assert text.replace(r"\{", "").replace(r"\}", "").count("{") == text.replace(r"\{", "").replace(
        r"\}", ""
    ).count("}")
    shape = text.split("\\begin{tabular}{")[1].split("}")[0]
    body = text.split("\\midrule\n", 1)[1].split("\\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert lines
    assert all(line.count(" & ") == len(shape) - 1 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table", "rsd/99"], "1-54"),
        (["table", "rsd"], "1-54"),
        (["table", "nothing/1"], "beyond, dsbd, eagle, mcsd, redrafter, rsd, today"),
        (["table", "rsd/7", "--pair", "nothing"], "llama2_chat_7b"),
        (["list", "nothing"], "beyond, dsbd, eagle, mcsd, redrafter, rsd, today"),
        (["figure", "rsd/2"], "1, 4-9"),
        (["checks", "nothing"], "beyond, dsbd, eagle, mcsd, redrafter, rsd, today"),
    ],
)
def test_a_request_that_cannot_be_right_is_one_line_with_choices_and_status_2(
    arguments, words, tmp_path, capsys
):
    assert main([*arguments, "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert words in error


@pytest.mark.parametrize("form", ["markdown", "csv", "latex", "html"])
def test_a_table_is_written_to_a_file(form, tmp_path, capsys):
    path = tmp_path / "made" / "table.txt"
    given = ["table", "rsd/7", "--format", form, "--output", str(path)]
    assert main([*given, "--results", str(tmp_path)]) == 0
    assert "2.148" in path.read_text() or "lost" in path.read_text()
    assert str(path) in capsys.readouterr().out


def test_list_counts_cells_and_names_the_missing_command(tmp_path, capsys):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=2.0))
    assert main(["list", "rsd", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1/33 cells: llama2_7b" in out
    assert "pair=llama2_chat_7b,llama2_chat_13b,llama2_chat_70b engine=cuda task=xsum" in out
    assert "table rsd/54" in out and "figure rsd/9" in out
    assert "python -m spec_bench.audit.bernoulli" in out
    assert main(["list", "--results", str(tmp_path)]) == 0
    assert "python -m spec_bench.train -m training=redrafter_grid" in capsys.readouterr().out
