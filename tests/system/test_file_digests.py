"""A file's digest is that of its bytes now, however it changed; a large file is read once."""

import os

import pytest

from spec_bench.system import file_digests, files
from spec_bench.system.file_digests import hash_file_with_cache


@pytest.fixture
def reads(tmp_path, monkeypatch):
    """Paths of which all bytes were read, by a process that remembers nothing and whose files are
    all large and were written long ago.
    """
    done = []
    whole = files.hash_file
    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digests, "_MIN_CACHED_BYTES", 1)
    monkeypatch.setattr(file_digests, "SETTLED_S", -60.0)
    monkeypatch.setattr(file_digests, "_digests", {})
    monkeypatch.setattr(files, "hash_file", lambda path: done.append(path) or whole(path))
    return done


def overwrite(path, before):
    path.write_bytes(b"weighs")


def replace(path, before):
    other = path.with_name("other")
    other.write_bytes(b"weighs")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("change", [overwrite, replace])
def test_other_bytes_of_the_same_size_and_time_are_another_digest(tmp_path, reads, change):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weight")
    before = path.stat()
    digest = hash_file_with_cache(path)
    assert digest == files.hash_file(path)
    change(path, before)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hash_file_with_cache(path) == files.hash_file(path) != digest


def test_a_file_is_read_once_by_all_processes_and_again_where_the_memory_is_damaged(
    tmp_path, reads, monkeypatch
):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weight")
    digest = hash_file_with_cache(path)
    for memory in ("kept", "damaged", "a folder"):
        monkeypatch.setattr(file_digests, "_digests", {})  # another process
        (kept,) = (tmp_path / "cache" / "digests").iterdir()
        if memory == "damaged":
            kept.write_text(kept.read_text().replace(digest, "0" * 64))
        if memory == "a folder":
            kept.unlink()
            kept.mkdir()
        assert [hash_file_with_cache(path) for _ in range(2)] == [digest] * 2
    assert reads == [path] * 3


def test_a_file_that_was_just_written_is_not_remembered(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(file_digests, "SETTLED_S", 60.0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weight")
    hash_file_with_cache(path)
    hash_file_with_cache(path)
    assert reads == [path] * 2
