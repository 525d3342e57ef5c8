"""Whoever watches a sweep sees each job, what failed and why, whatever lies in its notes."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import pytest

from spec_bench.jobs.store.experiment import Experiment, JobNote
from spec_bench.jobs.store.progress import JobState, Progress, SweepNotes, seconds_left
from spec_bench.jobs.sweep.watch import ending, main
from spec_bench.system import files
from tests.jobs.tiny import overrides

JOBS = [(0, ["seed=0"]), (1, ["seed=1"]), (2, ["seed=2"])]


@pytest.fixture
def under_way(tmp_path):
    made = SweepNotes(tmp_path, "mine")
    made.begin(JOBS)
    return made


def line(tokens):
    return json.dumps({"prompt_id": "0", "tokens": [1] * tokens}) + "\n"


def test_a_job_waits_runs_and_is_done(under_way, tmp_path):
    with under_way.running(1) as job:
        job.say(cells=("cell",), prompts=4)
        folder = files.run_folder(tmp_path, "cell")
        folder.mkdir(parents=True)
        (folder / files.GENERATIONS).write_text(line(3) + line(5) + '{"cut', encoding="utf-8")
        first, second, third = under_way.progress()
        assert (first.job.state, second.job.state, third.job.state) == (
            "waiting", "running", "waiting"
        )  # fmt: skip
        assert (second.done, second.total, second.tokens) == (2, 4, 8)
        assert (second.job.words, second.job.host) == (("seed=1",), socket.gethostname())
    assert [each.state for each in under_way.jobs()] == ["waiting", "done", "waiting"]


def test_a_job_that_fails_says_why_in_a_line(under_way):
    with pytest.raises(ValueError, match="no"), under_way.running(0):
        raise ValueError("no\nsuch pair")
    (job, *_) = under_way.jobs()
    assert (job.state, job.line) == ("failed", "no such pair")
    assert ending(under_way.progress(), 0.0) == [
        "3 jobs: 1 failed, 2 waiting", "  job 1 (seed=0): no such pair"
    ]  # fmt: skip


def test_an_interrupted_job_is_called_so_and_keeps_what_it_has_done(under_way, tmp_path):
    folder = files.run_folder(tmp_path, "cell")
    folder.mkdir(parents=True)
    (folder / files.GENERATIONS).write_text(line(3) * 3, encoding="utf-8")
    with suppress(KeyboardInterrupt), under_way.running(0) as job:
        job.say(cells=("cell",), prompts=4)
        raise KeyboardInterrupt
    first = under_way.progress()[0]
    assert (first.job.state, first.done, first.total) == ("interrupted", 3, 4)
    said = ending(under_way.progress(), time.time())
    assert "1 interrupted" in said[0] and "same command resumes" in said[1]


def test_a_job_whose_process_is_gone_is_lost_and_one_elsewhere_once_it_is_silent(
    under_way, tmp_path
):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    state = JobState(0, ("seed=0",), "running", host=socket.gethostname(), process=gone.pid)
    folder = files.jobs_folder(tmp_path, "mine") / "under_way"
    for place, (host, began) in enumerate(
        [(state.host, time.time()), ("other", time.time()), ("other", time.time() - 10_000)]
    ):
        given = asdict(replace(state, number=place, host=host, began=began))
        files.write_json(folder / f"{place}.json", given)
    assert [each.job.state for each in under_way.progress()] == ["lost", "running", "lost"]


def test_the_end_is_in_sight_by_what_has_run():
    done = JobState(0, state="done", cells=("a", "b"), prompts=5, began=100.0, ended=120.0)
    running = JobState(1, state="running", cells=("c", "d"), prompts=5, began=120.0)
    found = [Progress(done, 10), Progress(running, 4), Progress(JobState(2))]
    # 28 s for 14 generations; 6 of the second job are left and all 10 of the third.
    assert seconds_left(found, 128.0) == pytest.approx(32.0)
    assert ending(found, 128.0)[0] == "3 jobs: 1 done, 1 running, 1 waiting; some 32 s left"
    assert seconds_left([Progress(JobState(0))], 0.0) is None


def test_watch_says_what_there_is_where_a_name_is_unknown(under_way, tmp_path, capsys):
    assert main(["nine", "--results", str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().err.endswith("; there are mine\n")
    assert main(["mine", "--results", str(tmp_path), "--once"]) == 0
    assert "3 jobs: 3 waiting" in capsys.readouterr().out


def test_a_worker_leaves_a_table_to_the_process_that_is_at_it(tmp_path):
    experiment = Experiment(tmp_path, "mine")
    experiment.note(JobNote(0, "", ("a",)))
    (lock,) = [files.jobs_folder(tmp_path, "mine") / ".lock"]
    with lock.open("w") as file:
        assert files.lock(file, wait=False)
        began = time.monotonic()
        assert experiment.rebuild(wait=False) == []
        assert time.monotonic() - began < 1
        assert not experiment.csv.exists()
        waiting = threading.Thread(target=experiment.rebuild)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive(), "the user's process waits"
    waiting.join(20)
    assert experiment.csv.exists()


def test_a_rebuild_ends_though_jobs_go_on_ending(tmp_path):
    experiment, passes = Experiment(tmp_path, "mine"), []

    def another(run_ids):
        passes.append(run_ids)
        experiment.note(JobNote(len(passes), "", (f"cell{len(passes)}",)))

    with mock.patch.object(experiment, "_write_records", another):
        experiment.rebuild()
    assert len(passes) == 2


@pytest.mark.slow
def test_a_sweep_tells_all_that_failed(tmp_path, family):
    where = ["hydra/launcher=workers", "hydra.launcher.n_jobs=2"]
    # What is wrong shows as the jobs run, on whatever machine: two of four cannot be right.
    given = ["decoder=sd,rsd_s", "spec=3,4x3", "prompts=2", "name=mine"]
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "spec_bench", "-m", *where,
         *overrides(family, tmp_path / "results"), *given],
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 2
    lines = run.stderr.splitlines()
    assert "4 jobs: 2 done, 2 failed" in lines
    told = lines[lines.index("4 jobs: 2 done, 2 failed") + 1 :][:3]
    assert told[0].startswith("  job 2 (decoder=sd spec=4x3): decoder 'sd': spec '4x3'")
    assert told[1].startswith("  job 3 (decoder=rsd_s spec=3): decoder 'rsd_s': spec '3'")
    assert told[2] == "  the same command does what is missing"
    states = [job.state for job in SweepNotes(tmp_path / "results", "mine").jobs()]
    assert states == ["done", "failed", "failed", "done"]


RUNNING = asdict(
    JobState(
        *(0, ("seed=0",), "running"),
        host=socket.gethostname(), process=os.getpid(), cells=("cell",), prompts=4,
    )
)  # fmt: skip


def note(**changed):
    return json.dumps(RUNNING | {"began": time.time()} | changed).encode()


def huge(path):
    with path.open("wb") as file:
        file.truncate(2**42)


DAMAGED = {
    "empty": b"",
    "blanks": b" \n" * 100,
    "binary": bytes(range(256)) * 4,
    "cut": note()[:40],
    "two": note() * 2,
    "UTF-16": note().decode().encode("utf-16"),
    "a list": b"[0]",
    "a number": b"3",
    "a text": b'"seed=0"',
    "null": b"null",
    "NaN": b"NaN",
    "no keys": b"{}",
    "lists in lists": b"[" * 100_000,
    "mappings in mappings": b'{"words":' * 100_000,
    "a deep value": b'{"jobs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "number: a text": note(number="0"),
    "number: true": note(number=True),
    "number: below 0": note(number=-1),
    "number: of 5,000 digits": b'{"number":' + b"1" * 5000 + b"}",
    "words: a text": note(words="seed=0"),
    "words: numbers": note(words=[0, 1]),
    "words: null": note(words=None),
    "state: unknown": note(state="asleep"),
    "state: a list": note(state=["running"]),
    "line: a number": note(line=3),
    "host: a list": note(host=["here"]),
    "process: below 0": note(process=-1),
    "process: too large": note(process=10**30),
    "process: a text": note(process="1"),
    "devices: a mapping": note(devices={}),
    "cells: a text": note(cells="cell"),
    "cells: lists": note(cells=[["cell"]]),
    "cells: a mapping": note(cells={"cell": 1}),
    "prompts: a text": note(prompts="4"),
    "prompts: half of one": note(prompts=0.5),
    "prompts: too many": note(prompts=10**400),
    "began: NaN": note(began=float("nan")),
    "began: endless": note(began=float("inf")),
    "began: 1e400": b'{"number":0,"state":"running","began":1e400}',
    "began: 1e300": note(began=1e300),
    "began: a text": note(began="today"),
    "ended: null": note(ended=None),
    "ended: below 0": note(ended=-1e300),
    "huge": huge,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


def watched(results):
    """The status of ``watch mine --once``, which ends."""
    status = []
    given = ["mine", "--results", str(results), "--once"]
    thread = threading.Thread(target=lambda: status.append(main(given)), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    assert status, "it raised an error"
    return status[0]


def lay(path, damage):
    path.unlink(missing_ok=True)
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        damage(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of a sweep whose second job runs."""
    monkeypatch.setenv("COLUMNS", "400")
    SweepNotes(tmp_path, "mine").begin([(0, ["seed=0"]), (1, ["seed=1"])])
    folder = files.jobs_folder(tmp_path, "mine") / "under_way"
    (folder / "1.json").write_bytes(note(number=1, words=["cells=[sd:3]"]))
    return folder


