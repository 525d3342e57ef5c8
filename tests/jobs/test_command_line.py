"""What ends a command, and what whoever watches a sweep sees of each job and its failure."""

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from spec_bench.draft.heads import load_heads
from spec_bench.jobs.job.session import CellRun
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.watch import (
    SweepNotes,
    WatchedJobSnapshot,
    estimate_seconds_left,
    summarise_jobs,
)
from spec_bench.system import files
from tests.commands import watch
from tests.jobs.tiny import main, overrides, rows_of, tokens_of, untimed
from tests.warm import Command, run, until


def test_the_status_says_that_a_cell_failed(family, tmp_path, monkeypatch):
    monkeypatch.setattr("spec_bench.decode.config.DecoderConfig.build", None)
    assert main(monkeypatch, *overrides(family, tmp_path)) == 1


def test_a_sweep_merges_into_one_csv_and_leaves_no_litter(family, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    swept = ["-m", *overrides(family, Path("results"), "seed=0,1", "spec=2x2", "prompts=2")]
    assert main(monkeypatch, *swept) == 0
    assert main(monkeypatch, *swept) == 0
    rows = rows_of(tmp_path / "results")
    expected = [(name, seed) for seed in "01" for name in ("ar", "rsd_s")]
    assert [(row["decoder"], row["seed"]) for row in rows] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert "reusing" in caplog.text


def test_paths_mean_the_users_folder_where_hydra_changes_it(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text((family / "rows.jsonl").read_text())
    given = overrides(family, Path("out"), "task.source.path=mine.jsonl", "prompts=1", "spec=2x2")
    assert main(monkeypatch, "-m", "seed=0,1", *given, "hydra.job.chdir=true") == 0
    assert [row["seed"] for row in rows_of(tmp_path / "out")] == [*"0011"]
    assert Path.cwd() == tmp_path


SLOW = [pytest.param(signal.SIGKILL, seed, marks=pytest.mark.slow) for seed in range(1, 5)]


@pytest.mark.parametrize(
    ("number", "seed"), [(signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGKILL, 0), *SLOW]
)
def test_after_a_kill_a_rerun_equals_an_undisturbed_run_but_for_times(
    run_job, family, tmp_path, number, seed
):
    cells = "cells=[sd:3,spectr:2x2,rsd_c:2-1,rsd_s:2x2]"
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = Command("spec_bench", overrides(family, killed, cells), tmp_path)
    until(lambda: command.poll() is not None or [*killed.glob("runs/*/generations.jsonl")], 90)
    assert [*killed.glob("runs/*/generations.jsonl")], "it ended before it decoded"
    time.sleep(0 if seed is None else random.Random(seed).uniform(0, 0.8))
    with suppress(ProcessLookupError):  # it may be done
        os.kill(command.pid, number)
    status, _, said = command.finish()
    if seed is None:
        assert status == 128 + number and "Traceback" not in said
        assert said.splitlines()[-1] == "interrupted; the same command resumes"
    before = {path: path.read_bytes() for path in killed.glob("runs/*/generations.jsonl")}
    run_job(cells, results=killed)
    for path, lines in before.items():
        # But for the last one, which no baseline may have been timed beside yet.
        kept = b"".join(lines[: lines.rfind(b"\n") + 1].splitlines(keepends=True)[:-1])
        assert path.read_bytes().startswith(kept), "a finished prompt was decoded again"
    for result in run_job(cells, results=whole):
        assert tokens_of(killed, result.run_id) == tokens_of(whole, result.run_id)
        assert CellStore(killed, result.run_id).is_complete()
    assert untimed(rows_of(killed)) == untimed(rows_of(whole))


@pytest.mark.parametrize(
    ("results", "named"), [("/proc/none", "/proc/none"), ("results", "line 1"), ("grid", "trees")]
)
def test_what_could_not_be_written_or_counted_is_said_before_decoding(
    family, tmp_path, monkeypatch, capsys, results, named
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spec_bench.jobs.job.job.run_job", lambda _: pytest.fail("it decoded"))
    table = tmp_path / "results" / "default" / "results.csv"
    table.parent.mkdir(parents=True)
    table.write_text("pair;run_id\np;1\n")
    grid = "cells=[{grid: {decoder: rsd_c, factors: [1,2,3,4], most: 9, depths: [99], order: any}}]"
    more = [grid] if results == "grid" else []
    assert main(monkeypatch, *overrides(family, Path(results), *more)) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and named in said[0]


def test_a_disk_that_is_full_in_the_middle_is_one_line(family, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CellStore, "append_generations", full)
    monkeypatch.setattr(CellRun, "fail", full)
    assert main(monkeypatch, *overrides(family, tmp_path)) == 1
    said = capsys.readouterr().err.splitlines()
    kept = [each for each in said if each.strip() and "Loading" not in each]
    *_, line = (each for each in kept if not each.startswith("data: "))
    assert len(kept) <= 2
    assert "No space left" in line


FULL = Path("/dev/full")  # every write to it finds no room
VALUES = {"a": torch.zeros(40_000)}
TRAIN = "spec_bench.train"


@pytest.mark.parametrize(
    "write", [lambda s: s.write(b"x" * 10**5), lambda s: torch.save(VALUES, s)]
)
def test_a_full_disk_is_named_with_the_file_whoever_finds_it(write):
    refused = pytest.raises(OSError, match="No space left")
    with refused as found, files.write_errors_naming(Path("a/b"), FULL), FULL.open("wb") as stream:
        write(stream)
    assert found.value.errno == errno.ENOSPC
    assert files.explain_write_error(found.value) == "cannot write 'a/b': No space left on device"


def test_another_files_error_and_another_error_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"), files.write_errors_naming(tmp_path / "a"):
        (tmp_path / "none").read_text()
    with pytest.raises(PermissionError) as found, files.write_errors_naming(tmp_path / "a"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "other")
    assert found.value.filename == "other"
    with pytest.raises(KeyError), files.write_errors_naming(tmp_path / "a"):
        raise KeyError("x")
    assert files.explain_write_error(OSError(errno.ENOENT, "no such file")) is None


@pytest.fixture
def small_disk(tmp_path):
    """Gives a disk with so many KiB free; called again, the same one with other room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)])
    if made.returncode:
        pytest.skip("no file system can be mounted here")

    def leave(kib):
        (folder / "filling").unlink(missing_ok=True)
        if kib:
            status = os.statvfs(folder)
            (folder / "filling").write_bytes(bytes(status.f_bavail * status.f_frsize - kib * 1024))
        return folder

    try:
        yield leave
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refusal(said, module, folder):
    lines = [line for line in said.splitlines() if line.strip() and "Loading" not in line]
    assert len(lines) == 1, lines
    said_as = module.replace("_bench.", "-bench ")
    assert lines[0].startswith(f"{said_as}: cannot write '{folder}/"), lines
    return lines[0]


@pytest.mark.slow
def test_a_job_on_a_full_disk_is_one_line_and_a_rerun_with_room_equals_an_undisturbed_one(
    small_disk, family, tmp_path
):
    given = ("spec=2x2", "warmup=0", "prompts=3")

    def job(results):
        status, _, said = run("spec_bench", *overrides(family, results, *given), folder=tmp_path)
        return status, said

    assert job(tmp_path / "whole")[0] == 0
    expected, named = untimed(rows_of(tmp_path / "whole"), "reason"), set()
    for number, kib in enumerate((8, 20, 32, 44, 56)):
        results = small_disk(kib) / f"{number}"
        status, said = job(results)
        if status:
            assert status == 1 and "No space left on device" in said
            named.add(Path(refusal(said, "spec_bench", results).split("'")[1]).name)
        lines = {path: path.read_bytes() for path in results.rglob("generations.jsonl")}
        assert not list(results.rglob("*.tmp"))
        small_disk(0)
        assert job(results)[0] == 0
        assert untimed(rows_of(results), "reason") == expected
        for path, before in lines.items():  # no whole line was decoded again
            assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
        assert not list(results.rglob("*.bad-*"))
    assert files.GENERATIONS in named and len(named) > 1


@pytest.mark.slow
def test_a_folder_that_is_read_only_is_one_line_before_anything_is_decoded(
    small_disk, family, tmp_path
):
    folder = small_disk(0)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    given = overrides(family, folder / "results", "spec=2x2", "prompts=3")
    status, _, said = run("spec_bench", *given, folder=tmp_path)
    assert status == 2
    (line,) = [each for each in said.splitlines() if each.strip()]
    assert str(folder) in line and "Read-only file system" in line


@pytest.mark.slow
def test_a_training_on_a_full_disk_is_one_line_and_goes_on_with_room(small_disk, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Translate"}\n{"prompt": "Article: It"}\n{"prompt": "A"}\n')

    def training(results):
        given = [
            *(f"results={results}", "name=heads", "head=redrafter", "engine.threads=1"),
            *("data.kind=prompts", f"data.path={prompts}", "data.answers.max_new_tokens=16"),
            *("optimiser.steps=6", "optimiser.batch=2", "save_every=2", "sink.progress=false"),
            *("data.validation=0.3", "out_dtype=float32", "log_every=1"),
        ]
        status, _, said = run(TRAIN, *given, folder=tmp_path)
        return status, said

    def weights(results):
        return list(load_heads(str(results / "heads/heads"), "cpu", torch.float32).parameters())

    assert training(tmp_path / "whole")[0] == 0
    sizes = [path.stat().st_size // 1024 for path in (tmp_path / "whole").rglob("checkpoint.pt")]
    for number, kib in enumerate((4, sizes[0] // 2, sizes[0] + 200)):
        results = small_disk(kib) / f"{number}"
        status, said = training(results)
        assert status == 1, said
        refusal(said, TRAIN, results)
        small_disk(0)
        assert training(results)[0] == 0
        for one, other in zip(weights(results), weights(tmp_path / "whole"), strict=True):
            assert torch.equal(one, other)
        subprocess.run(["rm", "-r", str(results)], check=True)


@pytest.fixture
def sweep(tmp_path):
    made = SweepNotes(tmp_path, "mine")
    made.replace_job_list([(number, [f"seed={number}"]) for number in range(3)], "Slurm")
    return made


def wrote(results, *tokens, torn=""):
    """Generations of a cell, of so many tokens each."""
    lines = (json.dumps({"prompt_id": "0", "tokens": [1] * count}) + "\n" for count in tokens)
    files.write_text(
        files.get_run_folder(results, "cell") / files.GENERATIONS, "".join(lines) + torn
    )


def test_a_job_waits_runs_and_is_done(sweep, tmp_path):
    with sweep.tracked_job(1, ["seed=1"]) as job:
        job.write_note(cells=("cell",), prompts=4)
        wrote(tmp_path, 3, 5, torn='{"cut')
        states = [each.state for each in sweep.read_progress()]
        assert states == ["waiting", "running", "waiting"]
        second = sweep.read_progress()[1]
        assert (second.done, second.total_generations, second.tokens) == (2, 4, 8)
        job.write_note(state="waiting")  # for a cell that another job holds
        assert summarise_jobs(sweep.read_progress(), time.time())[0] == "3 jobs: 3 waiting"
        assert (second.words, second.host) == (("seed=1",), socket.gethostname())
    assert [each.state for each in sweep.read_jobs()] == ["waiting", "done", "waiting"]


def test_a_job_that_fails_says_why_in_a_line(sweep):
    with pytest.raises(ValueError, match="no"), sweep.tracked_job(0, ["seed=0"]):
        raise ValueError("no\nsuch pair")
    assert (sweep.read_jobs()[0].state, sweep.read_jobs()[0].line) == ("failed", "no such pair")
    told = ["3 jobs: 1 failed, 2 waiting", "  job 1 (seed=0): no such pair"]
    assert summarise_jobs(sweep.read_progress(), 0.0) == told


def test_an_interrupted_job_is_called_so_and_keeps_what_it_has_done(sweep, tmp_path):
    wrote(tmp_path, 3, 3, 3)
    with suppress(KeyboardInterrupt), sweep.tracked_job(0, ["seed=0"]) as job:
        job.write_note(cells=("cell",), prompts=4)
        raise KeyboardInterrupt
    first = sweep.read_progress()[0]
    assert (first.state, first.done, first.total_generations) == ("interrupted", 3, 4)
    said = summarise_jobs(sweep.read_progress(), time.time())
    assert "1 interrupted" in said[0] and "same command resumes" in said[1]


def test_a_job_whose_process_is_gone_is_lost_and_one_elsewhere_once_it_is_silent(sweep, tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    state, now = WatchedJobSnapshot(0, ("seed=0",), "running", process=gone.pid), time.time()
    where = ((socket.gethostname(), now), ("other", now), ("other", now - 10_000))
    for place, (host, began) in enumerate(where):
        told = replace(state, number=place, host=host, began=began, again="Slurm")
        files.write_redacted_json(sweep.get_note_path([f"seed={place}"]), [asdict(told)])
    assert [each.state for each in sweep.read_progress()] == ["lost", "running", "lost"]
    said = summarise_jobs(sweep.read_progress(), now)
    assert said[1] == "  job 1 (seed=0): its process is gone; Slurm starts it again"


def test_two_sweeps_of_one_name_are_watched_together_until_one_is_over(sweep, tmp_path):
    def begin(*words):
        SweepNotes(tmp_path, "mine").replace_job_list(
            [(n, ["a=1", word]) for n, word in enumerate(words)]
        )
        return [(each.words, each.state) for each in sweep.read_progress()]

    with sweep.tracked_job(1, ["seed=1"]):
        assert ((("seed=1",), "running")) in begin("b=1", "b=2")
        assert len(sweep.read_progress()) == 5
    assert begin("b=3", "b=4") == [(("b=3",), "waiting"), (("b=4",), "waiting")]


def test_a_look_reads_what_is_new_of_generations_and_all_of_a_file_that_was_replaced(
    sweep, tmp_path
):
    path = files.get_run_folder(tmp_path, "cell") / files.GENERATIONS
    with sweep.tracked_job(0, ["seed=0"]) as job:
        job.write_note(cells=("cell",), prompts=4)

        def seen():
            return sweep.read_progress()[0].done, sweep.read_progress()[0].tokens

        wrote(tmp_path, 3, 5, torn='{"tokens"')
        assert seen() == (2, 8)
        with path.open("r+") as stream:  # what was read is not read again
            stream.write("x")
            stream.seek(0, os.SEEK_END)
            stream.write(": [1]}\n")
        assert seen() == (3, 9)
        wrote(tmp_path, 4)
        assert seen() == (1, 4)


def test_the_end_is_in_sight_by_what_has_run():
    done = WatchedJobSnapshot(
        0, state="done", cells=("a", "b"), prompts=5, began=100.0, ended=120.0
    )
    running = WatchedJobSnapshot(1, state="running", cells=("c", "d"), prompts=5, began=120.0)
    found = [replace(done, done=10), replace(running, done=4), WatchedJobSnapshot(2)]
    # 28 s for 14 generations; 6 of the second job are left and all 10 of the third.
    assert estimate_seconds_left(found, 128.0) == pytest.approx(32.0)
    assert summarise_jobs(found, 128.0)[0] == "3 jobs: 1 done, 1 running, 1 waiting; some 32 s left"
    assert estimate_seconds_left([WatchedJobSnapshot(0)], 0.0) is None
    # Its last token came: whole jobs say how long its intervals take, before one ends nobody does.
    found[1] = replace(running, began=110.0, done=10)
    assert estimate_seconds_left(found[:2], 128.0) == pytest.approx(2.0)
    assert estimate_seconds_left(found[1:2], 128.0) is None


def test_watch_says_what_there_is_where_a_name_is_unknown(sweep, tmp_path, capsys):
    assert watch(["nine", "--results", str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().err.endswith("; there are mine\n")
    assert watch(["mine", "--results", str(tmp_path), "--once"]) == 0
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
    assert "Error executing job" not in said
    states = [job.state for job in SweepNotes(tmp_path / "results", "mine").read_jobs()]
    assert states == ["done", "failed", "failed", "done"]


RUNNING = {"number": 0, "words": ("seed=0",), "state": "running", "cells": ("cell",), "prompts": 4}
RUNNING |= {"host": socket.gethostname(), "process": os.getpid()}


def note(**changed):
    return json.dumps(
        [asdict(WatchedJobSnapshot(**RUNNING | {"began": time.time()})) | changed]
    ).encode()


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
    **{text: text.encode() for text in ("[0]", "3", '"seed=0"', "null", "[{}]", "NaN", "{}")},
    **{text: text.encode() for text in ('[{"number":0,"words":3}]', '[{"number":"x"}]')},
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
    status, given = [], ["mine", "--results", str(results), "--once"]
    thread = threading.Thread(target=lambda: status.append(watch(given)), daemon=True)
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
    notes = SweepNotes(tmp_path, "mine")
    notes.replace_job_list([(0, ["seed=0"]), (1, ["cells=[sd:3]"])])
    notes.get_note_path(["cells=[sd:3]"]).write_bytes(note(number=1, words=["cells=[sd:3]"]))
    return notes.get_note_path(["seed=0"]).parent


@pytest.mark.parametrize("name", ["job", "sweep"])
@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_note_that_cannot_be_read_is_a_line_and_the_other_jobs_are_shown(
    name, damage, folder, tmp_path, capsys
):
    path = SweepNotes(tmp_path, "mine").get_note_path(["seed=0"])
    path = path if name == "job" else next(folder.glob("sweep-*.json"))
    lay(path, DAMAGED[damage])
    assert watched(tmp_path) == 2
    said = capsys.readouterr()
    (line,) = [line for line in said.out.splitlines() if line.startswith("  job ")]
    assert f"{path.name} is unreadable: " in line and len(line) < 300
    assert "1 unreadable" in said.out and "1 running" in said.out
    assert "cells=[sd:3]" in said.out
    assert not said.err


@pytest.mark.parametrize("damage", sorted(DAMAGED.keys() - {"huge"}))
def test_generations_that_cannot_be_read_count_as_none(damage, folder, tmp_path, capsys):
    path = files.get_run_folder(tmp_path, "cell") / files.GENERATIONS
    path.parent.mkdir(parents=True)
    lay(path, DAMAGED[damage])
    for name in ("0x.json", "0.json.bad-1", ".0.json.1f.tmp", "note.json"):  # are no notes
        (folder / name).write_text("{}")
    assert watched(tmp_path) == 0
    assert "0 of 4" in capsys.readouterr().out


def test_a_note_is_shown_as_it_stands_its_control_characters_as_escapes(folder, tmp_path, capsys):
    words = ["cells=[sd:3]", "name=[bold]x[/bold]", ":x:", "[/]", "a\x1b[2Jb\nc\x9b"]
    given = {"words": words, "cells": ["no\0name", "x" * 300], "more": "of a later version"}
    next(folder.glob("sweep-*.json")).unlink()
    (folder / f"{0:012}.json").write_bytes(note(state="failed", line="[red]no[/]", **given))
    files.write_redacted_json(folder / "sweep-0.json", [])
    assert watched(tmp_path) == 2
    shown = "cells=[sd:3] name=[bold]x[/bold] :x: [/] a\\x1b[2Jb c\\x9b"
    lines = capsys.readouterr().out.splitlines()
    assert sum(shown in line and "[red]no[/]" in line for line in lines) == 2
