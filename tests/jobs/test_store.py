"""What somebody else left in a run's folder is named, set aside and measured again, and no more."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spec_bench.jobs.config.settings import job_id
from spec_bench.jobs.store.experiment import Experiment, JobNote
from spec_bench.jobs.store.store import CellStore
from spec_bench.records import cell_folder, parquet, seals
from spec_bench.records.types import Generation, StepRecord
from spec_bench.system import files
from spec_bench.vocabulary import columns
from tests.cells import result
from tests.jobs.tiny import rows_of

SETTINGS = {"pair": {"name": "p"}, "seed": 0, "temperature": 1e-05}
STEPS = (StepRecord(3, 3, 2, 3), StepRecord(3, 3, 1, 2))
IDS = [f"{number}" for number in range(3)]
Change = Callable[[bytes], bytes]


def cell(results, run_id):
    """A finished cell of three prompts."""
    store = CellStore(results, run_id)
    store.folder.mkdir(parents=True)
    store.describe(SETTINGS, {"revision": run_id, "host": "h"})
    store.append(
        Generation(each, (5, 6, 7, 8, 9), "length", STEPS, 0.1, 0.2, 0.05, 0.1) for each in IDS
    )
    store.keep_scores({"bleu": dict.fromkeys(IDS, 0.5)})
    store.finish(result(run_id, {"mbsu": 1.5, "prompts": 3}), "job")
    return store


def changed(**values):
    """JSON with other values at its top, its check as it was."""
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


def unchecked(change):
    """The same as an older version would have written it, without a check."""

    def apply(data):
        content = json.loads(change(data))
        return json.dumps({k: v for k, v in content.items() if k != "check"}).encode()

    return apply


def second(change):
    """Of three lines the second is changed."""

    def apply(data):
        first, line, last = data.splitlines(keepends=True)
        return first + change(line).rstrip(b"\n") + b"\n" + last

    return apply


def step(**values):
    return {"nodes": 3, "depth": 3, "accepted": 2, "delivered": 5, "widths": [], **values}


def pair(change):
    """Each with its name, and as an older version would have written it."""
    old = {f"{name}, unchecked": unchecked(each) for name, each in change.items()}
    return [pytest.param(each, id=name) for name, each in {**change, **old}.items()]


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
NAMED = [pytest.param(change, id=name) for name, change in ANY.items()]
RESULT = pair(
    {
        "other run": changed(run_id="another"),
        "no metrics": changed(metrics=None),
        "text as metrics": changed(metrics="x"),
        "text as a number": changed(metrics={"mbsu": "x", "prompts": 3}),
        "not finite": changed(metrics={"mbsu": float("nan"), "prompts": 3}),
        "infinite": changed(metrics={"mbsu": float("inf"), "prompts": 3}),
        "a list as a number": changed(metrics={"mbsu": [1], "prompts": 3}),
        "other status": changed(status="done"),
        "other law": changed(lossless="maybe"),
        "no labels": changed(labels={}),
        "labels of other types": changed(labels={**{"pair": 1, "target": 2, "draft": "d"}}),
        "a number as reason": changed(reason=3),
        "run id missing": lambda data: data.replace(b'"run_id"', b'"run"'),
    }
)
LINE = pair(
    {
        "token below 0": changed(tokens=[5, 6, 7, 8, -9]),
        "token past 32 bits": changed(tokens=[5, 6, 7, 8, 2**40]),
        "token a text": changed(tokens=[5, 6, 7, 8, "9"]),
        "token a fraction": changed(tokens=[5, 6, 7, 8, 9.5]),
        "token missing": changed(tokens=[5, 6, 7, 8]),
        "no steps": changed(steps=[], tokens=[]),
        "steps null": changed(steps=None),
        "accepted past depth": changed(steps=[step(accepted=4)]),
        "delivered past accepted": changed(steps=[step(delivered=5)]),
        "nodes below 0": changed(steps=[step(nodes=-1)]),
        "a step of other keys": changed(steps=[{"a": 1}]),
        "not finite": changed(decode_s=float("nan")),
        "infinite": changed(prefill_s=float("inf")),
        "below 0 s": changed(target_s=-0.1),
        "a text as seconds": changed(draft_s="0.1"),
        "true as seconds": changed(draft_s=True),
        "other finish": changed(finish="tired"),
        "repeat below 0": changed(repeat=-1),
        "prompt id a number": changed(prompt_id=1),
        "another key": changed(more=1),
        "likelihood not finite": changed(log_likelihood=float("-inf")),
        "clock a text": changed(clock_mhz="fast"),
    }
)
STARTS = [
    pytest.param(change, id=name)
    for name, change in {
        "no starts": lambda data: b"[]",
        "starts are texts": lambda data: b'["a"]',
        "a start is empty": lambda data: b"[{}]",
    }.items()
]


@pytest.fixture
def store(tmp_path):
    return cell(tmp_path, "0123")


def damage(path, change):
    """Changes a file; its new bytes."""
    data = change(path.read_bytes())
    path.write_bytes(data)
    return data


def mended(store, caplog):
    """Opens a cell as a job does: the prompts it still has, and what was said."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        done = store.mend(SETTINGS)[0]
    return list(done), [each.getMessage() for each in caplog.records]


