"""What a finished job leaves: the note about itself, and what its sinks are given.

Knows settings, results and the cells' folders; nothing about Hydra or processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.store.experiment import JobNote
from spec_bench.jobs.store.store import CellStore
from spec_bench.records.types import CellResult
from spec_bench.sinks.rows import labels_of
from spec_bench.sinks.sink import LoggedCell, Sink
from spec_bench.system import files


def note_of(settings: JobSettings, results: Sequence[CellResult], number: int) -> JobNote:
    """The note that makes a job's cells part of its table."""
    labels = labels_of(settings.facts(settings.cells[0]))
    cells = tuple(result.run_id for result in results)
    return JobNote(number, json.dumps(labels, sort_keys=True), cells, settings.stage)


def feed(
    sinks: Sequence[Sink],
    settings: JobSettings,
    results: Sequence[CellResult],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Gives every sink the job's cells, and the table's rows of its pair and task."""
    place = settings.pair.name, settings.task.name
    job_rows = [row for row in rows if (row["pair"], row["task"]) == place]
    logged = [_logged(settings.results, result) for result in results]
    for each in sinks:
        each.take(logged, job_rows)


def _logged(results: Path, result: CellResult) -> LoggedCell:
    """A cell's row, resolved settings and records, as its folder holds them."""
    store = CellStore(results, result.run_id)
    config = yaml.safe_load((store.folder / files.CONFIG).read_text(encoding="utf-8"))
    return LoggedCell(result, dict(config), tuple(store.load().values()), store.folder)
