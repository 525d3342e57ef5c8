"""What somebody else left in a run's folder is named, set aside and measured again, and no more."""

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from spec_bench.jobs.store.experiment import Experiment, JobRecord, compute_job_id
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.plan import read_cell_state
from spec_bench.records import cell_folder
from spec_bench.records.types import Generation, StepRecord
from spec_bench.system import files
from tests.cells import result
from tests.commands import verify
from tests.jobs.tiny import rows_of, untimed

SETTINGS = {"pair": {"name": "p"}, "seed": 0, "temperature": 1e-05}
STEPS = (StepRecord(3, 3, 2, 3), StepRecord(3, 3, 1, 2))
IDS = [f"{number}" for number in range(3)]


def cell(results, run_id):
    store = CellStore(results, run_id)
    store.folder.mkdir(parents=True)
    store.write_settings(SETTINGS, {"revision": run_id, "host": "h"})
    store.append_generations(
        Generation(each, (5, 6, 7, 8, 9), "length", STEPS, 0.1, 0.2, 0.05, 0.1) for each in IDS
    )
    scores = {"bleu": dict.fromkeys(IDS, 0.5)}
    store.write_result(result(run_id, {"mbsu": 1.5, "prompts": 3}), "job", scores)
    return store


def changed(**values):
    """JSON with other values at its top, its check as it was."""
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


def second(change):
    """Of three lines the second is changed."""

    def apply(data):
        first, line, last = data.splitlines(keepends=True)
        return first + change(line).rstrip(b"\n") + b"\n" + last

    return apply


ANY = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "NUL bytes": lambda data: b"\0" * len(data),
    "a NUL": lambda data: data[:20] + b"\0" + data[21:],
    "no UTF-8": lambda data: b"\xff\xfe" + data,
    "a list": lambda data: b"[1, 2]\n",
    "a number": lambda data: b"7\n",
    "nested": lambda data: b"[" * 100_000 + b"\n",
    "other keys": lambda data: b'{"a": 1}\n',
    "merge marks": lambda data: b"<<<<<<< ours\n" + data + b">>>>>>> theirs\n",
    "text": lambda data: b"disk quota exceeded\n",
}
LINE = {
    "another token": lambda data: data.replace(b"[5,6", b"[5,7"),
    "another second": changed(decode_s=0.3),
    "a key more": changed(more=1),
    "no check": lambda data: data.replace(b',"check"', b',"other"'),
}
CELL = {
    "a score": lambda data: data.replace(b"0.5", b"0.6", 1),
    "a number": lambda data: data.replace(b"1.5", b"2.5"),
    "a setting": lambda data: data.replace(b'"temperature": 1e-05', b'"temperature": 1'),
    "a start": lambda data: data.replace(b'"host": "h"', b'"host": "i"'),
    "a number less": changed(starts=[]),
    "no check": lambda data: data.replace(b'"check"', b'"other"'),
}


def cases(changes):
    return [pytest.param(change, id=name) for name, change in changes.items()]


@pytest.fixture
def store(tmp_path):
    return cell(tmp_path, "0123")


def damage(path, change):
    data = change(path.read_bytes())
    path.write_bytes(data)
    return data


