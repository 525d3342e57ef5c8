"""The tidy CSV: one row a cell, rewritten as a whole, so that a reader sees all of it or none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spec_bench import columns, files
from spec_bench.records import CellResult
from spec_bench.sinks.rows import row_of


def merge_csv(
    path: Path, results: Iterable[CellResult], order: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Rewrites a results file from the union of its rows and ``results``.

    A row of ``results`` replaces the row with its run id; doing it twice changes nothing. There is
    no lock: who writes at the same time as others must look again (``run.store``).

    Args:
        path: the file; made with its folder if it is missing.
        results: cells.
        order: run ids in the order of their rows. Rows that it does not name keep their places
            before all others, as far as the file has them, and after, where they are new.

    Returns:
        The rows as they were written.
    """
    rows: dict[str, dict[str, Any]] = {row["run_id"]: dict(row) for row in files.read_csv(path)}
    named = list(dict.fromkeys(order))
    kept = [run_id for run_id in rows if run_id not in set(named)]
    rows.update({result.run_id: row_of(result) for result in results})
    wanted = dict.fromkeys([*kept, *named, *rows])
    return write_csv(path, [rows[run_id] for run_id in wanted if run_id in rows])


def write_csv(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Writes rows with every column that a file may have, and what else they have after these.

    Returns:
        The rows with all of these columns.
    """
    names = columns.ordered([*columns.header(), *(name for row in rows for name in row)])
    whole = [{name: row.get(name, "") for name in names} for row in rows]
    files.write_csv(path, whole, names)
    return whole