@pytest.mark.parametrize("name", ["0.json", "sweep.json"])
@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_note_that_cannot_be_read_is_a_line_and_the_other_jobs_are_shown(
    name, damage, folder, tmp_path, capsys
):
    lay(folder / name, DAMAGED[damage])
    assert watched(tmp_path) == 2
    said = capsys.readouterr()
    (line,) = [line for line in said.out.splitlines() if line.startswith("  job ")]
    assert f"{name} is unreadable: " in line and len(line) < 300
    assert "1 unreadable" in said.out and "1 running" in said.out and "cells=[sd:3]" in said.out
    assert not said.err


@pytest.mark.parametrize(
    "jobs", [3, [3], [{}], [{"number": 0, "words": 3}], [{"number": "x", "words": []}], {"0": []}]
)
def test_a_list_of_jobs_that_is_none_is_a_line(jobs, folder, tmp_path, capsys):
    (folder / "sweep.json").write_text(json.dumps(jobs))
    assert watched(tmp_path) == 2
    assert "sweep.json is unreadable: " in capsys.readouterr().out


@pytest.mark.parametrize("damage", sorted(DAMAGED.keys() - {"huge"}))
def test_generations_that_cannot_be_read_count_as_none(damage, folder, tmp_path, capsys):
    path = files.run_folder(tmp_path, "cell") / files.GENERATIONS
    path.parent.mkdir(parents=True)
    lay(path, DAMAGED[damage])
    assert watched(tmp_path) == 0
    assert "0 of 4" in capsys.readouterr().out


def test_a_note_is_shown_as_it_stands_without_what_a_terminal_would_do(folder, tmp_path, capsys):
    words = ["cells=[sd:3]", "name=[bold]x[/bold]", ":x:", "[/]", "a\x1b[2Jb\nc\x9b"]
    given = {"words": words, "cells": ["no\0name", "x" * 300], "more": "of a later version"}
    (folder / "0.json").write_bytes(note(state="failed", line="[red]no[/]", **given))
    assert watched(tmp_path) == 2
    shown = "cells=[sd:3] name=[bold]x[/bold] :x: [/] a [2Jb c "
    lines = capsys.readouterr().out.splitlines()
    assert sum(shown in line and "[red]no[/]" in line for line in lines) == 2


def test_other_files_beside_the_notes_are_not_taken_for_some(folder, tmp_path):
    for name in ("0x.json", "0.json.bad-1", ".0.json.1f.tmp", "note.json"):
        (folder / name).write_text("{}")
    assert watched(tmp_path) == 0
