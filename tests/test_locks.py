"""One process at a time, and a file system that cannot say so."""

import errno
import fcntl
import logging

import pytest

from spec_bench.system import files


def test_a_locked_file_is_locked_for_others_until_it_is_closed(tmp_path):
    path = tmp_path / "lock"
    with path.open("w") as other:
        with path.open("w") as first:
            assert files.lock(first, wait=True)
            assert not files.lock(other, wait=False)
        assert files.lock(other, wait=False)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named_in_one_line_and_the_work_goes_on(
    number, tmp_path, monkeypatch, caplog
):
    def refuse(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(files, "_warned", [])
    with (tmp_path / "lock").open("w") as file, caplog.at_level(logging.WARNING):
        assert files.lock(file, wait=False)
        assert files.lock(file, wait=True)
    (line,) = caplog.messages
    assert "has no locks (no locks here)" in line


def test_other_errors_are_not_taken_for_that(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(fcntl, "flock", fail)
    with (tmp_path / "lock").open("w") as file, pytest.raises(OSError, match="broken disk"):
        files.lock(file, wait=True)
