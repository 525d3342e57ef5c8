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

import pytest

from spec_bench.jobs.sweep.watch import JobState, Progress, SweepNotes, ending, main, seconds_left
from spec_bench.system import files
from tests.jobs.tiny import overrides
from tests.warm import run


@pytest.fixture
def sweep(tmp_path):
    made = SweepNotes(tmp_path, "mine")
    made.begin([(number, [f"seed={number}"]) for number in range(3)])
    return made


def wrote(results, *tokens, torn=""):
    """Generations of a cell, of so many tokens each."""
    lines = (json.dumps({"prompt_id": "0", "tokens": [1] * count}) + "\n" for count in tokens)
    files.write_text(files.run_folder(results, "cell") / files.GENERATIONS, "".join(lines) + torn)


def test_a_job_waits_runs_and_is_done(sweep, tmp_path):
    with sweep.running(1) as job:
        job.say(cells=("cell",), prompts=4)
        wrote(tmp_path, 3, 5, torn='{"cut')
        states = [each.job.state for each in sweep.progress()]
        assert states == ["waiting", "running", "waiting"]
        second = sweep.progress()[1]
        assert (second.done, second.total, second.tokens) == (2, 4, 8)
        assert (second.job.words, second.job.host) == (("seed=1",), socket.gethostname())
    assert [each.state for each in sweep.jobs()] == ["waiting", "done", "waiting"]


def test_a_job_that_fails_says_why_in_a_line(sweep):
    with pytest.raises(ValueError, match="no"), sweep.running(0):
        raise ValueError("no\nsuch pair")
    assert (sweep.jobs()[0].state, sweep.jobs()[0].line) == ("failed", "no such pair")
    told = ["3 jobs: 1 failed, 2 waiting", "  job 1 (seed=0): no such pair"]
    assert ending(sweep.progress(), 0.0) == told


def test_an_interrupted_job_is_called_so_and_keeps_what_it_has_done(sweep, tmp_path):
    wrote(tmp_path, 3, 3, 3)
    with suppress(KeyboardInterrupt), sweep.running(0) as job:
        job.say(cells=("cell",), prompts=4)
        raise KeyboardInterrupt
    first = sweep.progress()[0]
    assert (first.job.state, first.done, first.total) == ("interrupted", 3, 4)
    said = ending(sweep.progress(), time.time())
    assert "1 interrupted" in said[0] and "same command resumes" in said[1]


def test_a_job_whose_process_is_gone_is_lost_and_one_elsewhere_once_it_is_silent(sweep, tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    state = JobState(0, ("seed=0",), "running", process=gone.pid)
    folder, now = files.jobs_folder(tmp_path, "mine") / "under_way", time.time()
    where = ((socket.gethostname(), now), ("other", now), ("other", now - 10_000))
    for place, (host, began) in enumerate(where):
        told = asdict(replace(state, number=place, host=host, began=began))
        files.write_json(folder / f"{place}.json", told)
    assert [each.job.state for each in sweep.progress()] == ["lost", "running", "lost"]


def test_the_end_is_in_sight_by_what_has_run():
    done = JobState(0, state="done", cells=("a", "b"), prompts=5, began=100.0, ended=120.0)
    running = JobState(1, state="running", cells=("c", "d"), prompts=5, began=120.0)
    found = [Progress(done, 10), Progress(running, 4), Progress(JobState(2))]
    # 28 s for 14 generations; 6 of the second job are left and all 10 of the third.
    assert seconds_left(found, 128.0) == pytest.approx(32.0)
    assert ending(found, 128.0)[0] == "3 jobs: 1 done, 1 running, 1 waiting; some 32 s left"
    assert seconds_left([Progress(JobState(0))], 0.0) is None


def test_watch_says_what_there_is_where_a_name_is_unknown(sweep, tmp_path, capsys):
    assert main(["nine", "--results", str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().err.endswith("; there are mine\n")
    assert main(["mine", "--results", str(tmp_path), "--once"]) == 0
    assert "3 jobs: 3 waiting" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_tells_all_that_failed(tmp_path, family):
    where = ["hydra/launcher=workers", "hydra.launcher.n_jobs=2"]
    # What is wrong shows as the jobs run, on whatever machine: two of four cannot be right.
    given = ["decoder=sd,rsd_s", "spec=3,4x3", "prompts=2", "name=mine"]
    given = ["-m", *where, *overrides(family, tmp_path / "results"), *given]
    status, _, said = run("spec_bench", *given, folder=tmp_path)
    assert status == 2
    lines = said.splitlines()
    assert "4 jobs: 2 done, 2 failed" in lines
    told = lines[lines.index("4 jobs: 2 done, 2 failed") + 1 :][:3]
    assert told[0].startswith("  job 2 (decoder=sd spec=4x3): decoder 'sd': spec '4x3'")
    assert told[1].startswith("  job 3 (decoder=rsd_s spec=3): decoder 'rsd_s': spec '3'")
    assert told[2] == "  the same command does what is missing"
    states = [job.state for job in SweepNotes(tmp_path / "results", "mine").jobs()]
    assert states == ["done", "failed", "failed", "done"]


RUNNING = {"number": 0, "words": ("seed=0",), "state": "running", "cells": ("cell",), "prompts": 4}
RUNNING |= {"host": socket.gethostname(), "process": os.getpid()}


def note(**changed):
    return json.dumps(asdict(JobState(**RUNNING | {"began": time.time()})) | changed).encode()


def huge(path):
    with path.open("wb") as file:
        file.truncate(2**42)


WRONG = {
    **{"number": ["0", True, -1], "words": ["seed=0", [0, 1], None], "line": [3]},
    **{"state": ["asleep", ["running"]], "host": [["here"]], "devices": [{}]},
    **{"process": [-1, 10**30, "1"], "prompts": ["4", 0.5, 10**400]},
    "cells": ["cell", [["cell"]], {"cell": 1}],
    "began": [float("nan"), float("inf"), 1e300, "today"],
    "ended": [None, -1e300],
}
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
    "jobs": b'[{"number": 0, "words": 3}]',
    "other jobs": b'[{"number": "x", "words": []}]',
    "an empty job": b"[{}]",
    "NaN": b"NaN",
    "no keys": b"{}",
    "lists in lists": b"[" * 100_000,
    "mappings in mappings": b'{"words":' * 100_000,
    "a deep value": b'{"jobs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "number: of 5,000 digits": b'{"number":' + b"1" * 5000 + b"}",
    "began: 1e400": b'{"number":0,"state":"running","began":1e400}',
    "huge": huge,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    **{f"{k}: {str(v)[:20]}": note(**{k: v}) for k, values in WRONG.items() for v in values},
}


def watched(results):
    """The status of ``watch mine --once``, which ends."""
    status, given = [], ["mine", "--results", str(results), "--once"]
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