def mended(store, caplog):
    """Opens a cell as a job does: the prompts it still has, and what was said."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        done = store.repair_and_load()[0]
    return list(done), [each.getMessage() for each in caplog.records]


def aside(path):
    return path.with_name(f"{path.name}.bad-1").read_bytes()


def test_a_good_cell_is_complete_and_nothing_is_said(store, caplog):
    before = {path: path.read_bytes() for path in store.folder.iterdir()}
    assert mended(store, caplog) == (IDS, [])
    assert store.is_complete()
    assert {path: path.read_bytes() for path in store.folder.iterdir()} == before


@pytest.mark.parametrize("change", cases({**ANY, **CELL}))
def test_a_bad_file_is_set_aside_and_the_generations_stay(store, caplog, change):
    path = store.folder / files.CELL
    bad = damage(path, change)
    assert store.load_result() is None and not store.is_complete()
    done, said = mended(store, caplog)
    assert (done, aside(path), path.exists()) == (IDS, bad, False)
    assert len(said) == 1 and str(path) in said[0] and "\n" not in said[0]
    assert said[0].endswith(f"it is now {files.CELL}.bad-1")
    assert mended(store, caplog) == (IDS, [])
    assert cell_folder.pack_valid_cell_folder(store.folder) is None


LINES = {name: change for name, change in ANY.items() if name not in ("empty", "merge marks")}


@pytest.mark.parametrize("change", cases({**LINES, **LINE}))
def test_a_bad_line_goes_and_the_others_stay(store, caplog, change):
    path = store.folder / files.GENERATIONS
    bad = damage(path, second(change))
    assert [each.prompt_id for each in cell_folder.read_generations_skipping_damaged(path)] == [
        "0",
        "2",
    ]
    done, said = mended(store, caplog)
    assert (done, aside(path)) == (["0", "2"], bad)
    assert "line 2" in said[0] and str(path) in said[0] and "\n" not in said[0]
    assert not store.is_complete(), "its numbers were of three"
    assert cell_folder.read_generation_lines(path).faults == ()


FILES = {**dict([*ANY.items()][:5]), "gone": None}


@pytest.mark.parametrize("change", cases(FILES))
def test_a_bad_file_of_lines_costs_the_lines_that_are_no_good(store, caplog, change):
    path = store.folder / files.GENERATIONS
    damage(path, change) if change else path.unlink()
    done, said = mended(store, caplog)
    assert set(done) < set(IDS) and not store.is_complete()
    assert any("cell.json" in each for each in said)
    steps = (StepRecord(0, 0, 0, 1),)
    store.append_generations(Generation(each, (5,), "stop", steps, 0, 0, 0, 0) for each in IDS[:1])
    assert "0" in store.load_first_repeat()


def test_a_bad_line_of_what_was_timed_again_goes_and_the_others_stay(store, caplog):
    store.append_generations(store.load_first_repeat().values(), "later")
    path = store.folder / "retimed-later.jsonl"
    damage(path, second(changed(decode_s=-1.0)))
    done, said = mended(store, caplog)
    assert (done, len(said), store.is_complete()) == (IDS, 1, True)
    assert [each.prompt_id for each in store.load_retimed()] == ["0", "2"]
    assert str(path) in said[0] and "line 2" in said[0]


def test_another_runs_file_is_noticed(tmp_path, caplog):
    other = cell(tmp_path, "4567")
    for name in (files.GENERATIONS, files.CELL):
        store = cell(tmp_path / name, "0123")
        shutil.copy(other.folder / name, store.folder / name)
        done, said = mended(store, caplog)
        assert (store.folder / f"{name}.bad-1").exists() and str(store.folder / name) in said[0]
        assert done == ([] if name == files.GENERATIONS else IDS)
        assert not store.is_complete()


def test_a_line_torn_by_a_kill_is_no_fault_and_a_longer_file_is_one_that_goes_on(store, caplog):
    path = store.folder / files.GENERATIONS
    whole = path.read_bytes()
    again = [replace(each, repeat=1) for each in store.load_first_repeat().values()]
    store.append_generations(again[:1])
    longer = path.read_bytes()
    path.write_bytes(longer + whole[:30])
    assert mended(store, caplog)[0] == IDS
    assert path.read_bytes() == longer and store.is_complete() and not store.is_complete(2)
    assert not list(store.folder.glob("generations.jsonl.bad*"))


def test_a_prompt_that_was_decoded_again_is_what_its_last_line_says(store):
    again = replace(store.load_first_repeat()[IDS[1]], decode_s=0.4)
    store.append_generations([again])
    for done in (store.load_first_repeat(), store.repair_and_load()[0]):
        assert list(done) == IDS and done[IDS[1]] == again


def test_a_plan_counts_what_each_repeat_lacks(store):
    assert read_cell_state(store, 3) == ("complete", 0)
    assert read_cell_state(store, 3, 2) == ("partial", 3)


def test_token_ids_may_change_until_there_are_answers_to_them(tmp_path):
    store = CellStore(tmp_path, "0123")
    assert store.lock()
    store.claim_for_models({"target": {"model.safetensors": "aa"}})
    store.record_or_refuse_token_ids("one")
    store.record_or_refuse_token_ids("two")
    store.append_generations([Generation("0", (5,), "length", STEPS[:1], 0.1, 0.2, 0.05, 0.1)])
    with pytest.raises(ValueError, match="two, now three"):
        store.record_or_refuse_token_ids("three")
    store.unlock()


def test_a_jobs_note_under_another_jobs_name_is_set_aside(tmp_path):
    mine = Experiment(tmp_path, "name")
    cell(tmp_path, "a")
    mine.write_job_record(JobRecord(0, ("a",)))
    (note,) = files.get_jobs_folder(tmp_path, "name").glob("*.json")
    other = note.rename(note.with_name("0123.json"))
    mine.rebuild_tables()
    assert not other.exists() and aside(other)


def test_a_token_id_past_the_vocabulary_is_noticed_once_that_is_known(store):
    assert list(store.drop_unknown_tokens_and_load(10)[0]) == IDS
    assert list(store.drop_unknown_tokens_and_load(9)[0]) == []


@pytest.mark.parametrize("kind", ["folder", "dangling link", "pipe"])
def test_what_is_no_file_is_set_aside_too(store, caplog, kind):
    path = store.folder / files.CELL
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    done, said = mended(store, caplog)
    assert (done, len(said), store.is_complete()) == (IDS, 1, False)


def test_a_folder_of_before_is_finished_from_its_answers(run_job, tmp_path):
    results = tmp_path / "results"
    before = run_job("cells=[sd:3]", "warmup=0", "prompts=2")
    expected = rows(results)
    for each in before:
        folder = files.get_run_folder(results, each.run_id)
        (folder / files.CELL).rename(folder / "result.json")
        lines = (folder / files.GENERATIONS).read_bytes()
    assert rows(results) == expected
    again = run_job("cells=[sd:3]", "warmup=0", "prompts=2")
    assert [each.status for each in again] == ["complete"] * 2
    assert (folder / files.GENERATIONS).read_bytes() == lines, "nothing was decoded"
    assert rows(results) == expected


@pytest.mark.parametrize(
    "change",
    cases(ANY | {"cells": changed(cells=["0123", "4567"]), "a number": changed(cells=7)})
    + cases({"number a text": changed(number="first")}),
)
def test_a_jobs_note_that_is_no_good_is_set_aside_and_its_rows_stay(tmp_path, caplog, change):
    mine = Experiment(tmp_path, "name")
    for number, run_id in enumerate(["a", "b"]):
        cell(tmp_path, run_id)
        mine.write_job_record(JobRecord(number, (run_id,)))
    mine.rebuild_tables()
    note = files.get_jobs_folder(tmp_path, "name") / f"{compute_job_id(['a'])}.json"
    bad = damage(note, change)
    mine.rebuild_tables()
    assert [row["run_id"] for row in rows_of(tmp_path, "name")] == ["a", "b"]
    assert aside(note) == bad
    assert [str(note) in each.getMessage() for each in caplog.records] == [True]


def verified(results, capsys):
    capsys.readouterr()  # of what ran before
    status, said = verify([str(results)]), capsys.readouterr()
    return status, (said.out + said.err).splitlines()


def test_no_flipped_bit_of_a_results_folder_is_verified(run_job, tmp_path, capsys):
    results, out = tmp_path / "results", tmp_path / "results" / "default" / "results.csv"
    run_job("cells=[sd:2]", "prompts=2", "warmup=0")
    run_job("cells=[sd:3]", "prompts=2", "warmup=0")
    assert verified(results, capsys) == (0, ["3 cells, 1 tables: as they were written"])
    (retimed,) = results.glob("runs/*/retimed-*.jsonl")
    timed = retimed.read_bytes()
    retimed.unlink()
    status, (line,) = verified(results, capsys)
    assert status == 2 and retimed.stem.removeprefix("retimed-") in line
    retimed.write_bytes(timed)
    mine, seeded = Experiment(results, "default"), Random(0)
    whole = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    sizes, taken = [8 * len(data) for data in whole.values()], []
    for path in seeded.choices([*whole], sizes, k=150):
        bit = seeded.randrange(8 * len(whole[path]))
        data = bytearray(whole[path])
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        status, said = verified(results, capsys)
        if status == 2:
            assert any(str(path.parent) in line for line in said)
        else:
            mine.rebuild_tables()
            named = files.get_run_folder(results, path.parent.name) / path.name == path
            taken += [(path, bit)] * (out.read_bytes() != whole[out] or named)
        for each, before in whole.items():
            each.write_bytes(before)
    assert taken == []


def test_what_is_missing_or_of_another_cell_is_a_line_that_names_the_file(
    run_job, tmp_path, capsys
):
    results, moved = tmp_path / "results", tmp_path / "moved"
    *_, cell = (row.run_id for row in run_job("cells=[sd:2]", "prompts=2", "warmup=0"))
    own = files.get_run_folder(results, cell)
    for name in (files.CELL, files.GENERATIONS):
        (own / name).rename(moved)
        status, (line, *_) = verified(results, capsys)
        assert status == 2 and cell in line
        moved.rename(own / name)
    table = results / "default" / "results.csv"
    text = table.read_text()
    (digits,) = [row["block_efficiency"] for row in files.read_csv(table) if row["run_id"] == cell]
    table.write_text(text.replace(digits, f"{digits}1"))
    for folder in (own, tmp_path / "none"):  # against its cell, and then against its records
        status, lines = verified(results, capsys)
        assert status == 2 and f"run {cell}: block_efficiency" in lines[-1]
        own.rename(folder) if folder != own else None
    assert verify([str(tmp_path / "nowhere")]) == 2
    assert "no NAME/results.csv in it" in capsys.readouterr().err


def test_records_and_table_are_of_the_same_prompts_and_verify_names_a_line_behind_them(
    tmp_path, capsys, caplog
):
    store, mine = cell(tmp_path, "0123"), Experiment(tmp_path, "name")
    mine.write_job_record(JobRecord(0, ("0123",)))
    mine.rebuild_tables()
    before = mine.records.read_bytes(), mine.csv.read_bytes()
    store.append_generations([Generation("more", (5,), "stop", STEPS[:1], 0.1, 0.2, 0.05, 0.1)])
    mine.rebuild_tables()
    assert (mine.records.read_bytes(), mine.csv.read_bytes()) == before
    assert any(
        str(store.folder / files.GENERATIONS) in line for line in verified(tmp_path, capsys)[1]
    )
    (store.folder / files.GENERATIONS).unlink()
    mine.rebuild_tables()
    assert (mine.records.read_bytes(), mine.csv.read_bytes()) == before
    assert str(store.folder / files.GENERATIONS) in caplog.text


def rows(results):
    return untimed(rows_of(results), "reason", "baseline")


@pytest.mark.parametrize("name", [files.GENERATIONS, files.CELL])
def test_a_job_over_damaged_runs_ends_with_the_rows_of_an_undisturbed_one(run_job, tmp_path, name):
    results = tmp_path / "results"
    before = run_job("cells=[sd:3]", "warmup=0")
    expected, damages = rows(results), (Path.unlink, lambda path: damage(path, ANY["half"]))
    for each, cell in zip(damages, before, strict=True):
        each(files.get_run_folder(results, cell.run_id) / name)
    again = run_job("cells=[sd:3]", "warmup=0")
    assert [each.status for each in again] == ["complete"] * 2
    assert rows(results) == expected


@pytest.mark.parametrize("name", [files.GENERATIONS, "retimed-1.jsonl"])
def test_a_link_to_nothing_in_place_of_generations_is_set_aside_and_the_cell_goes_on(
    tmp_path, caplog, name
):
    store = cell(tmp_path, "a")
    (done, *_) = store.load_first_repeat().values()
    path = store.folder / name
    path.unlink(missing_ok=True)
    path.symlink_to("gone/with/the/disk")
    store.repair_and_load()
    assert f"{path}: it is no file; it is now {name}.bad-1" in caplog.text
    store.append_generations([done])
    store.append_generations([done], "1")
    assert [
        each.prompt_id for each in (*store.load_first_repeat().values(), *store.load_retimed())
    ] == (["0", "0"] if name == files.GENERATIONS else ["0", "1", "2", "0"])


def test_an_edited_table_is_read_from_its_runs_stays_as_it_is_and_a_line_says_so(tmp_path, caplog):
    cell(tmp_path, "a")
    made = Experiment(tmp_path, "default")
    made.write_job_record(JobRecord(0, ("a",)))
    made.rebuild_tables()
    whole = made.csv.read_text("utf-8")
    made.csv.touch()
    with made.tables_or_completed_copies() as (_, table):
        assert table.read_text("utf-8") == whole and not caplog.text
    edited = whole.replace("1.5", "9.5")
    made.csv.write_text(edited, encoding="utf-8")
    with made.tables_or_completed_copies() as (_, table):
        assert table.read_text("utf-8") == whole != edited
    assert made.csv.read_text("utf-8") == edited
    assert f"{made.csv}: it is not" in caplog.text and "read from its runs" in caplog.text
