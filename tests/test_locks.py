"""One process at a time, and a file system that cannot say so."""

from __future__ import annotations

import errno
import fcntl
import logging
from pathlib import Path

import pytest

from spec_bench.system import locks


def test_a_locked_file_is_locked_for_others_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as other:
        with path.open("w") as first:
            assert locks.lock(first, wait=True)
            assert not locks.lock(other, wait=False)
        assert locks.lock(other, wait=False)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named_in_one_line_and_the_work_goes_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(locks, "_warned", [])
    with (tmp_path / "lock").open("w") as file, caplog.at_level(logging.WARNING):
        assert locks.lock(file, wait=False)
        assert locks.lock(file, wait=True)
    (line,) = caplog.messages
    assert "has no locks (no locks here)" in line


def test_other_errors_are_not_taken_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(fcntl, "flock", fail)
    with (tmp_path / "lock").open("w") as file, pytest.raises(OSError, match="broken disk"):
        locks.lock(file, wait=True)
