"""A paper is data: what its file may say, and how a paper of another package is found."""

import pandas as pd
import pytest

from spec_bench.report.claims import check_claims
from spec_bench.report.figures import draw, drawable
from spec_bench.report.papers.paper import load_paper, paper_names
from spec_bench.report.tables.printed import printed_sheet
from spec_bench.report.tables.render import markdown
from spec_bench.system.files import package_folder
from spec_bench.vocabulary.published import COLUMNS, FILE
from tests.report.rows import around, frame, row, write
from tests.report.shown import table
from tests.said import naming

PAPER = """
paper: "Mine: a paper"
arxiv: "0000.00000"
machine: one GPU
tables:
  - numbers: [1]
    recipe: NAME=first
    title: "{target} with {draft} on {task}"
    heads: {decoder: decoder, tree: spec}
    block: [task]
    columns:
      - {metric: block_efficiency, digits: 2}
"""
NUMBERS = (("ar", "-", "1.00"), ("sd", "3", "2.10"), ("rsd_s", "4x3", "2.50"))


def package(folder, paper, monkeypatch, text=PAPER):
    """An installed package of one paper, as pip leaves it; returns the paper's folder."""
    own = folder / f"package_of_{paper}" / "experiments" / paper
    own.mkdir(parents=True)
    (own / "paper.yaml").write_text(text.replace("NAME", paper), encoding="utf-8")
    (own / "first.yaml").write_text(f"name: {paper}-first\ncells: [sd:3, rsd_s:4x3]\n")
    numbers = pd.DataFrame(NUMBERS, columns=["decoder", "spec", "value"])
    same = {"table": 1, "target": "OPT-13B", "draft": "OPT-125M", "task": "xsum"}
    numbers = numbers.assign(**same, metric="block_efficiency").reindex(columns=COLUMNS)
    numbers.to_csv(own / FILE, index=False)
    info = folder / f"package_of_{paper}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {own.parts[-3]}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[spec_bench.configs]\n{paper} = package_of_{paper}\n")
    (own.parents[1] / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    return own


def test_a_table_of_another_packages_paper_is_filled_from_measured_rows(tmp_path, monkeypatch):
    package(tmp_path, "other_paper", monkeypatch)
    assert "other_paper" in paper_names()
    own = {("ar", "-"): (1.0, 0.0), ("sd", "3"): (2.0, 0.1), ("rsd_s", "4x3"): (2.4, 0.1)}
    cells = (row(*c, pair="opt_13b", block_efficiency=around(*tau)) for c, tau in own.items())
    results = write(tmp_path / "results", "other_paper-first", *cells)
    text = markdown(table("other_paper/1", results))
    assert text.startswith("### other_paper/1: OPT-13B with OPT-125M on XSum\n")
    assert "| RSD-S | 4x3 | **2.50** | **2.40** [2.30, 2.50] | -0.10 |" in text
    assert "| SD | 3 | 2.10 | 2.00 [1.90, 2.10] | -0.10 |" in text


WRONG = {
    "misspelt_key": ("digits: 2", "digts: 2", r"unknown setting columns\[0\]\.digts; did you mean"),
    "wrong_type": ("digits: 2", "digits: two", r"table 1: columns\[0\]\.digits .*, got 'two'"),
    "wrong_choice": ("block: [task]", "other_pair: above", r"table 1: other_pair .*'above'"),
    "wrong_source": ("tree: spec", "tree: spc", r"no labels come from 'spc'; .* decoder, spec"),
    "wrong_name": ("on {task}", "on {taks}", r"table 1: .*no \{taks\} in titles; .*task"),
    "no_heads": ("heads: {decoder: decoder, tree: spec}", "", r"table 1: heads is missing: .*"),
    "no_title": ('paper: "Mine: a paper"', "", "'paper' is missing"),
    "no_list": ("tables:", "tables: 3\nclaims:", "tables must be a list of mappings"),
    # What a paper of before is told to do.
    "old_claims": ("tables:", "claims: []\ntables:", r"claims\.py .*docs/extending\.md"),
    "old_figures": (
        "tables:",
        "figures:\n  - {number: 1, title: a, recipe: NAME=first, drawing: {x: a, y: b}}\ntables:",
        r"figures\.py .*docs/extending\.md",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_paper_cannot_say_is_a_line_with_file_and_key(name, tmp_path, monkeypatch):
    right, wrong, named = WRONG[name]
    own = package(tmp_path, name, monkeypatch, PAPER.replace(right, wrong))
    with pytest.raises(ValueError, match=rf"^{own / 'paper.yaml'}[^\n]*{named}[^\n]*$"):
        load_paper(name)


@pytest.mark.parametrize("metric", ["blok_efficiency", "mbsu"])
def test_a_column_without_printed_numbers_is_refused(metric, tmp_path, monkeypatch):
    paper = f"without_{metric}"
    package(tmp_path, paper, monkeypatch, PAPER.replace("block_efficiency", metric))
    with pytest.raises(ValueError, match=rf"{metric} is not in .*reference\.csv; there: block_eff"):
        printed_sheet(f"{paper}/1", None)


def test_two_papers_of_one_name_are_refused(tmp_path, monkeypatch):
    package(tmp_path, "rsd", monkeypatch)
    with pytest.raises(ValueError, match=naming("two papers", "rsd")):
        paper_names()


def test_the_readmes_example_is_a_paper_and_lists_the_references_columns(tmp_path, monkeypatch):
    readme = (package_folder("experiments") / "README.md").read_text(encoding="utf-8")
    example = readme.partition("```yaml\n")[2].partition("```")[0]
    own = package(tmp_path, "of_the_readme", monkeypatch, example.replace("mine=", "NAME="))
    figures, claims = (each.partition("```")[0] for each in readme.split("```python\n")[1:])
    (own / "figures.py").write_text(figures, encoding="utf-8")
    (own / "claims.py").write_text(claims.replace("mine-first", "of_the_readme-first"))
    paper = load_paper("of_the_readme")
    assert (len(paper.tables), len(paper.figures), len(paper.claims)) == (1, 1, 1)
    assert drawable("of_the_readme") == ("2",)
    assert ", ".join(f"`{name}`" for name in COLUMNS) in readme
    values = {"block_efficiency": (2.0, 1.9, 2.1), "draft_calls": 3.0}
    rows = frame(*(row(name, "3x3", pair="llama2_7b", **values) for name in ("sd", "rsd_s")))
    assert draw("of_the_readme", "2", rows, tmp_path, formats=["png"])
    (check,) = check_claims("of_the_readme", rows, tmp_path / "results.csv")
    assert check.claim == "rsd_s > sd in block efficiency"
    assert (check.statement, check.section) == ("“Trees are ahead of chains.”", "Section 5")
