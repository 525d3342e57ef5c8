"""What a disk refuses is one line that names the file, and nothing that was decoded is lost."""

import errno
import os
import subprocess
from pathlib import Path

import pytest
import torch

from spec_bench.draft.heads import load_heads
from spec_bench.system import files
from spec_bench.vocabulary import columns
from tests.jobs.tiny import overrides, rows_of
from tests.warm import run

FULL = Path("/dev/full")  # every write to it finds no room
VALUES = {"a": torch.zeros(40_000)}
TRAIN = "spec_bench.train"


def text(path):
    with path.open("w") as stream:
        stream.write("x" * 100_000)


def saved(path):
    with path.open("wb") as stream:
        torch.save(VALUES, stream)


@pytest.mark.parametrize("write", [text, saved])
def test_a_full_disk_is_named_with_the_file_whoever_finds_it(write):
    with pytest.raises(OSError, match="No space left") as found, files.naming(Path("a/b"), FULL):
        write(FULL)
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


def untimed(rows):
    timed = {name for each in columns.of_kind("time", "energy") for name in each.names}
    timed |= {"load_average", "clock_mhz", "stalls", "bandwidth_bytes_per_s", "reason"}
    return [{name: each[name] for name in each if name not in timed} for each in rows]


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
    expected, named = untimed(rows_of(tmp_path / "whole")), set()
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
        assert untimed(rows_of(results)) == expected
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
            *("data.validation=0.3", "out_dtype=float32", "log_every=1", "data.hidden=computed"),
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
