"""Every table's LaTeX goes through pdflatex, where there is one."""

import shutil
import subprocess

import pytest

from spec_bench.report.data.rows import read_rows
from spec_bench.report.papers.paper import Column, find_table, load_paper, paper_names
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import latex
from tests.report.rows import row, write
from tests.report.sheets import place, sheet

PREAMBLE = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n"
needs_pdflatex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed"
)


def compiled(folder, *tables):
    """The log of a document with these tables; fails where LaTeX finds an error."""
    source = PREAMBLE + "\n\\clearpage\n".join(tables) + "\n\\end{document}\n"
    (folder / "tables.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    found = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = found.stdout.decode("utf-8", "replace")
    assert found.returncode == 0, log[-2000:]
    return log


@needs_pdflatex
def test_every_printed_table_compiles_and_fits_the_page(tmp_path):
    nothing = Measured(read_rows([]))
    items = [item for name in paper_names() for item in load_paper(name).of_kind("table")]
    log = compiled(tmp_path, *(latex(build_table(item, nothing)) for item in items))
    assert "Overfull" not in log
    assert "Float too large" not in log
    assert f"({len(items)} pages" in log


@needs_pdflatex
@pytest.mark.parametrize("pair", ["llama2_chat_7b", "embedded"])
def test_a_table_with_measured_failed_and_missing_cells_compiles(tmp_path, pair):
    own = {"pair": pair, "prompts": 30}
    write(
        tmp_path,
        "rsd-exp1",
        row("ar", "-", **own, block_efficiency=1.0, rouge2=(0.1, 0.08, 0.12)),
        row("sd", "2", **own, block_efficiency=(2.2, 2.1, 2.3), lossless="simulated"),
        row("rsd_s", "3x2", **own, status="failed", reason="ValueError: 100% of a_b^2 & ~{c}#$\\"),
    )
    measured = Measured.below(tmp_path)
    grid = build_table(find_table("rsd/7"), measured, pair)
    log = compiled(tmp_path, latex(grid))
    assert "Overfull" not in log


@needs_pdflatex
def test_letters_that_latex_reads_otherwise_are_written_out(tmp_path):
    text = "\\ & % $ # _ { } ~ ^ × α Δ γ τ ± < > [a] – é"
    line = ((text,), "", [place("1.0", best=True, underlined=True)])
    columns = (Column(name="x", title=text),)
    rendered = latex(sheet([line, line], columns, text, (text,), name="a_b/1", notes=(text,)))
    compiled(tmp_path, rendered)
    assert "\\underline{\\textbf{1.0}}" in rendered


def test_lines_that_are_blocks_of_their_own_have_no_rules_between_them():
    lines = [((label,), "", [place("1")]) for label in ("a", "b", "c")]
    text = latex(sheet(lines, (Column(name="x", title="x"),), "title", ("label",)))
    assert text.count("\\midrule") == 1
