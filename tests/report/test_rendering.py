"""Names come from anywhere: none of them is read as markup, as a formula or as a second command."""

import csv
import io
import shlex

import pytest

from spec_bench.report.cli.subcommands import FORMATS
from spec_bench.report.data.rows import groups_of, read_results
from spec_bench.report.papers.paper import Column, find_table
from spec_bench.report.plain import markdown as plain
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import comma, html, latex, markdown
from spec_bench.system.files import escaped
from tests.report.rows import row, write
from tests.report.sheets import place, sheet

TAG = "<script>alert('|')</script>"


def hostile(text):
    """A table that has a text in every place where one may come from outside."""
    cells = (
        place("1.5", value=1.0, low=0.5, high=1.5, mark=text, ours=True),
        place("2", state=f"failed: {text}"),
    )
    columns = (Column(name=text, title=text, group=text), Column(name="y", title="y"))
    lines = [((text, text), "block", cells), (("", "other"), "block", cells[::-1])]
    around = {"notes": (text,), "commands": (text,), "measured": True}
    return sheet(lines, columns, text, (text, "b"), **around)


def test_html_shows_tags_as_text():
    text = html([hostile(TAG)])
    assert "<script>" not in text
    assert text.count("&lt;script&gt;") >= 8


def test_a_markdown_table_keeps_its_columns_and_opens_no_tag():
    text = markdown(hostile(TAG)).split("```")[0]
    assert "<script>" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {lines[1].count("|")}


def test_a_line_break_in_a_name_ends_no_line():
    for name in ("markdown", "latex"):
        text = FORMATS[name]([hostile("first\nsecond")])
        assert not any(line.startswith("second") for line in text.splitlines()), name


def test_latex_runs_no_command_of_a_name():
    text = latex(hostile("\\input{secret}%"))
    assert "\\textbackslash{}input\\{secret\\}\\%" in text
    assert "\\input{secret}" not in text.split("% missing cells")[0]


@pytest.mark.parametrize("formula", ["=cmd|'/c calc'!A1", "+1+cmd()", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_csv_cell_is_no_formula(formula):
    rows = list(csv.reader(io.StringIO(comma(hostile(formula)))))
    cells = [cell for line in rows for cell in line]
    assert f"'{formula}" in cells
    assert not any(cell.startswith(("=", "@", "\t")) for cell in cells)


@pytest.mark.parametrize("number", ["-1.25", "+0.5", "-3e-05", "-", "", "0.7", "4x2@0.9"])
def test_numbers_and_trees_stay_as_they_are_in_csv(number):
    assert escaped(number) == number


def test_the_plain_table_of_a_results_file_opens_no_tag_and_keeps_its_columns(tmp_path):
    rows = (
        row("a|b", TAG, pair=TAG, task=TAG, block_efficiency=1.5),
        row("sd", "2", pair=TAG, task=TAG, status="failed", reason=f"ValueError: {TAG}\nmore"),
    )
    file = write(tmp_path, "mine", *rows) / "mine" / "results.csv"
    text = plain(groups_of(read_results(file)), file)
    assert "<script>" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.replace("\\|", "").count("|") for line in lines] == [4] * 4


def test_a_command_for_a_pair_of_any_name_is_one_command(tmp_path):
    name = "mine; rm -rf x"
    write(tmp_path, "rsd-exp1", row("ar", pair=name, draft="a b", target="t"))
    grid = build_table(find_table("rsd/1"), Measured.below(tmp_path), name)
    (command,) = grid.commands
    assert shlex.split(command)[-4:-1] == ["pair.target=t", "pair.draft=a b", f"pair.name={name}"]
