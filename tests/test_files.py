"""A file is there as a whole or not at all; a run's files have one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spec_bench import files

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for folder in ("spec_bench", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "files.py" or path.parent.name != "spec_bench"
)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "new" / "note.json"
    files.write_json(path, {"a": 1})

    def broken() -> None:
        with files.replacing(path) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert list(path.parent.iterdir()) == [path]


def test_a_csv_comes_back_as_it_was_written(tmp_path: Path) -> None:
    rows = [{"a": "x, y", "b": 'a "word"\nand a line'}, {"b": "é"}]
    files.write_csv(tmp_path / "rows.csv", rows, ["a", "b"])
    assert files.read_csv(tmp_path / "rows.csv") == [rows[0], {"a": "", "b": "é"}]
    assert files.read_csv(tmp_path / "none.csv") == []
    with pytest.raises(ValueError, match="'c'"):
        files.write_csv(tmp_path / "rows.csv", [{"c": 1}], ["a", "b"])


def test_tables_are_found_one_and_two_levels_down_and_never_among_the_runs(tmp_path: Path) -> None:
    wanted = [files.results_file(tmp_path, "a"), files.results_file(tmp_path / "group", "b")]
    for path in (*wanted, files.run_folder(tmp_path, "0123") / files.RESULTS):
        files.write_text(path, "pair\n")
    assert files.results_files(tmp_path) == wanted
    assert files.run_folder(files.results_of(wanted[0]), "0123").is_dir()


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert files.digest({"a": 1, "b": [2, None]}) == files.digest({"b": [2, None], "a": 1})
    assert files.digest({"a": 1}) == "015abd7f5cc5"


def test_a_folder_that_is_not_there_is_named() -> None:
    assert (files.package_folder("experiments") / "rsd").is_dir()
    with pytest.raises(ValueError, match="'nothing'"):
        files.package_folder("nothing")


FORBIDDEN = re.compile(
    r"os\.replace\(|NamedTemporaryFile|\.tmp\"|csv\.(DictWriter|writer)\(|\"runs\"|\"results\.csv\""
    r"|\"(provenance|result)\.json\"|\"generations\.jsonl\"|\"trace\.txt\""
)
ELSEWHERE = {
    "spec_bench/train/checkpoint.py": 1,  # appends lines to a training's log
    "spec_bench/report/tables/render.py": 1,  # a table as CSV text
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_else_writes_atomically_or_knows_where_a_runs_files_are(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if FORBIDDEN.search(line)]
    assert len(found) <= ELSEWHERE.get(str(path.relative_to(ROOT)), 0), found
