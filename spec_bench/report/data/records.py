"""The sources of a row: its cell's records by prompt, and where it was measured.

Both come from the cell's folder below ``<results>/runs`` if it exists, else from
``records.parquet`` beside the table, all that a fresh checkout has; the numbers are the same.
Nothing else in the report opens either.
"""

from __future__ import annotations

import functools
import os
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from spec_bench.records import cell_folder, parquet
from spec_bench.records.parquet import Packed, Scores
from spec_bench.records.types import Generation
from spec_bench.system import files


def repeats_of(results: Path, run_id: str) -> list[dict[str, Generation]]:
    """A cell's records by prompt id, of each repeat that has all prompts of the first, this one's
    first. Raises ValueError: the file of records cannot be read.
    """
    path = files.run_folder(files.results_of(results), run_id) / files.GENERATIONS
    if path.is_file():
        generations = cell_folder.read_lines(path)
    else:
        kept = _kept(results)
        generations = kept.generations(run_id) if kept else []
    repeats: dict[int, dict[str, Generation]] = {}
    for each in generations:
        repeats.setdefault(each.repeat, {})[each.prompt_id] = each
    first = repeats.get(0, {})
    numbers = takewhile(lambda repeat: first.keys() <= repeats.get(repeat, {}).keys(), count())
    return [{name: repeats[number][name] for name in first} for number in numbers] if first else []


def retimed_of(results: Path, run_id: str) -> list[Generation]:
    """A baseline's records of later sessions, which timed it again beside added cells; of other
    cells none.
    """
    run = files.run_folder(files.results_of(results), run_id)
    if (run / files.GENERATIONS).is_file():
        return cell_folder.read_retimed(run)
    kept = _kept(results)
    return kept.retimed(run_id) if kept else []


def scores_of(results: Path, run_id: str) -> Scores:
    """The score of each answer of a cell: a number, or the numbers that a score is made of. Raises
    ValueError: its scores, or the file of records, cannot be read or were altered.
    """
    folder = files.run_folder(files.results_of(results), run_id)
    if cell := cell_folder.read_cell(folder):
        return dict(cell.get("scores", {}))
    kept = _kept(results)
    return kept.scores(run_id) if kept else {}


def origin_of(results: Path, run_id: str) -> dict[str, Any] | None:
    """Returns the provenance of a cell, as ``measure.provenance`` has it; None if not recorded."""
    cell = cell_folder.read_cell(files.run_folder(files.results_of(results), run_id))
    if starts := cell.get("starts"):
        return dict(starts[-1])
    kept = _kept(results)
    return dict(kept.origins[run_id]) if kept and run_id in kept.origins else None


def check_records(results: Path) -> None:
    """Raises ValueError where the file beside a table is not as it was written."""
    path = files.records_file(results)
    if os.path.lexists(path):
        parquet.check(path)


def _kept(results: Path) -> Packed | None:
    """The records beside a table, read once while they stay the same; None where there are none."""
    path = files.records_file(results)
    if not os.path.lexists(path):
        return None
    state = path.lstat()
    return _read(path, state.st_ino, state.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _read(path: Path, *_: int) -> Packed:
    return parquet.read(path)
