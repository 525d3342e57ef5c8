"""The sources of a row: its cell's records by prompt, and where it was measured.

Both come from ``records.parquet`` beside the table, which is made with it, or of a cell that is not
in it from its folder below ``<results>/runs``. Nothing else in the report opens either.
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_bench.records import cell_folder, parquet
from spec_bench.records.parquet import Packed
from spec_bench.records.types import Generation
from spec_bench.system import files


def repeats_of(results: Path, run_id: str) -> list[dict[str, Generation]]:
    """A cell's records by prompt id, of each whole repeat. Raises ValueError: unreadable."""
    packed = packed_of(results, run_id)
    done = ((each, packed.generations_at(each.values())) for each in packed.repeats(run_id))
    return [dict(zip(names, each, strict=True)) for names, each in done]


def origin_of(results: Path, run_id: str) -> Mapping[str, Any] | None:
    """Returns the provenance of a cell, as ``measure.provenance`` has it; None if not recorded."""
    return packed_of(results, run_id).origins.get(run_id)


def packed_of(results: Path, run_id: str) -> Packed:
    """Records that a cell's are among, or none of it where it has none; a file is read once while
    it stays the same. Raises ValueError: records, or what their answers scored, cannot be read.
    """
    path = files.records_file(results)
    state = path.lstat() if os.path.lexists(path) else None
    kept = _read(path, state.st_ino, state.st_mtime_ns) if state else parquet.joined([])
    if run_id in kept:
        return kept
    run = files.run_folder(files.results_of(results), run_id)
    cell = cell_folder.read_cell(run)
    done, again = cell_folder.read_lines(run / files.GENERATIONS), cell_folder.read_retimed(run)
    origin = (cell.get("starts") or [None])[-1]
    return parquet.pack(run_id, done, origin, cell.get("scores"), again)


@functools.lru_cache(maxsize=4)
def _read(path: Path, *_: int) -> Packed:
    return parquet.read(path)
