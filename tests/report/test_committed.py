"""What is committed keeps its word: intervals in range, and a command makes every file."""

import re

import pandas as pd
import pytest

from spec_bench.metrics.interval import FEWEST, WIDEST
from spec_bench.records import parquet
from spec_bench.report.claims import measured
from spec_bench.report.claims.ask import Ask
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import most_of, read_rows, rows_of
from spec_bench.report.page.gather import shown_tables, stems
from spec_bench.report.papers.paper import load_paper, recipes_by_name
from spec_bench.report.tables.measured import Measured
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS, apart_in, columns_in
from tests.committed import committed_files
from tests.report.rows import row, write
from tests.report.shown import committed_sheets

ROOT = files.package_folder("results")
TABLES = sorted([*ROOT.glob("embedded/*/results.csv"), *ROOT.glob("*/results.csv")])
SCREENED = sorted(ROOT.glob("embedded/*/screening.csv"))
ROUNDING = 1e-9


def read(path):
    return pd.read_csv(path, dtype={"spec": str, "run_id": str}, low_memory=False)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_every_interval_encloses_its_number_and_stays_within_its_columns_range(path):
    rows = read(path)
    deepest = pd.Series([most_of(row) for row in rows_of(rows)], rows.index, dtype=float)
    for each in columns_in(rows.columns):
        names = [each.name, *(f"{each.name}{end}" for end in ENDS)]
        if not each.interval or not set(names) <= set(rows.columns):
            continue
        value, low, high = (rows[name] for name in names)
        known = low.notna()
        assert (known == high.notna()).all(), each.name
        assert (rows.prompts[known] >= FEWEST).all(), each.name
        value, low, high = value[known], low[known], high[known]
        slack = ROUNDING * value.abs().clip(lower=1)
        assert ((low <= value + slack) & (value <= high + slack)).all(), each.name
        least, most = each.limits
        assert least is None or (low >= least - ROUNDING).all(), each.name
        assert most is None or (high <= most + ROUNDING).all(), each.name
        if most is None and least is not None:
            assert (high <= WIDEST * low + slack).all(), each.name
        if each.name == "block_efficiency":
            assert not (high > deepest[known] + ROUNDING).any()


@pytest.mark.parametrize("path", SCREENED, ids=lambda path: path.parent.name)
def test_what_a_search_screened_has_no_intervals_and_no_records(path):
    screened, table = read(path), path.with_name("results.csv")
    assert set(screened.stage) == {"screen"}
    assert not [name for name in screened if name.endswith(ENDS)]
    kept, rest = {*parquet.read(files.records_file(table)).run_ids}, read(table)
    assert kept and not (rest.stage == "screen").any()
    assert not {*kept, *rest.run_id} & {*screened.run_id}


def test_no_claim_of_any_paper_looks_at_what_was_screened():
    assert len(TABLES) > 10
    rows = read_rows(path.with_name("results.csv") for path in SCREENED)
    assert (rows.stage == "screen").any()
    assert "stage" in [column.name for column in apart_in(rows)]  # so that no seeds are pooled
    asked = Ask(measured(rows), Records(ROOT)).of().rows
    assert len(asked) and not (asked.stage == "screen").any()


COMMITTED = committed_files("results")
COMMANDS = (ROOT.parent / "Makefile").read_text(encoding="utf-8")
SCRIPTS = "".join(path.read_text("utf-8") for path in (ROOT.parent / "scripts").rglob("*.py"))
EXPERIMENTS = sorted({path.split("/")[2] for path in COMMITTED if path.count("/") > 2})

NOT_IN_GIT = (".html", ".pdf", ".tex")  # make report makes them again
WITHOUT_ROWS = {  # made by spec_bench.audit.bernoulli and by make heads-grid
    "rsd-fig1": ["acceptance.csv", "rsd-fig1.png"],
    "redrafter-heads": ["heads.csv"],
}


def test_tables_and_figures_made_no_more_are_removed_and_others_stay(tmp_path, capsys):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=(2.0, 1.9, 2.1)))
    folder = tmp_path / "rsd-exp1"
    old = [folder / "tables" / "rsd-7-llama2_7b.md", folder / "figures" / "rsd-fig9-mine.pdf"]
    own = [folder / "figures" / "notes.txt", folder / "tables" / "rsd-thoughts.docx"]
    for path in (*old, *own):
        files.write_text(path, "of a year ago")
    assert main(["all", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert [path.is_file() for path in (*old, *own)] == [False, False, True, True]
    assert all(f"{path}: removed" in said for path in old)
    assert all(f"{path}: not made" in said for path in own)
    assert "rsd-7-llama2_7b" not in (tmp_path / "index.html").read_text()
    assert (folder / "tables" / "rsd-1.md").is_file()


def made_of(experiment):
    """What ``report all`` writes of an experiment and git keeps, without writing it."""
    recipe = recipes_by_name()[experiment]
    assert f"{recipe} $(EMBEDDED)" in COMMANDS
    items = load_paper(recipe.partition("=")[0]).items
    own = [item for item in items if experiment in item.experiments]
    rows = read_rows([ROOT / "embedded" / experiment / "results.csv"])
    tables = stems(shown_tables(own, Measured(rows), None))
    screened = "stage" in rows and (rows.stage == "screen").any()
    return {
        *("results.csv", "records.parquet", *(["screening.csv"] if screened else [])),
        *(f"tables/{stem}.{suffix}" for stem in tables for suffix in ("md", "csv")),
        *(f"figures/{name}.png" for name in committed_sheets(experiment)),
    }


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_committed_file_of_an_experiment_is_one_that_a_command_makes(experiment):
    start = f"results/embedded/{experiment}/"
    there = {path.removeprefix(start) for path in COMMITTED if path.startswith(start)}
    assert there == {*(WITHOUT_ROWS.get(experiment) or made_of(experiment))}


def test_no_page_is_committed():
    assert [path for path in COMMITTED if path.endswith(NOT_IN_GIT)] == []


def test_every_other_committed_result_is_one_that_a_command_makes():
    quickstart = ("results.csv", "records.parquet", "table.md", "figure.png")
    known = {f"results/{of}/{name}" for of in ("quickstart", "smollm2") for name in quickstart}
    for path in {path for path in COMMITTED if path.count("/") < 3} - known - {"results/README.md"}:
        assert path.startswith(("results/benchmarks/", "results/smollm2/")), path
        # The Makefile or a script names the file, or it names the script that it is from.
        names = (path.split("/")[-1], path.split(".")[0])
        if not any(name in COMMANDS + SCRIPTS for name in names):
            text = (ROOT.parent / path).read_text(encoding="utf-8")
            (script, *_) = re.findall(r"`python (scripts/[\w/]+\.py)", text)
            assert (ROOT.parent / script).is_file(), path
