"""A file is there as a whole or not at all, and locked for others; a run's files have one place."""

import csv
import errno
import fcntl
import logging
import os
import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from spec_bench.system import files
from tests.said import naming

ROOT = Path(__file__).resolve().parents[2]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "new" / "note.json"
    files.write_redacted_json(path, {"a": 1})

    def broken():
        with files.atomic_replace(path) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_writer_left_the_next_one_removes_and_nothing_of_one_at_work(tmp_path):
    path = tmp_path / "note[1].json"
    left, others = (tmp_path / f".{name}.12.tmp" for name in (path.name, "note1.json"))
    for each in (left, others):
        each.write_text("half")
    with files.atomic_replace(path) as partial:
        assert not left.exists() and others.exists()
        files.write_redacted_json(path, {"a": 1})
        assert partial.exists()
        partial.write_text("whole")
    assert path.read_text() == "whole" and {*tmp_path.iterdir()} == {path, others}


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EXDEV, errno.ENOSPC])
def test_a_refusal_to_write_or_rename_is_a_line_that_names_the_file(number, tmp_path, monkeypatch):
    path = tmp_path / "here" / "note.json"

    def refuse(one, other):
        raise OSError(number, "no", str(one), None, str(other))

    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(OSError, match="note") as refused:
        files.write_redacted_json(path, {"a": 1})
    assert (
        files.explain_write_error(refused.value) == f"cannot write '{path}': {os.strerror(number)}"
    )
    with pytest.raises(FileNotFoundError) as missing, files.atomic_replace(path):
        (tmp_path / "no such input").read_bytes()
    assert files.explain_write_error(missing.value) is None


TEXTS = ["=1+1", "'=1", "''+x", "-2+3", "@SUM(A1)", "\t=1", "-", "-1.5", "+3e-05", "'", "it's", ""]


def test_a_csv_comes_back_as_it_was_written_and_no_cell_is_a_formula(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [{"a": "x, y", "b": 'a "word"\nand a line'}, {"a": "", "b": "é"}]
    rows += [{"a": text, "b": "1"} for text in TEXTS]
    files.write_csv(path, [rows[0], {"b": "é"}, *rows[2:]], ["a", "b"])
    assert files.read_csv(path) == rows
    with path.open(newline="") as stream:
        raw = [cells[0] for cells in csv.reader(stream)][3:]
    assert all(not cell.startswith(("=", "@", "\t")) for cell in raw)
    assert [cell for cell in raw if cell[:1] in "+-"] == ["-", "-1.5", "+3e-05", ""]
    assert files.read_csv(tmp_path / "none.csv") == []
    with pytest.raises(ValueError, match="'c'"):
        files.write_csv(path, [{"c": 1}], ["a", "b"])


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a;run_id\n1;2\n", 1, "';'"),
        ("a,b\n1,2\n", 1, "'run_id'"),
        ("a,run_id\n1,2\n1,2,3\n", 3, "3 cells"),
        ("a,run_id\n1\n", 2, "1 cells"),
        ("a,run_id\n1,2\n<<<<<<< ours\n1,2\n=======\n", 3, "merge mark"),
        ("<<<<<<< ours\na,run_id\n", 1, "merge mark"),
        ("a,run_id,a\n1,2,3\n", 1, "two columns 'a'"),
        ('a,run_id\n"1,2\n', 2, "1 cells"),
        ("a,run_id\n1,\udcff\n", 2, "UTF-8"),
    ],
)
def test_what_is_no_csv_is_named_with_its_line(tmp_path, text, line, why):
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=naming(path, f"line {line}", why)):
        files.read_csv(path, ["run_id"])


def test_a_folder_that_takes_no_file_or_is_not_there_is_named(tmp_path):
    files.require_writable(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="/proc/none"):
        files.require_writable(Path("/proc/none"))
    assert (files.get_data_folder("experiments") / "rsd").is_dir()
    with pytest.raises(ValueError, match="'nothing'"):
        files.get_data_folder("nothing")


def test_tables_are_found_one_and_two_levels_down_and_never_among_the_runs(tmp_path):
    wanted = [
        files.get_results_file(tmp_path, "a"),
        files.get_results_file(tmp_path / "group", "b"),
    ]
    for path in (*wanted, files.get_run_folder(tmp_path, "0123") / files.RESULTS):
        files.write_text(path, "pair\n")
    assert files.list_results_files(tmp_path) == wanted
    assert files.get_run_folder(files.get_results_folder(wanted[0]), "0123").is_dir()


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert files.hash_json({"a": 1, "b": [2, None]}) == files.hash_json({"b": [2, None], "a": 1})
    assert files.hash_json({"a": 1}) == "015abd7f5cc5"


def test_a_locked_file_is_locked_for_others_until_it_is_closed(tmp_path):
    path = tmp_path / "lock"
    with path.open("w") as other:
        with path.open("w") as first:
            assert files.lock_file(first, may_wait=True)
            assert not files.lock_file(other, may_wait=False)
        assert files.lock_file(other, may_wait=False)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_locks_is_one_line_and_the_work_goes_on_and_other_errors_are_errors(
    number, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, "no locks here")))
    monkeypatch.setattr(files, "_lock_warnings", [])
    with (tmp_path / "lock").open("w") as file, caplog.at_level(logging.WARNING):
        if number == errno.EIO:
            with pytest.raises(OSError, match="no locks here"):
                files.lock_file(file, may_wait=True)
            return
        assert files.lock_file(file, may_wait=False)
        assert files.lock_file(file, may_wait=True)
    (line,) = caplog.messages
    assert "has no locks (no locks here)" in line


FORBIDDEN = re.compile(
    r"os\.replace\(|TemporaryFile|\.tmp\"|csv\.(DictWriter|writer)\(|\"runs\"|\"results\.csv\""
    r"|\"(provenance|result)\.json\"|\"generations\.jsonl\"|\"trace\.txt\""
)
ELSEWHERE = {
    "spec_bench/system/files.py": 99,  # which does
    "spec_bench/train/loop.py": 1,  # appends lines to a training's log
    "spec_bench/report/tables/render.py": 2,  # tables as CSV text
}


def test_nothing_else_writes_atomically_or_knows_where_a_runs_files_are():
    for path in (*ROOT.glob("spec_bench/**/*.py"), *ROOT.glob("scripts/**/*.py")):
        lines, name = path.read_text("utf-8").splitlines(), str(path.relative_to(ROOT))
        found = [line for line in lines if FORBIDDEN.search(line)]
        assert len(found) <= ELSEWHERE.get(name, 0), (name, found)


def test_a_printed_command_is_one_that_a_shell_takes():
    told = files.format_own_command("page", "größe 1", results="a b")
    assert shlex.split(told) == ["spec-bench", "page", "größe 1", "--results", "a b"]
    assert files.format_own_command("page", "x", results=Path("results")) == "spec-bench page x"
