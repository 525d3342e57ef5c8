"""Files of JSON objects, one a line, packed or not: rows that know their line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Line(dict[str, Any]):
    """A row that remembers on which line of its file it stood."""

    def __init__(self, values: Mapping[str, Any], number: int) -> None:
        super().__init__(values)
        self.number = number  # from 1


def lines_of(file: Path, task: str) -> Iterator[Line]:
    """The rows of a file of JSON objects, one a line; blank lines are skipped.

    Read here and not by ``datasets``, which would make the lines' fields and their types equal.

    Raises:
        ValueError: a line that is no JSON object, by its number.
    """
    opened: Any = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield Line(_object(line, f"task {task}: {file.name}, line {number}"), number)


def _object(line: bytes, where: str) -> dict[str, Any]:
    """A line's JSON object.

    Raises:
        ValueError: no UTF-8, no JSON, no object, or half a character (one of a pair of
            surrogates), which no tokenizer takes and no file can keep.
    """
    try:
        values = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{where}: no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{where}: a {type(values).__name__}, not an object")
    try:
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"{where}: {half!r} is half a surrogate pair, no character") from None
    return values
