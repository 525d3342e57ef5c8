"""Where the files of an experiment lie, how they are written, and what a digest is.

``<results>/<name>/results.csv`` is an experiment's table, ``records.parquet`` beside it what its
cells measured prompt by prompt. ``<results>/runs/<run_id>/`` is what one cell left: its settings,
provenance, records and result. Everything is written beside its place first and renamed there, so
that a reader, or a rerun after a kill, sees all of a file or none. Knows the file system only.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import spec_bench

RUNS = "runs"
RESULTS = "results.csv"
ARCHIVE = "archive.csv"
RECORDS = "records.parquet"
CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
GENERATIONS = "generations.jsonl"
SCORES = "scores.json"
RESULT = "result.json"
TRACE = "trace.txt"


def package_folder(name: str) -> Path:
    """A folder of data: in the package for a wheel, beside it in a checkout.

    Raises:
        ValueError: the installation carries none.
    """
    package = Path(spec_bench.__file__).resolve().parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise ValueError(f"no folder {name!r} in {package} or beside it")


def results_file(results: Path, name: str) -> Path:
    """An experiment's table."""
    return results / name / RESULTS


def archive_file(table: Path) -> Path:
    """The rows of past states that left an experiment's table; no report reads them."""
    return table.with_name(ARCHIVE)


def records_file(table: Path) -> Path:
    """What the cells of an experiment's table measured, prompt by prompt."""
    return table.with_name(RECORDS)


def run_folder(results: Path, run_id: str) -> Path:
    """What one cell left on disk."""
    return results / RUNS / run_id


def jobs_folder(results: Path, name: str) -> Path:
    """The notes of an experiment's jobs."""
    return results / RUNS / "jobs" / name


def judgements_folder(results: Path) -> Path:
    """The judgements of all experiments, by what was asked."""
    return results / RUNS / "judgements"


def results_of(file: Path) -> Path:
    """The results folder that an experiment's table lies in."""
    return file.resolve().parent.parent


def results_files(results: Path) -> list[Path]:
    """All tables below a results folder, ``<name>/`` or ``<group>/<name>/``, by path."""
    found = {*results.glob(f"*/{RESULTS}"), *results.glob(f"*/*/{RESULTS}")}
    return sorted(path for path in found if RUNS not in path.relative_to(results).parts)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` when the block ends well.

    The folder is made. After an exception the old file stands and the new one is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not the process id: processes of two machines may write to one shared folder.
    partial = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def set_aside(path: Path, copy: bool = False) -> Path:
    """Gives a file that cannot be used another name beside it, ``NAME.bad-1``; the new one.

    Args:
        path: the file, or what stands in its place.
        copy: leave it where it is too, for what is about to take its place.
    """
    taken = (path.with_name(f"{path.name}.bad-{number}") for number in count(1))
    aside = next(each for each in taken if not os.path.lexists(each))
    if copy and path.is_file():
        write_bytes(aside, path.read_bytes())
    else:
        os.replace(path, aside)
    return aside


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file as a whole."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Writes a text file as a whole, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file as a whole."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Writes a CSV as a whole; a value that a row does not have is empty.

    Raises:
        ValueError: a row has a value of no column.
    """
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV as text; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def digest(value: Any, length: int = 12) -> str:
    """The first hex digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
