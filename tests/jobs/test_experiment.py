"""An experiment's table and records: jobs that end together or are killed; what is committed."""

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from spec_bench.jobs.store import experiment
from spec_bench.jobs.store.experiment import Experiment, JobRecord, read_job_record
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.watch import RunningJob
from spec_bench.records import cell_folder, checksums, parquet
from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.claims.verdict import NOT_DECIDED
from spec_bench.report.data.rows import read_results_file
from spec_bench.sinks.rows import merge_results_csv, result_to_row
from spec_bench.system import files
from tests import warm
from tests.cells import result
from tests.commands import report
from tests.jobs.tiny import main
from tests.said import naming


def end(results, number, *run_ids, wait_s=60, **changed):
    for run_id in run_ids:
        store = CellStore(results, run_id)
        store.folder.mkdir(parents=True, exist_ok=True)
        store.append_generations(
            [Generation(f"{number}", (1, 2), "stop", (StepRecord(2, 2, 1, 2),), 0.1, 0.2, 0.0, 0.1)]
        )
        store.write_result(replace(result(run_id, {"mbsu": number}), **changed), "job")
    made_of = Experiment(results, "name")
    made_of.write_job_record(JobRecord(number, run_ids))
    made_of.rebuild_tables(wait_s=wait_s)


def names(results, file="results.csv"):
    return [row["run_id"] for row in files.read_csv(results / "name" / file)]


def recorded(results):
    kept = parquet.read_records(results / "name" / "records.parquet")
    return [
        (each, [line.prompt_id for line in kept.get_generations(each)]) for each in kept.run_ids
    ]


def many(results, worker):
    for number in range(worker, 24, 4):
        end(results, number, f"cell{number:02}")


