"""What ends a command: what cannot be right, kills, signals, a full disk."""

import errno
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from spec_bench.draft.heads import load_heads
from spec_bench.jobs.job.session import CellRun
from spec_bench.jobs.store.store import CellStore
from spec_bench.system import files
from tests.jobs.tiny import main, overrides, rows_of, tokens_of, untimed
from tests.warm import Command, run


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


SLOW = [pytest.param(signal.SIGKILL, seed, marks=pytest.mark.slow) for seed in range(1, 5)]


@pytest.mark.parametrize(
    ("number", "seed"),
    [(signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGKILL, 0), *SLOW],
)
def test_after_a_kill_a_rerun_equals_an_undisturbed_run_but_for_times(
    run_job, family, tmp_path, number, seed
):
    cells = "cells=[sd:3,spectr:2x2,rsd_c:2-1,rsd_s:2x2]"
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = Command("spec_bench", overrides(family, killed, cells), tmp_path)
    deadline = time.monotonic() + 90
    while not list(killed.glob("runs/*/generations.jsonl")) and time.monotonic() < deadline:
        assert command.poll() is None, "it ended before it decoded"
        time.sleep(0.002)
    time.sleep(0 if seed is None else random.Random(seed).uniform(0, 0.8))
    os.kill(command.pid, number)
    status, _, said = command.finish()
    if seed is None:
        assert status == 128 + number and "Traceback" not in said
        assert said.splitlines()[-1] == "interrupted; the same command resumes"
    before = {path: path.read_bytes() for path in killed.glob("runs/*/generations.jsonl")}
    run_job(cells, results=killed)
    for path, lines in before.items():
        whole_lines = lines[: lines.rfind(b"\n") + 1]
        assert path.read_bytes().startswith(whole_lines), "a finished prompt was decoded again"
    for result in run_job(cells, results=whole):
        assert tokens_of(killed, result.run_id) == tokens_of(whole, result.run_id)
        assert CellStore(killed, result.run_id).complete()
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

    monkeypatch.setattr(CellStore, "append", full)
    monkeypatch.setattr(CellRun, "fail", full)
    assert main(monkeypatch, *overrides(family, tmp_path)) == 1
    said = capsys.readouterr().err.splitlines()
    (line,) = [each for each in said if each.strip() and "Loading" not in each]
    assert "No space left" in line


FULL = Path("/dev/full")  # every write to it finds no room
VALUES = {"a": torch.zeros(40_000)}
TRAIN = "spec_bench.train"


@pytest.mark.parametrize(
    "write", [lambda s: s.write(b"x" * 10**5), lambda s: torch.save(VALUES, s)]
)
def test_a_full_disk_is_named_with_the_file_whoever_finds_it(write):
    refused = pytest.raises(OSError, match="No space left")
    with refused as found, files.naming(Path("a/b"), FULL), FULL.open("wb") as stream:
        write(stream)
    assert found.value.errno == errno.ENOSPC
    assert files.refused(found.value) == "cannot write 'a/b': No space left on device"


def test_another_files_error_and_another_error_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"), files.naming(tmp_path / "a"):
        (tmp_path / "none").read_text()
    with pytest.raises(PermissionError) as found, files.naming(tmp_path / "a"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "other")
    assert found.value.filename == "other"
    with pytest.raises(KeyError), files.naming(tmp_path / "a"):
        raise KeyError("x")
    assert files.refused(OSError(errno.ENOENT, "no such file")) is None


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
    """The one line of a command that found no room."""
    lines = [line for line in said.splitlines() if line.strip() and "Loading" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{module}: cannot write '{folder}/"), lines
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
    assert {files.GENERATIONS, files.RECORDS} & named and len(named) > 1


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
