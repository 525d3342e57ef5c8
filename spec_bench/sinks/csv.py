"""The tidy CSV: one row a cell, merged by run id, rewritten as a whole."""

from __future__ import annotations

import csv
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spec_bench.records import CellResult
from spec_bench.sinks.rows import LABELS, row_of


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a results file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def merge_csv(path: Path, results: Iterable[CellResult]) -> None:
    """Rewrites a results file from the union of its rows and ``results``.

    A row of ``results`` replaces the row with its run id in place; doing it twice changes nothing.

    Args:
        path: the file; made with its folder if it is missing.
        results: the cells of one job.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Jobs of a parallel sweep merge into one file; the folder itself is the lock.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        rows: dict[str, dict[str, Any]] = {row["run_id"]: dict(row) for row in read_csv(path)}
        rows.update({result.run_id: row_of(result) for result in results})
        _write(path, list(rows.values()))
    finally:
        os.close(folder)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows with the union of their columns, labels first; a missing value is empty."""
    columns = list(dict.fromkeys([*LABELS, *(name for row in rows for name in row)]))
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