def test_jobs_of_four_processes_that_end_together_lose_no_row(tmp_path):
    workers = [warm.process(many, tmp_path, worker) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert names(tmp_path) == [f"cell{number:02}" for number in range(24)]
    assert recorded(tmp_path) == [(f"cell{number:02}", [f"{number}"]) for number in range(24)]


def test_a_job_that_ends_while_another_rebuilds_is_seen_by_the_one_that_renames_last(
    tmp_path, monkeypatch
):
    late = [True]

    def slow(path, results, *more):
        if late.pop() if late else False:
            end(tmp_path, 1, "fast", wait_s=0)
        return merge_results_csv(path, results, *more)

    monkeypatch.setattr(experiment, "merge_results_csv", slow)
    end(tmp_path, 0, "slow")
    assert names(tmp_path) == ["slow", "fast"]
    assert recorded(tmp_path) == [("slow", ["0"]), ("fast", ["1"])]


def test_rows_stand_in_the_order_of_the_sweep_behind_those_that_no_job_noted(tmp_path):
    merge_results_csv(
        tmp_path / "name" / "results.csv", [result_to_row(result("old", {"mbsu": 2.0}))]
    )
    end(tmp_path, 2, "f")  # its note's name comes before that of "a", "d"
    for _ in range(2):
        end(tmp_path, 0, "a", "b")
    end(tmp_path, 1, "a", "d")
    assert names(tmp_path) == ["old", "a", "b", "d", "f"]


def test_a_job_killed_before_its_rebuild_is_in_the_csv_after_the_next_one(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "rebuild_tables", lambda self, wait_s: None)
        end(tmp_path, 0, "a")
    assert names(tmp_path) == []
    end(tmp_path, 1, "b")
    assert names(tmp_path) == ["a", "b"]


def test_jobs_of_one_number_stand_by_their_labels_whichever_ended_first(tmp_path):
    for run_id, task in (("c", "xsum"), ("a", "wmt"), ("b", "dolly")):
        end(tmp_path, 0, run_id, facts=replace(result(run_id, {}).facts, task=task))
    assert names(tmp_path) == ["b", "a", "c"]


def test_a_note_of_an_earlier_version_which_had_labels_is_read(tmp_path):
    end(tmp_path, 0, "a")
    (path,) = files.get_jobs_folder(tmp_path, "name").glob("*.json")
    note = checksums.read_verified_json(path)
    files.write_redacted_json(path, checksums.redact_and_add_checksum({**note, "place": "labels"}))
    assert read_job_record(path).cells == ("a",)


def test_a_cell_keeps_the_stage_of_the_last_job_that_named_one(tmp_path):
    for number, stage in enumerate(("screen", "", "confirm", "")):
        Experiment(tmp_path, "name").write_job_record(JobRecord(number, ("a", f"{number}"), stage))
    (tmp_path / "runs").mkdir(exist_ok=True)
    order = Experiment(tmp_path, "name")._read_cells_of_notes(set_bad_aside=False).stages
    assert order == {"a": "confirm", "0": "screen", "1": "", "2": "confirm", "3": ""}


def test_a_result_that_was_made_good_replaces_its_row(tmp_path):
    for status in ("partial", "complete"):
        end(tmp_path, 0, "a", status=status)
    rows = files.read_csv(tmp_path / "name" / "results.csv")
    assert [(row["run_id"], row["status"]) for row in rows] == [("a", "complete")]


def test_a_jobs_end_reads_no_generations_but_its_own(tmp_path, monkeypatch):
    for number in range(3):
        end(tmp_path, number, f"cell{number}")
    read, lines = [], cell_folder.read_generation_lines
    monkeypatch.setattr(
        cell_folder,
        "read_generation_lines",
        lambda p, **given: read.append(p.parent.name) or lines(p, **given),
    )
    end(tmp_path, 3, "cell3")
    assert read == ["cell3"]
    assert [run_id for run_id, _ in recorded(tmp_path)] == [f"cell{number}" for number in range(4)]


def test_a_screened_row_says_that_it_was_disturbed_and_nothing_else(tmp_path):
    reasons = {
        "speedup": "disturbed: threads waited for a core 72% of the time",
        "intervals": "fewer than 5 prompts",
    }
    rows = []
    for name, columns in (("a", reasons), ("b", ["intervals"])):
        row = result_to_row(result(name)) | {"stage": "screen"}
        rows.append(row | {"reason": "; ".join(f"{each}: {reasons[each]}" for each in columns)})
    merge_results_csv(tmp_path / "results.csv", rows)
    screened = pd.read_csv(tmp_path / "screening.csv", dtype=str, keep_default_na=False)
    assert [*screened.reason] == [f"speedup: {reasons['speedup']}", ""]


BOTH = [("a", ["0"]), ("b", ["1"])]


def damage_lines(folder):
    lines = CellStore(folder, "a").folder / "generations.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b'"tokens":[1', b'"tokens":[3'))
    return lines


def test_records_that_cannot_be_read_are_set_aside_and_made_again(tmp_path, caplog):
    end(tmp_path, 0, "a")
    lines, kept = CellStore(tmp_path, "a").folder / "generations.jsonl", tmp_path / "name"
    torn = lines.read_bytes() + b'{"prompt_id": "1", "tok'
    lines.write_bytes(torn)
    (kept / "records.parquet").write_bytes(b"half")
    merge_results_csv(kept / "results.csv", [result_to_row(result("old"))])  # its run is not here
    end(tmp_path, 1, "b")
    assert recorded(tmp_path) == BOTH
    assert (kept / "records.parquet.bad-1").read_bytes() == b"half"
    assert [str(kept) in each.getMessage() for each in caplog.records] == [True]
    (kept / "records.parquet").unlink()
    (kept / "records.parquet").mkdir()
    end(tmp_path, 1, "b")
    assert recorded(tmp_path) == BOTH
    assert lines.read_bytes() == torn


def test_records_of_an_earlier_version_are_left_where_its_cells_cannot_be_read(tmp_path, caplog):
    end(tmp_path, 0, "a")
    records = tmp_path / "name" / "records.parquet"
    records.write_bytes(b"of another version")
    damage_lines(tmp_path)
    end(tmp_path, 1, "b")
    assert records.read_bytes() == b"of another version"
    assert any(f"{records} is left as it is" in message for message in caplog.messages)


def test_a_cell_that_is_damaged_keeps_the_records_that_it_had_until_it_is_measured_again(
    tmp_path, caplog
):
    end(tmp_path, 0, "a")
    lines = damage_lines(tmp_path)
    end(tmp_path, 1, "b")
    assert recorded(tmp_path) == BOTH
    assert [f"{lines}: line 1" in each.getMessage() for each in caplog.records] == [True]


def test_a_job_does_not_begin_where_it_would_lose_the_only_records_of_a_row(tmp_path):
    for number, run_id in enumerate("ab"):
        end(tmp_path, number, run_id)
    path, mine = tmp_path / "name" / "records.parquet", Experiment(tmp_path, "name")
    whole = path.read_bytes()
    for bad in (whole[:-9], whole.replace(b"sha256:", b"sha255:")):
        path.write_bytes(bad)
        mine.require_writable_tables()
    shutil.rmtree(CellStore(tmp_path, "b").folder)
    for bad in (whole[:-9], whole.replace(b"sha256:", b"sha255:")):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=naming(path)):
            mine.require_writable_tables()
    path.write_bytes(whole)
    mine.require_writable_tables()


def tables(results):
    return {path.name: path.read_bytes() for path in (results / "name").iterdir()}


