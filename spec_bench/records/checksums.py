"""Checksums within files, to detect that a file was altered.

A JSON mapping has the digest of its other content under ``check``. A binary file has the digest in
place of ``BLANK``, so that it is verified before the bytes are parsed: damaged bytes may crash a
parser or make it take all memory. Knows nothing about what the files mean.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.redaction import redact_values

_MARK = b"sha256:"
_DIGITS = 2 * hashlib.sha256().digest_size
BLANK = _MARK + b"0" * _DIGITS


def redact_and_add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Redacts a mapping's secrets and adds a digest, which ``read_verified_json`` verifies."""
    content = redact_values(content)
    return {**content, "check": files.hash_json(content)}


def read_verified_json(path: Path) -> dict[str, Any]:
    """Reads the mapping of a JSON file and verifies its digest. Raises UsageError if the file holds
    no mapping, was altered or has no digest; OSError if it cannot be read.
    """
    content = json.loads(read_regular_file(path))
    if not isinstance(content, dict):
        raise UsageError("it is no mapping")
    if content.pop("check", None) != files.hash_json(content):
        raise UsageError("its check does not fit: it was altered")
    return content


def read_regular_file(path: Path) -> bytes:
    """Reads a file's bytes. Raises UsageError if it is a folder, a broken link or a pipe."""
    if os.path.lexists(path) and not path.is_file():
        raise UsageError("it is no file")
    return path.read_bytes()


def fill_in_checksum(data: bytes) -> bytes:
    """Replaces the last ``BLANK`` in a file's bytes with their digest."""
    mark_start = data.rfind(_MARK)
    if data[mark_start : mark_start + len(BLANK)] != BLANK:
        raise UsageError("no place for a digest")
    return _insert_checksum(data, mark_start, hashlib.sha256(data).hexdigest().encode())


def verify_checksum(data: bytes) -> None:
    """Verifies a file's digest. Raises UsageError if it was altered since ``fill_in_checksum``."""
    mark_start = data.rfind(_MARK)
    if mark_start < 0:
        raise UsageError("it has no digest, was cut, or is something else")
    digest = hashlib.sha256(_insert_checksum(data, mark_start, b"0" * _DIGITS)).hexdigest()
    if data[mark_start + len(_MARK) :][:_DIGITS] != digest.encode():
        raise UsageError("its digest does not fit: it was altered, or not copied whole")


def _insert_checksum(data: bytes, mark_start: int, digits: bytes) -> bytes:
    """Replaces the digits after the mark at ``mark_start``."""
    start = mark_start + len(_MARK)
    return data[:start] + digits + data[start + _DIGITS :]
