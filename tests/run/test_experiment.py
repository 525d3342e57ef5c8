"""The CSV of an experiment whose jobs end at the same moment, or are killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spec_bench.files import read_csv
from spec_bench.records import CellResult
from spec_bench.run import store
from spec_bench.run.store import CellStore, Experiment, JobNote
from spec_bench.sinks.csv import merge_csv
from tests import warm
from tests.cells import result


def end(results: Path, number: int, *run_ids: str, status: str = "complete") -> None:
    """What a job does at its end."""
    for run_id in run_ids:
        made = replace(result(run_id, {"mbsu": number}), status=status)  # type: ignore[arg-type]
        store = CellStore(results, run_id)
        store.folder.mkdir(parents=True, exist_ok=True)
        store.finish(made, "job")
    Experiment(results, "name").add(JobNote(number, "", run_ids))


def names(results: Path) -> list[str]:
    return [row["run_id"] for row in read_csv(results / "name" / "results.csv")]


def many(results: Path, worker: int) -> None:
    for number in range(worker, 24, 4):
        end(results, number, f"cell{number:02}")


def test_jobs_of_four_processes_that_end_together_lose_no_row(tmp_path: Path) -> None:
    workers = [warm.process(many, tmp_path, worker) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert names(tmp_path) == [f"cell{number:02}" for number in range(24)]


def test_a_job_that_ends_while_another_rebuilds_is_seen_by_the_one_that_renames_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one has read the notes; a faster job ends; the slower one then renames."""
    late = [True]

    def slow(path: Path, results: list[CellResult], order: list[str]) -> None:
        if late.pop() if late else False:
            end(tmp_path, 1, "fast")
        merge_csv(path, results, order)

    monkeypatch.setattr(store, "merge_csv", slow)
    end(tmp_path, 0, "slow")
    assert names(tmp_path) == ["slow", "fast"]


def test_rows_stand_in_the_order_of_the_sweep_whoever_ends_first(tmp_path: Path) -> None:
    end(tmp_path, 2, "c")
    end(tmp_path, 0, "a", "b")
    end(tmp_path, 1, "a", "d")
    assert names(tmp_path) == ["a", "b", "d", "c"]


def test_a_job_killed_before_its_rebuild_is_in_the_csv_after_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "rebuild", lambda self: None)
        end(tmp_path, 0, "a")
    assert names(tmp_path) == []
    end(tmp_path, 1, "b")
    assert names(tmp_path) == ["a", "b"]


def test_rows_that_no_job_noted_stay_first(tmp_path: Path) -> None:
    merge_csv(tmp_path / "name" / "results.csv", [result("old", {"mbsu": 2.0})])
    end(tmp_path, 0, "a")
    end(tmp_path, 0, "a")
    assert names(tmp_path) == ["old", "a"]


def test_a_result_that_was_made_good_replaces_its_row(tmp_path: Path) -> None:
    end(tmp_path, 0, "a", status="partial")
    end(tmp_path, 0, "a")
    rows = read_csv(tmp_path / "name" / "results.csv")
    assert [(row["run_id"], row["status"]) for row in rows] == [("a", "complete")]
