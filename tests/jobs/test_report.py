"""What is committed of an experiment is enough for its tables, figures, claims and pages."""

import re
import shutil
from pathlib import Path

import pandas
import pytest

from spec_bench.records import parquet
from spec_bench.report.claims.verdict import NOT_DECIDED
from spec_bench.report.cli.command_line import main as report
from spec_bench.system import files
from tests.jobs.test_command_line import main
from tests.jobs.test_job import failing
from tests.jobs.tiny import make_task


def test_a_results_file_becomes_a_table_and_a_figure(run_job, tmp_path, capsys):
    enough = f"task.source.path={make_task(tmp_path, rows=5)}"  # prompts for intervals
    run_job("cells=[sd:3,spectr:2x3,rsd_c:2-1-1,rsd_s:2x3]", enough)
    run_job("cells=[sd:3]", "generation.temperature=0.5", enough)
    results = tmp_path / "results" / "default"
    assert report([str(results / "results.csv")]) == 0
    table = (results / "table.md").read_text()
    assert "### xsum, temperature 1\n" in table
    assert "### xsum, temperature 0.5" in table
    for name in ("| ar | - |", "| sd | 3 |", "| spectr | 2x3 |", "| rsd_c |", "| rsd_s |"):
        assert name in table
    assert "rsd_s > rsd_c in block efficiency" in table
    assert (results / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "figure.png" in capsys.readouterr().out


def test_a_failed_cell_stands_in_the_table_without_numbers(run_job, tmp_path, monkeypatch):
    failing(monkeypatch, RuntimeError("went wrong"), "sd")
    run_job("cells=[sd:3,rsd_s:2x3]")
    results = tmp_path / "results" / "default"
    assert report([str(results / "results.csv")]) == 0
    table = (results / "table.md").read_text().splitlines()
    (line,) = (line for line in table if "| sd |" in line)
    assert line.startswith("| sd | 3 | failed: RuntimeError: went wrong | ")
    assert not any(letter.isdigit() for letter in line.removeprefix("| sd | 3 |"))


def test_a_missing_results_file_is_one_line_and_status_2(tmp_path, capsys):
    assert report([str(tmp_path / "no.csv")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


SWEEP = (
    *("rsd=exp1", "pair=embedded", "task=xsum", "results=results", "prompts=5", "warmup=0"),
    *("generation.max_new_tokens=8", "sink=quiet", "engine.threads=1"),
    *("~trees", "cells=[sd:2,spectr:2x2,rsd_c:2-1,rsd_s:2x2]"),  # in place of the recipe's 33
)
COMMITTED = (files.RESULTS, files.RECORDS)


def written(capsys):
    """Everything that the report makes of the folder's results, made anew."""
    folder = Path("results/rsd-exp1")
    for path in Path("results").rglob("*.*"):
        if files.RUNS not in path.parts and path.is_file() and path.name not in COMMITTED:
            path.unlink()
    capsys.readouterr()
    assert report(["all", "--results", "results"]) == 0
    assert report([str(folder / files.RESULTS)]) == 0
    made = {str(path): path.read_bytes() for path in sorted(folder.rglob("*.*"))}
    return {**made, "said": capsys.readouterr().out.encode()}


def test_page_tables_figures_and_claims_come_out_the_same_without_the_raw_runs(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(monkeypatch, *SWEEP) == 0
    first = written(capsys)
    assert {Path(name).suffix for name in first} >= {".html", ".md", ".csv", ".tex", ".png", ".pdf"}
    shutil.rmtree(Path("results") / files.RUNS)
    again = written(capsys)
    assert list(again) == list(first)
    assert [name for name, data in again.items() if data != first[name]] == []

    # What the records are there for: intervals paired by prompt, and where it was measured.
    Path("results/rsd-exp1", files.RECORDS).unlink()
    assert report(["page", "rsd-exp1"]) == 0
    page = "results/rsd-exp1/page.html"
    without = Path(page).read_bytes()
    assert without.count(NOT_DECIDED.encode()) > first[page].count(NOT_DECIDED.encode())
    assert b"<dt>torch</dt>" in first[page] and b"<dt>torch</dt>" not in without


def test_cells_added_in_a_fresh_clone_leave_the_others_records_as_they_were(run_job, tmp_path):
    run_job("cells=[sd:2]")
    path = tmp_path / "results" / "default" / files.RECORDS
    before = parquet.read(path)
    shutil.rmtree(tmp_path / "results" / files.RUNS)
    run_job("cells=[sd:3]", "seed=1")
    after = parquet.read(path)
    assert len(before.run_ids) == 2 and len(after.run_ids) == 4
    for run_id in before.run_ids:
        assert after.generations(run_id) == before.generations(run_id)
        assert after.origins[run_id] == before.origins[run_id]


def test_the_documented_lines_read_the_records_and_give_the_tables_rates(
    run_job, tmp_path, monkeypatch
):
    run_job("cells=[sd:2]", "name=mine")
    readme = files.package_folder("results") / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    found = {"pandas": pandas}
    exec(code.replace("NAME", "mine"), found)
    rates = pandas.read_csv("results/mine/results.csv").set_index("run_id").token_rate
    assert found["rates"].to_dict() == pytest.approx(rates.to_dict())
    assert len(rates) == 2
