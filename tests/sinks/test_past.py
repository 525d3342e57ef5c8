"""Rows of a past state make room for those of the present one, and for no others."""

import pytest

from spec_bench.records.types import CellResult
from spec_bench.sinks.rows import STATE, merge_csv, row_of, superseded, write_csv
from spec_bench.system.files import read_csv
from tests.cells import result

NOW = {
    "target_revision": "t1",
    "draft_revision": ("d1",),
    "tree_revision": "1",
    "data_revision": "c1",
    "prompts_digest": "p1",
    "engine": 2,
}
OTHER = {**dict.fromkeys(STATE, "past"), "draft_revision": ("past",), "engine": 1}
CHOSEN = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 1,
    "batch_size": 8,
    "dtype": "float16",
    "compile": "dynamo",
    "threads": 2,
    "device": "NVIDIA H200",
    "data_file": "other.jsonl",
    "tree_attention": False,
    "spec": "4",
    "pair": "another",
}


def cell(run_id, prompts=20, **more):
    return result(run_id, {"prompts": prompts}, **{**NOW, **more})


def past(*cells, ended=None):
    return superseded([row_of(each) for each in cells], ended or {"old": 1.0, "new": 2.0})


@pytest.mark.parametrize("column", STATE)
def test_a_row_of_another_state_is_superseded_by_the_newer_one(column):
    assert past(cell("old", **{column: OTHER[column]}), cell("new")) == {"old"}


@pytest.mark.parametrize("column", CHOSEN)
def test_a_setting_that_a_user_varies_supersedes_nothing(column):
    assert past(cell("old", **{**OTHER, column: CHOSEN[column]}), cell("new")) == set()


def test_a_row_of_the_same_state_stays():
    """Settings without a column differ: the run ids do, the labels and the state do not."""
    assert past(cell("old"), cell("new")) == set()


def test_more_prompts_are_another_question():
    assert past(cell("old", 5, prompts_digest="p0"), cell("new")) == set()
    assert past(cell("old", None, prompts_digest="p0"), cell("new")) == {"old"}


def test_a_failed_row_takes_no_place():
    failed = CellResult("new", cell("new").facts, "failed")
    assert past(cell("old", engine=1), failed) == set()


def test_the_job_that_ended_last_has_the_present_state():
    """Whoever goes back to the weights of before has these for the present ones."""
    both = cell("old", target_revision="t0"), cell("new")
    assert past(*both, ended={"old": 3.0, "new": 2.0}) == {"new"}
    assert past(*both, ended={"new": 2.0}) == {"old"}
    assert past(*both, ended={"old": 2.0, "new": 2.0}) == set()


def test_a_row_from_before_engines_had_numbers_is_superseded():
    new = row_of(cell("new", device="cpu", dtype="float32", data_source="embedded"))
    old = {name: new[name] for name in ("pair", "target", "draft", "task", "decoder", "spec")}
    old |= {name: new[name] for name in ("temperature", "top_k", "top_p", "seed", "batch_size")}
    old |= {name: new[name] for name in ("tree_attention", "batching", "max_new_tokens")}
    assert superseded([{**old, "run_id": "old"}, new], {"new": 1.0}) == {"old"}
    assert superseded([{**old, "run_id": "old", "seed": 1}, new], {"new": 1.0}) == set()


def test_rows_of_a_past_state_move_to_the_archive_and_come_back_with_their_state(tmp_path):
    table, archive = tmp_path / "results.csv", tmp_path / "archive.csv"
    first, second = cell("old", target_revision="t0"), cell("new")

    def names(path):
        return [row["run_id"] for row in read_csv(path)]

    merge_csv(table, [first], ["old"], {"old": 1.0})
    before = read_csv(table)
    assert not archive.exists()
    for _ in range(2):
        merge_csv(table, [first, second], ["old", "new"], {"old": 1.0, "new": 2.0})
        assert (names(table), names(archive)) == (["new"], ["old"])
    assert read_csv(archive) == before
    merge_csv(table, [first, second], ["old", "new"], {"old": 3.0, "new": 2.0})
    assert (names(table), names(archive)) == (["old"], ["new"])


def test_an_archived_row_is_never_lost(tmp_path):
    """Its cell may be gone from the runs."""
    table, archive = tmp_path / "results.csv", tmp_path / "archive.csv"
    write_csv(archive, [row_of(cell("older", engine=0))])
    write_csv(table, [row_of(cell("old", engine=1))])
    merge_csv(table, [cell("new")], ["new"], {"new": 1.0})
    assert [row["run_id"] for row in read_csv(archive)] == ["older", "old"]
    assert [row["run_id"] for row in read_csv(table)] == ["new"]
