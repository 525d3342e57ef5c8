"""The tidy CSV: one row a cell, rewritten as a whole, so that a reader sees all of it or none."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spec_bench.records.types import CellResult
from spec_bench.sinks.past import superseded
from spec_bench.sinks.rows import row_of
from spec_bench.system import files
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
_ROUNDED = (
    "nodes_per_call",
    "block_efficiency",
    "mbsu",
    "acceptance_rate",
    "token_rate",
    "speedup",
)
_POINTS = ("prompts", "draft_calls", "parameter_ratio", *_ROUNDED)  # of what a search screened
_NO_ENDS: Mapping[str, float] = {}
NEEDED = ("pair", "target", "draft", "task", "decoder", "spec", "status", "run_id")


def merge_csv(
    path: Path,
    results: Iterable[CellResult],
    order: Iterable[str] = (),
    ended: Mapping[str, float] = _NO_ENDS,
) -> list[dict[str, Any]]:
    """Rewrites a results file from the union of its rows and ``results``.

    A row of ``results`` replaces the row with its run id; doing it twice changes nothing. There is
    no lock: who writes at the same time as others must look again (``jobs.store.experiment``). Rows
    of a past state go to the archive beside the file, and come back with their state. What a search
    screened goes to a file of its own, which is no evidence and has no intervals.

    Args:
        path: the file; made with its folder if it is missing.
        results: cells.
        order: run ids in the order of their rows. Rows that it does not name keep their places
            before all others, as far as the file has them, and after, where they are new.
        ended: run id -> when its last job ended, which tells past states from the present one.

    Returns:
        The rows as they were written, the screened ones first.
    """
    screened = files.screening_file(path)
    before = (*read_rows(screened), *read_rows(path))
    rows: dict[str, dict[str, Any]] = {row["run_id"]: dict(row) for row in before}
    named = list(dict.fromkeys(order))
    kept = [run_id for run_id in rows if run_id not in set(named)]
    rows.update({result.run_id: row_of(result) for result in results})
    wanted = [each for each in dict.fromkeys([*kept, *named, *rows]) if each in rows]
    past = superseded(list(rows.values()), ended)
    _archive(path, [rows[each] for each in wanted if each in past], {*wanted} - past)
    present = [rows[each] for each in wanted if each not in past]
    points = [row for row in present if row.get("stage") == "screen"]
    if points or screened.exists():
        _write_points(screened, points)
    return [*points, *write_csv(path, [row for row in present if row.get("stage") != "screen"])]


def _write_points(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes what tells cells apart, and a few numbers in five digits, without intervals.

    A complete row has no reasons: the columns that they are of are not in the file.
    """
    shown = {*columns.names_of("identity", "setting", "state", "score"), *_POINTS}
    filled = {name for row in rows for name, value in row.items() if value not in (None, "")}
    names = columns.ordered({*NEEDED, *(shown & filled)})
    files.write_csv(path, [{name: _point(name, row) for name in names} for row in rows], names)


def _point(name: str, row: Mapping[str, Any]) -> object:
    value = row.get(name, "")
    if name == "reason" and row.get("status") == "complete":
        return ""
    return f"{float(value):.5g}" if name in _ROUNDED and value not in (None, "") else value


def _archive(path: Path, past: list[dict[str, Any]], present: set[str]) -> None:
    """Adds rows to the archive beside a results file, each once, before they leave that file."""
    archive = files.archive_file(path)
    before: dict[str, dict[str, Any]] = {row["run_id"]: dict(row) for row in read_rows(archive)}
    rows = {**before, **{str(row["run_id"]): row for row in past}}
    rows = {run_id: row for run_id, row in rows.items() if run_id not in present}
    if rows.keys() == before.keys():
        return
    if new := len(rows.keys() - before.keys()):
        log.info("%d rows of other weights, data or code are now in %s", new, archive)
    write_csv(archive, list(rows.values()))


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a results file as text; none where there is no file.

    Raises:
        ValueError: it is no results file; the message names the line.
    """
    return files.read_csv(path, NEEDED)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Writes rows with every column that a file may have, and what else they have after these.

    Returns:
        The rows with all of these columns.
    """
    names = columns.ordered([*columns.header(), *(name for row in rows for name in row)])
    whole = [{name: row.get(name, "") for name in names} for row in rows]
    files.write_csv(path, whole, names)
    return whole
