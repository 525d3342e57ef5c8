"""Names are never read as markup, formula or command; every table's LaTeX compiles."""

import csv
import io
import shlex
import shutil
import subprocess

import pytest

from spec_bench.report.cli.command_line import FORMATS
from spec_bench.report.data.rows import groups_of, read_results, read_rows
from spec_bench.report.papers.items import Column
from spec_bench.report.papers.paper import load_paper, paper_names
from spec_bench.report.plain import markdown as plain
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import comma, html, latex, markdown
from spec_bench.system.files import escaped
from tests.report.rows import row, write
from tests.report.shown import place, sheet, table

TAG = "<script>alert('|')</script>"
PREAMBLE = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n"
needs_pdflatex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed"
)


def hostile(text):
    """A table that has a text in every place where one may come from outside."""
    cells = (
        place("1.5", value=1.0, low=0.5, high=1.5, mark=text, ours=True),
        place("2", state=f"failed: {text}"),
    )
    columns = (Column(name=text, title=text, group=text), Column(name="y", title="y"))
    lines = [((text, text), "block", cells), (("", "other"), "block", cells[::-1])]
    return sheet(lines, columns, text, (text, "b"), notes=(text,), commands=(text,))


def bars(text):
    """How many columns end in each line of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.replace("\\|", "").count("|") for line in lines]


def test_no_format_opens_a_tag_and_columns_stay():
    page, text = html([hostile(TAG)]), markdown(hostile(TAG)).split("```")[0]
    assert "<script>" not in page + text
    assert page.count("&lt;script&gt;") >= 8
    assert len({*bars(text)}) == 1


@pytest.mark.parametrize("name", ["markdown", "latex"])
def test_a_line_break_in_a_name_ends_no_line(name):
    text = FORMATS[name]([hostile("first\nsecond")])
    assert not any(line.startswith("second") for line in text.splitlines())


def test_latex_runs_no_command_of_a_name():
    text = latex(hostile("\\input{secret}%"))
    assert "\\textbackslash{}input\\{secret\\}\\%" in text
    assert "\\input{secret}" not in text.split("% missing cells")[0]


@pytest.mark.parametrize("formula", ["=cmd|'/c calc'!A1", "+1+cmd()", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_csv_cell_is_no_formula(formula):
    cells = [cell for line in csv.reader(io.StringIO(comma(hostile(formula)))) for cell in line]
    assert f"'{formula}" in cells
    assert not any(cell.startswith(("=", "@", "\t")) for cell in cells)


@pytest.mark.parametrize("number", ["-1.25", "+0.5", "-3e-05", "-", "", "0.7", "4x2@0.9"])
def test_numbers_and_trees_stay_as_they_are_in_csv(number):
    assert escaped(number) == number


def test_the_plain_table_of_a_results_file_opens_no_tag_and_keeps_its_columns(tmp_path):
    failed = row("sd", "2", pair=TAG, task=TAG, status="failed", reason=f"ValueError: {TAG}\nmore")
    write(tmp_path, "mine", row("a|b", TAG, pair=TAG, task=TAG, block_efficiency=1.5), failed)
    file = tmp_path / "mine" / "results.csv"
    text = plain(groups_of(read_results(file)), file)
    assert "<script>" not in text
    assert bars(text) == [4] * 4


def test_a_command_for_a_pair_of_any_name_is_one_command(tmp_path):
    name = "mine; rm -rf x"
    write(tmp_path, "rsd-exp1", row("ar", pair=name, draft="a b", target="t"))
    (command,) = table("rsd/1", tmp_path, name).commands
    assert shlex.split(command)[-4:-1] == ["pair.target=t", "pair.draft=a b", f"pair.name={name}"]


def compiled(folder, *tables):
    """The log of a document with these tables; fails where LaTeX finds an error."""
    source = PREAMBLE + "\n\\clearpage\n".join(tables) + "\n\\end{document}\n"
    (folder / "tables.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert found.returncode == 0, found.stdout[-2000:]
    return found.stdout


@needs_pdflatex
def test_every_printed_table_compiles_and_fits_the_page(tmp_path):
    nothing = Measured(read_rows([]))
    items = [item for name in paper_names() for item in load_paper(name).tables]
    log = compiled(tmp_path, *(latex(build_table(item, nothing)) for item in items))
    assert "Overfull" not in log and "Float too large" not in log
    assert f"({len(items)} pages" in log


@needs_pdflatex
@pytest.mark.parametrize("pair", ["llama2_chat_7b", "embedded"])
def test_a_table_with_measured_failed_and_missing_cells_compiles(tmp_path, pair):
    failed = {"status": "failed", "reason": "ValueError: 100% of a_b^2 & ~{c}#$\\"}
    cells = (
        row("ar", "-", pair=pair, block_efficiency=1.0, rouge2=(0.1, 0.08, 0.12)),
        row("sd", "2", pair=pair, block_efficiency=(2.2, 2.1, 2.3), lossless="simulated"),
        row("rsd_s", "3x2", pair=pair, **failed),
    )
    write(tmp_path, "rsd-exp1", *cells)
    assert "Overfull" not in compiled(tmp_path, latex(table("rsd/7", tmp_path, pair)))


@needs_pdflatex
def test_letters_that_latex_reads_otherwise_are_written_out(tmp_path):
    text = "\\ & % $ # _ { } ~ ^ × α Δ γ τ ± < > [a] – é"
    line = ((text,), "", [place("1.0", best=True, underlined=True)])
    columns = (Column(name="x", title=text),)
    rendered = latex(sheet([line, line], columns, text, (text,), name="a_b/1", notes=(text,)))
    compiled(tmp_path, rendered)
    assert "\\underline{\\textbf{1.0}}" in rendered
