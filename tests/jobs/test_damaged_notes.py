"""Whatever lies where a sweep's notes should be, ``watch`` gives it a line and comes to an end."""

import json
import os
import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from spec_bench.jobs.store.progress import JobState, SweepNotes
from spec_bench.jobs.sweep.watch import main
from spec_bench.system import files

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
