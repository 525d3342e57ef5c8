"""Table 1 of today's drafters: sources stand by their own numbers, commands fill the gaps."""

import csv
from pathlib import Path

from spec_bench.report.papers.paper import find_table, recipe_cells
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import markdown
from tests.report.rows import row, write

REFERENCE = Path(__file__).resolve().parents[2] / "experiments" / "today" / "reference.csv"


def table(folder, pair=None):
    return build_table(find_table("today/1"), Measured.below(folder), pair)


def test_no_number_stands_under_a_model_or_head_that_its_source_does_not_name():
    with REFERENCE.open(encoding="utf-8") as stream:
        rows = [each for each in csv.DictReader(stream) if each["table"] == "1"]
    assert {each["target"] for each in rows} == {"Qwen3-8B"}
    assert [each["value"] for each in rows] == ["145", "422", "443"]


def test_the_commands_for_missing_cells_run_a_recipe_whose_rows_fill_them(tmp_path):
    grid = table(tmp_path)
    (command,) = grid.commands
    assert command.split()[1:3] == ["today=printed", "pair=qwen3_8b"]
    measured = {"pair": "qwen3_8b", "target": "Qwen/Qwen3-8B", "task": "mt_bench"}
    cells = (*recipe_cells("today=printed"), "ar:-")
    rows = [
        row(*cell.split(":"), **measured, temperature=0.0, speedup=1.5, token_rate=50.0)
        for cell in cells
    ]
    write(tmp_path, "today-printed", *rows)
    assert not table(tmp_path).commands and "not run" not in markdown(table(tmp_path))


def test_rows_measured_here_do_not_carry_a_sources_name(tmp_path):
    one = row("dflash", "7", pair="embedded", task="mt_bench", temperature=0.0, token_rate=50.0)
    write(tmp_path, "today-printed", one)
    lines = markdown(table(tmp_path, "embedded")).splitlines()
    (ours,) = (line for line in lines if "50" in line)
    assert "| measured here | DFlash | 7 |" in ours
    assert sum("H100" in line for line in lines) == 3
