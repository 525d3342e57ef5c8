"""Computes digests that identify files by all of their bytes, which are read once.

A file counts as unchanged if its size, times, inode number and device are the same. The digest of a
large file is cached with these values below the cache folder, for all processes. A file written
within the last seconds is read again, because the next write may leave the same times. Knows
nothing about the contents of files.
"""

import json
import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from spec_bench.system import files

log = logging.getLogger(__name__)
SETTLED_S = 10.0  # since a file was written; file systems may round times to two seconds
_MIN_CACHED_BYTES = 1 << 20  # smaller files are read again by every process
_MIN_LOGGED_BYTES = 1 << 30  # reading larger files takes seconds, so it is logged
_digests: dict[str, str] = {}  # by the file's state


def hash_file_with_cache(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hex; reads the file only if it is new or changed.
    Raises OSError if it cannot be read or is no regular file.
    """
    old_stat = os.stat(path)
    if not stat.S_ISREG(old_stat.st_mode):  # opening a pipe would wait for ever
        raise OSError(0, "it is no file", str(path))
    state = _format_file_state(old_stat)
    if state in _digests:
        return _digests[state]
    name = files.hash_json([old_stat.st_dev, old_stat.st_ino], 24)
    cache_file = files.get_cache_folder() / "digests" / f"{name}.json"
    large = old_stat.st_size >= _MIN_CACHED_BYTES
    if large and (digest := _read_cached_digest(cache_file, state)):
        _digests[state] = digest
        return digest
    if old_stat.st_size >= _MIN_LOGGED_BYTES:
        log.info("reading %s, which identifies it; this is done once", path)
    digest = files.hash_file(path)
    new_stat = os.stat(path)
    write_time = max(new_stat.st_mtime_ns, new_stat.st_ctime_ns) / 1e9
    if _format_file_state(new_stat) == state and write_time < time.time() - SETTLED_S:
        _digests[state] = digest
        if large:
            with suppress(OSError):  # without a cache the file is read again
                content = {
                    "state": state,
                    "sha256": digest,
                    "check": _compute_cache_checksum(state, digest),
                }
                files.write_redacted_json(cache_file, content)
    return digest


def _read_cached_digest(cache_file: Path, state: str) -> str:
    """Reads the digest of a state from a cache file; "" if it has none or is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        content = json.loads(cache_file.read_bytes())
        if content["state"] == state and content["check"] == _compute_cache_checksum(
            state, content["sha256"]
        ):
            return str(content["sha256"])
    return ""


def _format_file_state(facts: os.stat_result) -> str:
    """Formats the values that change whenever a file is written or replaced."""
    times = f"{facts.st_mtime_ns} {facts.st_ctime_ns}"
    return f"{facts.st_size} {times} {facts.st_ino} {facts.st_dev}"


def _compute_cache_checksum(state: str, digest: str) -> str:
    return files.hash_json([state, digest])