def aside(path):
    return path.with_name(f"{path.name}.bad-1").read_bytes()


def test_a_good_cell_is_complete_and_nothing_is_said(store, caplog):
    before = {path: path.read_bytes() for path in store.folder.iterdir()}
    assert mended(store, caplog) == (IDS, [])
    assert store.complete()
    assert {path: path.read_bytes() for path in store.folder.iterdir()} == before


@pytest.mark.parametrize("change", [*NAMED, *RESULT])
def test_a_bad_result_is_set_aside_and_its_generations_stay(store, caplog, change):
    path = store.folder / files.RESULT
    bad = damage(path, change)
    assert store.result() is None and not store.complete()
    done, said = mended(store, caplog)
    assert (done, len(said), path.exists(), aside(path)) == (IDS, 1, False, bad)
    assert str(path) in said[0] and "result.json.bad-1" in said[0] and "\n" not in said[0]


@pytest.mark.parametrize(
    "change",
    [each for each in NAMED[2:] if each.id != "merge marks"]
    + [pytest.param(*each.values, id=each.id) for each in LINE],
)
def test_a_bad_line_goes_and_the_others_stay(store, caplog, change):
    path = store.folder / files.GENERATIONS
    bad = damage(path, second(change))
    assert [each.prompt_id for each in cell_folder.read_lines(path)] == ["0", "2"]
    done, said = mended(store, caplog)
    assert (done, aside(path)) == (["0", "2"], bad)
    assert "line 2" in said[0] and str(path) in said[0] and "\n" not in said[0]
    assert not store.complete(), "its numbers were of three"
    assert cell_folder.read(path).faults == ()


@pytest.mark.parametrize("change", NAMED[:5])
def test_a_bad_file_of_lines_costs_the_lines_that_are_no_good(store, caplog, change):
    damage(store.folder / files.GENERATIONS, change)
    done, _ = mended(store, caplog)
    assert set(done) < set(IDS) and not store.complete()
    store.append(Generation(each, (5,), "stop", (step_of(1),), 0, 0, 0, 0) for each in IDS[:1])
    assert "0" in store.load()


def step_of(delivered):
    return StepRecord(0, 0, 0, delivered)


def test_generations_that_are_gone_make_the_cell_incomplete(store, caplog):
    (store.folder / files.GENERATIONS).unlink()
    done, said = mended(store, caplog)
    assert (done, store.complete()) == ([], False)
    assert any("result.json" in each for each in said)


def test_a_bad_line_of_what_was_timed_again_goes_and_the_others_stay(store, caplog):
    store.append_retimed(store.load().values(), "later")
    path = files.retimed_file(store.folder, "later")
    damage(path, second(changed(decode_s=-1.0)))
    done, said = mended(store, caplog)
    assert (done, len(said), store.complete()) == (IDS, 1, True)
    assert [each.prompt_id for each in store.load_retimed()] == ["0", "2"]
    assert str(path) in said[0] and "line 2" in said[0]


def test_another_runs_file_is_noticed(tmp_path, caplog):
    other = cell(tmp_path, "4567")
    for name in (files.GENERATIONS, files.RESULT, files.RECORDS):
        store = cell(tmp_path / name, "0123")
        shutil.copy(other.folder / name, store.folder / name)
        done, said = mended(store, caplog)
        assert (store.folder / f"{name}.bad-1").exists() and str(store.folder / name) in said[0]
        assert done == ([] if name == files.GENERATIONS else IDS)
        assert store.complete() == (name == files.RECORDS)


