"""How a file tells whether it still is what was written: a digest of all of it, within it.

A JSON mapping has it under ``check``. A file of bytes has it where ``BLANK`` stood when its digest
was taken, so that it is checked before anybody parses the bytes: a parser given damaged ones may
crash, or take all memory. Knows nothing about what the files mean.
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


def add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a mapping, its keys hidden, with a digest of it all, which ``opened`` verifies."""
    content = redact_values(content)
    return {**content, "check": files.digest(content)}


def read_checked(path: Path) -> dict[str, Any]:
    """The mapping of a JSON file, without its digest. Raises ValueError: it is none, was altered,
    or has no digest. Raises OSError: it cannot be read.
    """
    content = json.loads(read_regular_file(path))
    if not isinstance(content, dict):
        raise UsageError("it is no mapping")
    if content.pop("check", None) != files.digest(content):
        raise UsageError("its check does not fit: it was altered")
    return content


def read_regular_file(path: Path) -> bytes:
    """Returns what a file holds. Raises ValueError: it is none, but a folder, a link or a pipe."""
    if os.path.lexists(path) and not path.is_file():
        raise UsageError("it is no file")
    return path.read_bytes()


def fill_in_checksum(data: bytes) -> bytes:
    """Returns a file's bytes with their digest in the place of the last ``BLANK``."""
    at = data.rfind(_MARK)
    if data[at : at + len(BLANK)] != BLANK:
        raise UsageError("no place for a digest")
    return _insert_checksum(data, at, hashlib.sha256(data).hexdigest().encode())


def check(data: bytes) -> None:
    """Raises ValueError: a file's bytes are not those that ``seal`` gave."""
    at = data.rfind(_MARK)
    if at < 0:
        raise UsageError("it has no digest, was cut, or is something else")
    digest = hashlib.sha256(_insert_checksum(data, at, b"0" * _DIGITS)).hexdigest()
    if data[at + len(_MARK) :][:_DIGITS] != digest.encode():
        raise UsageError("its digest does not fit: it was altered, or not copied whole")


def _insert_checksum(data: bytes, at: int, digits: bytes) -> bytes:
    """Returns the bytes with other digits after the mark that stands at ``at``."""
    start = at + len(_MARK)
    return data[:start] + digits + data[start + _DIGITS :]
