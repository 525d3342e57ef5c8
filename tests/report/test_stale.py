"""Files that nothing makes any more: ``report all`` removes them, and none is committed."""

import re
from pathlib import Path

import pytest

from spec_bench.report.cli.command_line import main
from spec_bench.report.data.rows import read_rows
from spec_bench.report.page.gather import shown_tables, stems
from spec_bench.report.papers.paper import load_paper, recipes_by_name
from spec_bench.report.tables.measured import Measured
from tests.committed import committed_files
from tests.report.drawn import committed_sheets
from tests.report.rows import row, write

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = committed_files("results")
COMMANDS = (ROOT / "Makefile").read_text(encoding="utf-8")
SCRIPTS = COMMANDS + "".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "scripts").rglob("*.py"))
)
EXPERIMENTS = sorted(
    {path.split("/")[2] for path in COMMITTED if re.fullmatch(r"results/embedded/.*/.*", path)}
)
ROWS = ("results.csv", "records.parquet")
NOT_IN_GIT = (".html", ".pdf", ".tex")  # make report makes them again
WITHOUT_ROWS = {  # made by spec_bench.audit.bernoulli and by make heads-grid
    "rsd-fig1": ["acceptance.csv", "rsd-fig1.png"],
    "redrafter-heads": ["heads.csv"],
}


def test_tables_and_figures_that_are_not_made_any_more_are_removed_and_others_stay(
    tmp_path, capsys
):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=(2.0, 1.9, 2.1)))
    folder = tmp_path / "rsd-exp1"
    assert main(["all", "--results", str(tmp_path)]) == 0
    made = {path for path in folder.rglob("*") if path.is_file()}
    old = [folder / "tables" / "rsd-7-llama2_7b.md", folder / "figures" / "rsd-fig9-mine.pdf"]
    own = [folder / "figures" / "notes.txt", folder / "tables" / "rsd-thoughts.docx"]
    for path in (*old, *own):
        path.write_text("of a year ago")
    capsys.readouterr()
    assert main(["all", "--results", str(tmp_path)]) == 0
    assert {path for path in folder.rglob("*") if path.is_file()} == made | {*own}
    said = capsys.readouterr().out
    assert all(f"{path}: removed" in said for path in old)
    assert all(f"{path}: not made" in said for path in own)
    assert "rsd-7-llama2_7b" not in (tmp_path / "index.html").read_text()


def made_of(experiment):
    """What ``report all`` writes of an experiment and git keeps, without writing it."""
    recipe = recipes_by_name()[experiment]
    assert f"{recipe} $(EMBEDDED)" in COMMANDS
    items = load_paper(recipe.partition("=")[0]).items
    own = [item for item in items if experiment in item.experiments]
    rows = read_rows([ROOT / "results" / "embedded" / experiment / "results.csv"])
    tables = stems(shown_tables(own, Measured(rows), None))
    figures = committed_sheets(experiment)
    screened = "stage" in rows and (rows.stage == "screen").any()
    return {
        *ROWS,
        *(["screening.csv"] if screened else []),
        *(f"tables/{stem}.{suffix}" for stem in tables for suffix in ("md", "csv")),
        *(f"figures/{name}.png" for name in figures),
    }


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_committed_file_of_an_experiment_is_one_that_a_command_makes(experiment):
    start = f"results/embedded/{experiment}/"
    there = {path.removeprefix(start) for path in COMMITTED if path.startswith(start)}
    assert there == {*(WITHOUT_ROWS.get(experiment) or made_of(experiment))}


def test_no_page_is_committed():
    assert [path for path in COMMITTED if path.endswith(NOT_IN_GIT)] == []


def test_every_other_committed_result_is_one_that_a_command_makes():
    others = [path for path in COMMITTED if path.count("/") < 3]
    quickstart = ("results.csv", "records.parquet", "table.md", "figure.png")
    known = {"results/README.md"}
    known |= {f"results/{of}/{name}" for of in ("quickstart", "smollm2") for name in quickstart}
    made = ("results/benchmarks/", "results/smollm2/")
    known |= {path for path in others if path.startswith(made) and named(path)}
    assert {*others} - known == set()


def named(path):
    """Whether the Makefile or a script names the file, or it names the script that it is from."""
    if any(name in SCRIPTS for name in (path.split("/")[-1], path.partition(".")[0])):
        return True
    text = (ROOT / path).read_text(encoding="utf-8") if path.endswith(".md") else ""
    return any(
        (ROOT / name).is_file() for name in re.findall(r"`python (scripts/[\w/]+\.py)", text)
    )