def test_a_line_torn_by_a_kill_is_no_fault_and_a_longer_file_is_one_that_goes_on(store, caplog):
    path = store.folder / files.GENERATIONS
    whole = path.read_bytes()
    again = [replace(each, repeat=1) for each in store.load().values()]
    store.append(again[:1])
    longer = path.read_bytes()
    path.write_bytes(longer + whole[:30])
    assert mended(store, caplog)[0] == IDS
    assert path.read_bytes() == longer and store.complete() and not store.complete(2)
    assert not list(store.folder.glob("generations.jsonl.bad*"))


def test_a_token_id_past_the_vocabulary_is_noticed_once_that_is_known(store):
    assert list(store.mend_tokens(10)[0]) == IDS
    assert list(store.mend_tokens(9)[0]) == []


@pytest.mark.parametrize("change", [*NAMED, *STARTS])
def test_provenance_that_is_no_good_is_set_aside_and_the_records_keep_it(store, caplog, change):
    path = store.folder / files.PROVENANCE
    bad = damage(path, change)
    done, said = mended(store, caplog)
    assert (done, len(said), aside(path), store.complete()) == (IDS, 1, bad, True)
    assert store.records().origins["0123"] == {"revision": "0123", "host": "h"}


SCORED = {"bleu": dict.fromkeys(IDS, 0.5)}
SCORES = [
    pytest.param(changed(bleu=own), id=name)
    for name, own in {
        "a text": {"0": "x"},
        "another number": {**SCORED["bleu"], "1": 0.25},
        "not finite": {**SCORED["bleu"], "1": float("nan")},
        "past a float": {**SCORED["bleu"], "1": 10**400},
        "a prompt less": {"0": 0.5, "1": 0.5},
    }.items()
]
SCORES.append(pytest.param(lambda data: b"{}", id="nothing"))
SCORES.append(pytest.param(lambda data: data.replace(b"bleu", b"rouge2"), id="another score"))


@pytest.mark.parametrize("change", [*NAMED, *SCORES])
def test_scores_that_the_result_was_not_made_with_are_made_again(store, caplog, change):
    path = store.folder / files.SCORES
    bad = damage(path, change)
    done, said = mended(store, caplog)
    assert (done, len(said), aside(path), store.complete()) == (IDS, 2, bad, False)
    assert (store.folder / f"{files.RESULT}.bad-1").exists()
    assert mended(store, caplog) == (IDS, [])


@pytest.mark.parametrize("kind", ["gone", "folder", "dangling link", "pipe"])
def test_scores_in_whose_place_is_no_file_are_made_again_too(store, caplog, kind):
    path = store.folder / files.SCORES
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "gone":
        path.symlink_to("nowhere")
    done, said = mended(store, caplog)
    assert (done, len(said), store.complete()) == (IDS, 1 + (kind != "gone"), False)


def test_scores_that_an_earlier_version_did_not_seal_are_made_again(store, caplog):
    def before(data):
        content = json.loads(data)
        del content["check"], content["scores"]
        return json.dumps(seals.sealed(content)).encode()

    damage(store.folder / files.RESULT, before)
    done, said = mended(store, caplog)
    assert (done, len(said), store.complete()) == (IDS, 1, False)


@pytest.mark.parametrize("change", [*NAMED, pytest.param(lambda data: b"seed: 1\n", id="other")])
def test_a_config_that_says_something_else_is_written_again(store, caplog, change):
    path = store.folder / files.CONFIG
    whole = path.read_bytes()
    bad = damage(path, change)
    done, said = mended(store, caplog)
    assert (done, len(said), aside(path), store.complete()) == (IDS, 1, bad, True)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("change", NAMED)
def test_packed_records_that_are_no_good_are_packed_again(store, caplog, change):
    damage(store.folder / files.RECORDS, change)
    done, said = mended(store, caplog)
    assert (done, len(said), store.complete()) == (IDS, 1, True)
    again = store.records()
    assert again is not None and [each.prompt_id for each in again.generations("0123")] == IDS


