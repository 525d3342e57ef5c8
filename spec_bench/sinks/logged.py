"""What W&B has been given, noted beside the records, so that nothing is logged twice.

A note belongs to one W&B run in one project and mode: what was logged offline is logged again when
the same results are sent online, and a cell that two experiments of one project share is logged
once, in the group of the first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spec_bench.system import files, locks

FILE = "wandb.json"


@dataclass(frozen=True)
class Note:
    """What one W&B run holds.

    Attributes:
        id: the W&B run's id.
        entity: the account; "" for the user's own.
        project: the project.
        mode: ``online`` or ``offline``.
        content: what the summary holds: a cell's status, or the digest of a table.
        steps: history lines logged, which is the step of the next one.
    """

    id: str
    entity: str
    project: str
    mode: str
    content: str = ""
    steps: int = 0

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What tells two notes of one file apart."""
        return (self.id, self.entity, self.project, self.mode)

    def now(self, content: str, steps: int) -> Note:
        """The note after these steps."""
        return replace(self, content=content, steps=steps)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Waits until no other process logs from this folder; makes it if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        locks.lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def recall(folder: Path, empty: Note) -> Note:
    """The note of that run in that place; ``empty`` where nothing was logged."""
    return next((note for note in _notes(folder) if note.place == empty.place), empty)


def remember(folder: Path, note: Note) -> None:
    """Writes a note in place of the run's earlier one."""
    others = [one for one in _notes(folder) if one.place != note.place]
    files.write_json(folder / FILE, [asdict(one) for one in (*others, note)])


def _notes(folder: Path) -> list[Note]:
    path = folder / FILE
    if not path.exists():
        return []
    return [Note(**note) for note in json.loads(path.read_text(encoding="utf-8"))]
