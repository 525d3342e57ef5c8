"""The tidy CSV: one row a cell, rewritten as a whole, so that a reader sees all of it or none."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from spec_bench.records import CellResult
from spec_bench.sinks.rows import LABELS, row_of


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a results file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def merge_csv(path: Path, results: Iterable[CellResult], order: Iterable[str] = ()) -> None:
    """Rewrites a results file from the union of its rows and ``results``.

    A row of ``results`` replaces the row with its run id; doing it twice changes nothing. There is
    no lock: who writes at the same time as others must look again (``run.experiment``).

    Args:
        path: the file; made with its folder if it is missing.
        results: cells.
        order: run ids in the order of their rows. Rows that it does not name keep their places
            before all others, as far as the file has them, and after, where they are new.
    """
    rows: dict[str, dict[str, Any]] = {row["run_id"]: dict(row) for row in read_csv(path)}
    named = list(dict.fromkeys(order))
    kept = [run_id for run_id in rows if run_id not in set(named)]
    rows.update({result.run_id: row_of(result) for result in results})
    wanted = dict.fromkeys([*kept, *named, *rows])
    write_csv(path, [rows[run_id] for run_id in wanted if run_id in rows])


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows with the union of their columns, labels first; a missing value is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys([*LABELS, *(name for row in rows for name in row)]))
    # Not the process id: processes of two machines may write to one shared folder.
    partial = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    with partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
