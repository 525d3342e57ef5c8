"""Every number of the results file has one line, and the file's order is that of the lines."""

import ast
import csv
import subprocess
import sys
from pathlib import Path

import pytest

from spec_bench.vocabulary import columns
from spec_bench.vocabulary.columns import COLUMNS, Column

PACKAGE = Path(columns.__file__).resolve().parent
FILES = sorted(PACKAGE.rglob("*.py"))
LISTS = {  # what one file is about, with how many lists it has
    "report/page/headline.py": 1,  # by what the fastest is told, the best first
    "report/page/results_table.py": 1,  # where the best cell is shaded
    "sinks/csv.py": 2,  # what of a screened cell is written
}
_PLAIN = (ast.Constant, ast.Tuple, ast.List)
RESULTS = Path(__file__).resolve().parents[1] / "results"


def test_every_name_of_the_committed_results_has_a_line():
    files = sorted([*RESULTS.rglob("results.csv"), *RESULTS.rglob("screening.csv")])
    assert files
    for path in files:
        with path.open(newline="", encoding="utf-8") as stream:
            names = next(csv.reader(stream))
        assert not set(names) - set(columns.header()), path


def test_every_number_says_what_it_is_and_no_name_stands_twice():
    names = [name for each in COLUMNS for name in each.names]
    assert len(names) == len(set(names))
    for each in COLUMNS:
        assert each.title, each.name
        assert each.definition, each.name
        assert not each.interval or each.holds == "number", each.name


def test_ends_of_an_interval_follow_their_number():
    assert columns.ordered(["mbsu_high", "other", "speedup", "mbsu", "mbsu_low", "pair"]) == [
        *("pair", "mbsu", "mbsu_low", "mbsu_high", "speedup", "other")
    ]
    assert columns.header()["mbsu_low"] == "lower end of the 95% interval of mbsu (over prompts)"


def test_a_metric_modules_score_is_known_by_its_interval():
    names = ["meteor", "meteor_low", "meteor_high", "spec", "bleu", "someones_note"]
    assert [each.name for each in columns.columns_in(names)] == ["spec", "bleu", "meteor"]
    assert columns.scores_in(names) == ["bleu", "meteor"]


def test_an_unknown_column_is_named_with_the_choices():
    with pytest.raises(ValueError, match="'blue'"):
        columns.column("blue")


def test_a_column_of_another_package_comes_last_and_takes_no_name(monkeypatch):
    monkeypatch.setattr(columns, "COLUMNS", list(COLUMNS))
    mine = columns.register(Column("waste", "waste", "rejected nodes", "efficiency"))
    assert columns.register(mine) is mine
    assert columns.COLUMNS[-1] is columns.column("waste")
    with pytest.raises(ValueError, match="mbsu_low"):
        columns.register(Column("mbsu_low", "low", "the lower end", "efficiency"))


def test_the_page_about_results_is_the_one_that_the_columns_give():
    """Otherwise: python -m spec_bench.vocabulary.columns > results/README.md."""
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == columns.markdown()


def listed(source):
    """Literals of at least three measured columns: tuples, lists, sets, tables of constants."""
    measured = {
        name
        for each in COLUMNS
        if each.kind not in ("identity", "setting", "state")
        for name in each.names
    }
    found = []
    for node in ast.walk(ast.parse(source)):
        members = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            members = [*node.elts]
        elif isinstance(node, ast.Dict) and all(isinstance(v, _PLAIN) for v in node.values):
            members = node.keys
        words = [each.value for each in members if isinstance(each, ast.Constant)]
        names = [str(word) for word in words if word in measured]
        if len(set(names)) >= 3:
            found.append(names)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_file_lists_columns(path):
    found = listed(path.read_text(encoding="utf-8"))
    allowed = LISTS.get(str(path.relative_to(PACKAGE)), 0)
    assert len(found) <= allowed, found


def test_a_list_of_columns_is_found():
    assert listed('X = {"mbsu": "MBSU", "speedup": "x", "bleu": "BLEU"}')
    assert listed('f(["mbsu", *("mbsu_low", "mbsu_high", "f1")])')
    assert not listed('row = {"mbsu": a, "speedup": b, "bleu": c}')


def test_the_ground_floor_imports_neither_torch_nor_pandas():
    names = ("vocabulary.columns", "vocabulary.names", "system.files", "records.types")
    floor = ", ".join(f"spec_bench.{name}" for name in names)
    asked = "spec_bench.vocabulary.names.title('eagle3_sd')"
    heavy = "{'torch', 'pandas', 'numpy'}"
    code = f"import sys, {floor}; {asked}; assert not {heavy} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