def test_timings_that_a_kill_kept_out_of_the_packed_records_come_into_them(store, caplog):
    before = (store.folder / files.RECORDS).read_bytes()
    store.append_retimed(store.load().values(), "later")
    done, said = mended(store, caplog)
    assert (done, said, store.complete()) == (IDS, [], True)
    again = store.records()
    assert again is not None and [each.prompt_id for each in again.retimed("0123")] == IDS
    files.retimed_file(store.folder, "later").unlink()
    assert mended(store, caplog) == (IDS, [])
    assert (store.folder / files.RECORDS).read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        *NAMED,
        pytest.param(changed(cells=["0123", "4567"]), id="other cells"),
        pytest.param(changed(cells=7), id="cells a number"),
        pytest.param(changed(number="first"), id="number a text"),
    ],
)
def test_a_jobs_note_that_is_no_good_is_set_aside_and_its_rows_stay(tmp_path, caplog, change):
    for number, run_id in enumerate(["a", "b"]):
        cell(tmp_path, run_id)
        Experiment(tmp_path, "name").add(JobNote(number, "", (run_id,)))
    note = files.jobs_folder(tmp_path, "name") / f"{job_id(['a'])}.json"
    bad = damage(note, change)
    Experiment(tmp_path, "name").add(JobNote(1, "", ("b",)))
    assert [row["run_id"] for row in rows_of(tmp_path, "name")] == ["a", "b"]
    assert aside(note) == bad
    assert [str(note) in each.getMessage() for each in caplog.records] == [True]


def untimed(results):
    """The rows without what is measured anew every time."""
    timed = {name for each in columns.of_kind("time", "energy", "memory") for name in each.names}
    timed |= {"load_average", "clock_mhz", "stalls", "reason", "baseline"}
    return [{k: v for k, v in row.items() if k not in timed} for row in rows_of(results)]


def test_a_job_over_altered_scores_ends_with_what_the_answers_scored(run_job, tmp_path):
    results = tmp_path / "results"
    before = run_job("cells=[sd:3]", "warmup=0", "prompts=2")
    rows, table = untimed(results), files.records_file(files.results_file(results, "default"))
    kept = parquet.read(table)
    folders = [files.run_folder(results, each.run_id) for each in before]
    scores = [(folder / files.SCORES).read_bytes() for folder in folders]
    for folder in folders:
        own = json.loads((folder / files.SCORES).read_bytes())
        other = {name: dict.fromkeys(each, 0.9) for name, each in own.items()}
        (folder / files.SCORES).write_text(json.dumps(other))
    damage(folders[1] / files.RECORDS, ANY["half"])
    again = run_job("cells=[sd:3]", "warmup=0", "prompts=2")
    assert [each.status for each in again] == ["complete"] * 2
    assert [(folder / files.SCORES).read_bytes() for folder in folders] == scores
    assert parquet.read(table).lines.equals(kept.lines)
    assert untimed(results) == rows


@pytest.mark.parametrize("name", [files.GENERATIONS, files.RESULT])
@pytest.mark.parametrize("cells", [(0,), (0, 1)])
def test_a_job_over_damaged_runs_ends_with_the_rows_of_an_undisturbed_one(
    run_job, tmp_path, name, cells
):
    results = tmp_path / "results"
    before = run_job("cells=[sd:3]", "warmup=0")
    rows, damages = untimed(results), [Path.unlink, lambda path: damage(path, ANY["half"])]
    for each, at in zip(damages, cells, strict=False):
        each(files.run_folder(results, before[at].run_id) / name)  # type: ignore[operator]
    again = run_job("cells=[sd:3]", "warmup=0")
    assert [each.status for each in again] == ["complete"] * 2
    assert untimed(results) == rows


@pytest.mark.parametrize("name", [files.GENERATIONS, "retimed-1.jsonl"])
def test_a_link_to_nothing_in_place_of_generations_is_set_aside_and_the_cell_goes_on(
    tmp_path, caplog, name
):
    store = cell(tmp_path, "a")
    (done, *_) = store.load().values()
    path = store.folder / name
    path.unlink(missing_ok=True)
    path.symlink_to("gone/with/the/disk")
    store.mend(SETTINGS)
    assert f"{path}: it is no file; it is now {name}.bad-1" in caplog.text
    store.append([done])
    store.append_retimed([done], "1")
    assert [each.prompt_id for each in (*store.load().values(), *store.load_retimed())] == (
        ["0", "0"] if name == files.GENERATIONS else ["0", "1", "2", "0"]
    )
