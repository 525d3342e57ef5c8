"""What identifies a file: a digest of all of its bytes, which are read once.

Its size, its times, its number and its device tell whether a file still is the one that was read.
The digest of a large one is kept with these below the cache folder, for all processes. One that was
written within the last seconds is read again: the next write may leave the same times. Knows
nothing about what is in a file.
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
SETTLED_S = 10.0  # since a file was written; times of file systems are no finer than two seconds
_KEPT_BYTES = 1 << 20  # smaller files are read again by every process
_LONG_BYTES = 1 << 30  # reading so much takes seconds, which a line explains
_digests: dict[str, str] = {}  # by the file's state


def read_digest(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hex, from memory where the file has not changed.
    Raises OSError: it cannot be read, or is no file.
    """
    before = os.stat(path)
    if not stat.S_ISREG(before.st_mode):  # opening a pipe would wait for ever
        raise OSError(0, "it is no file", str(path))
    state = _format_state(before)
    if state in _digests:
        return _digests[state]
    name = files.digest([before.st_dev, before.st_ino], 24)
    kept = files.cache_folder() / "digests" / f"{name}.json"
    large = before.st_size >= _KEPT_BYTES
    if large and (digest := _recall(kept, state)):
        _digests[state] = digest
        return digest
    if before.st_size >= _LONG_BYTES:
        log.info("reading %s, which identifies it; this is done once", path)
    digest = files.file_digest(path)
    after = os.stat(path)
    written = max(after.st_mtime_ns, after.st_ctime_ns) / 1e9
    if _format_state(after) == state and written < time.time() - SETTLED_S:
        _digests[state] = digest
        if large:
            with suppress(OSError):  # without a memory it is read again
                content = {"state": state, "sha256": digest, "check": _check(state, digest)}
                files.write_json(kept, content)
    return digest


def _recall(kept: Path, state: str) -> str:
    """Returns the digest that a file of the cache keeps for a state; "" where it keeps none."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        content = json.loads(kept.read_bytes())
        if content["state"] == state and content["check"] == _check(state, content["sha256"]):
            return str(content["sha256"])
    return ""


def _format_state(facts: os.stat_result) -> str:
    """Formats what changes whenever a file is written or another one takes its place."""
    times = f"{facts.st_mtime_ns} {facts.st_ctime_ns}"
    return f"{facts.st_size} {times} {facts.st_ino} {facts.st_dev}"


def _check(state: str, digest: str) -> str:
    return files.digest([state, digest])