def test_a_table_that_a_job_was_added_to_equals_one_made_from_nothing(tmp_path, monkeypatch):
    states = {"a": "w1", "b": "w1", "c": "w2", "d": "w2"}
    read, of_disk = [], CellStore.load_result
    monkeypatch.setattr(
        CellStore, "load_result", lambda s: read.append(s.folder.name) or of_disk(s)
    )
    for number, (run_id, state) in enumerate(states.items()):
        told = replace(result().facts, target_revision=state, seed=number % 2)
        end(tmp_path, number, run_id, facts=told, metrics={"prompts": 4, "mbsu": number / 3})
    made_of = Experiment(tmp_path, "name")
    made_of.write_job_record(JobRecord(4, ("a", "d"), "screen"))
    made_of.rebuild_tables()
    assert read == [*"abcd", "a", "d"]  # those whose stage is another now
    added, index = tables(tmp_path), files.get_jobs_folder(tmp_path, "name") / "index.jsonl"
    assert added.keys() >= {"archive.csv", "screening.csv", "results.csv", "records.parquet"}
    damaged = bytearray(index.read_bytes())
    damaged[-9] ^= 1
    for kept in (bytes(damaged), b"", b"\xff{", b"0 {}\n"):
        index.write_bytes(kept)
        with (tmp_path / "name" / "results.csv").open("ab") as stream:
            stream.write(b"\n")
        made_of.rebuild_tables()
        assert tables(tmp_path) == added
    assert read[6:] == [*"abcd" * 4]


def test_a_reader_sees_every_job_that_has_ended_and_writes_nothing(tmp_path, caplog):
    end(tmp_path, 0, "a")
    mine = Experiment(tmp_path, "name")
    for number, run_id in enumerate("bc", start=1):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Experiment, "rebuild_tables", lambda self, wait_s: None)
            end(tmp_path, number, run_id)
    before = tables(tmp_path)
    assert list(read_results_file(mine.csv).run_id) == ["a", "b", "c"]
    assert tables(tmp_path) == before and not caplog.records
    mine.rebuild_tables()
    assert list(read_results_file(mine.csv).run_id) == ["a", "b", "c"]
    assert [run_id for run_id, _ in recorded(tmp_path)] == ["a", "b", "c"]


def test_rows_of_other_weights_leave_the_table_and_come_back_with_them(tmp_path):
    for run_id, revision in (("one", "w1"), ("two", "w2"), ("one", "w1")):
        there = names(tmp_path)
        told = replace(result().facts, target_revision=revision)
        end(tmp_path, 0, run_id, facts=told, metrics={"prompts": 4})
        assert (names(tmp_path), names(tmp_path, "archive.csv")) == ([run_id], there)


def test_the_rows_that_a_job_made_last_stay_whatever_its_clock_said(tmp_path, monkeypatch):
    for run_id, now in (("ahead", 9e9), ("later", 2e9), ("last", 1e9), ("later", 0.0)):
        there = names(tmp_path)
        monkeypatch.setattr(files, "read_folder_clock_s", lambda folder, now=now: now)
        told = replace(result().facts, target_revision=run_id)
        end(tmp_path, 0, run_id, facts=told, metrics={"prompts": 4})
        assert (names(tmp_path), names(tmp_path, "archive.csv")[-1:]) == ([run_id], there)


def test_a_worker_leaves_a_table_to_the_process_that_is_at_it(tmp_path):
    mine = Experiment(tmp_path, "mine")
    mine.write_job_record(JobRecord(0, ("a",)))
    with (files.get_jobs_folder(tmp_path, "mine") / ".lock").open("w") as file:
        assert files.lock_file(file, may_wait=False)
        began = time.monotonic()
        assert not mine.rebuild_tables(wait_s=0)
        assert time.monotonic() - began < 1
        assert not mine.csv.stat().st_size  # by which readers find it
        assert not mine.rebuild_and_publish((), wait_s=0.2) and time.monotonic() - began < 2
        sinks = [SimpleNamespace(take=print)]
        waiting = threading.Thread(
            target=mine.rebuild_and_publish, args=(sinks,), kwargs={"wait_s": 0}
        )
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive(), "sinks take the whole table"
    waiting.join(20)
    assert mine.csv.stat().st_size


def test_tables_are_not_made_in_the_place_of_a_folder_that_is_gone(tmp_path):
    end(tmp_path / "here", 0, "a")
    job = RunningJob(tmp_path / "gone" / "runs" / "jobs" / "name" / "under_way" / "job.json")
    job.write_note(prompts=1)
    assert Experiment(tmp_path / "gone", "name").rebuild_tables()
    assert [each.name for each in tmp_path.iterdir()] == ["here"]


def test_a_rebuild_ends_though_jobs_go_on_ending(tmp_path, monkeypatch):
    mine, passes = Experiment(tmp_path, "mine"), []

    def another(*of):
        passes.append(of)
        mine.write_job_record(JobRecord(len(passes), (f"cell{len(passes)}",)))

    mine.write_job_record(JobRecord(0, ("cell0",)))
    monkeypatch.setattr(mine, "_write_records", another)
    mine.rebuild_tables()
    assert len(passes) == 2


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
    before = parquet.read_records(path)
    shutil.rmtree(tmp_path / "results" / files.RUNS)
    run_job("cells=[sd:3]", "seed=1")
    after = parquet.read_records(path)
    assert len(before.run_ids) == 2 and len(after.run_ids) == 4
    for run_id in before.run_ids:
        assert after.get_generations(run_id) == before.get_generations(run_id)
        assert after.origins[run_id] == before.origins[run_id]
