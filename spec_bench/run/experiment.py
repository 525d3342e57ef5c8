"""Which cells belong to an experiment, and its CSV, rebuilt from what the cells left on disk.

Every job writes a note of its own, ``runs/jobs/<experiment>/<job_id>.json``, that lists its cells;
nobody else writes that file. The CSV is rebuilt from all notes and the cells' own results, so jobs
that end at the same moment on different machines need no lock on a shared file, and a process
killed at any point leaves a CSV that the next job's end, or a rerun, makes whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spec_bench import files
from spec_bench.run.identity import job_id
from spec_bench.run.store import CellStore
from spec_bench.sinks.csv import merge_csv


@dataclass(frozen=True)
class JobNote:
    """What a job leaves about itself.

    Attributes:
        number: its place in the sweep, 0 where there is none.
        place: labels that tell jobs of one number apart, so that their order never depends on time.
        cells: the run ids of its cells, in order.
    """

    number: int
    place: str
    cells: tuple[str, ...]


class Experiment:
    """The cells that share a name, and so a CSV.

    Args:
        results: the results folder.
        name: the experiment's name.
    """

    def __init__(self, results: Path, name: str) -> None:
        self.csv = files.results_file(results, name)
        self._results = results
        self._notes = files.jobs_folder(results, name)

    def add(self, note: JobNote) -> list[dict[str, Any]]:
        """Notes a job that has ended and rebuilds the CSV; its rows."""
        path = self._notes / f"{job_id(note.cells)}.json"
        files.write_json(path, asdict(note))
        return self.rebuild()

    def rebuild(self) -> list[dict[str, Any]]:
        """Rewrites the CSV until no job has ended since its notes were read; its rows.

        Whoever renames last has then seen every note: a note that comes later brings a rebuild of
        its own. Rows of the file that no note knows stay first, in their order.
        """
        state, rows = None, list[dict[str, Any]]()
        while state != (state := self._state()):
            order = self._order()
            found = [CellStore(self._results, run_id).result() for run_id in order]
            rows = merge_csv(self.csv, [result for result in found if result is not None], order)
        return rows

    def _order(self) -> Sequence[str]:
        """All run ids by their jobs' places in the sweep, each once."""
        notes = [JobNote(**json.loads(path.read_text(encoding="utf-8"))) for path in self._paths()]
        notes.sort(key=lambda note: (note.number, note.place))
        return list(dict.fromkeys(run_id for note in notes for run_id in note.cells))

    def _state(self) -> dict[str, tuple[int, int]]:
        """What changes whenever a job writes its note, even the same note again."""
        states = {path.name: path.stat() for path in self._paths()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in states.items()}

    def _paths(self) -> list[Path]:
        return sorted(self._notes.glob("*.json"))
