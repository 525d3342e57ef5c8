"""One cell while its job runs: what it has done, what it lacks, and why it was given up.

``jobs.store`` handles what it leaves on disk.
"""

from __future__ import annotations

import logging
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.settings import job_id
from spec_bench.jobs.store.store import CellStore, Repeats
from spec_bench.jobs.work.passes import PassTally
from spec_bench.records.types import Reason, Request
from spec_bench.settings.fields import first_line
from spec_bench.system import files

if TYPE_CHECKING:
    from spec_bench.decode.config import AnyDecoder
    from spec_bench.measure.provenance import PeakMemory

log = logging.getLogger(__name__)
_MESSAGE_LENGTH = 300


@dataclass
class CellRun:
    """One cell while its job runs."""

    cell: Cell  # which decoder
    store: CellStore  # where its records go
    memory: PeakMemory  # peak memory of its windows
    passes: PassTally = field(default_factory=PassTally)  # how its windows' forward passes ran
    # generations by repeat and prompt id, those of an earlier, killed job included
    done: Repeats = field(default_factory=lambda: defaultdict(dict))
    # repeat and prompt id of records that no baseline was timed beside
    unpaired: set[tuple[int, str]] = field(default_factory=set)
    # None until it is built, and for a cell that was complete before
    decoder: AnyDecoder | None = None
    failure: Reason | None = None  # why the cell was given up; None while it goes on

    @property
    def run_id(self) -> str:
        """The hash of the settings that change its numbers."""
        return self.store.folder.name

    def missing(self, requests: Sequence[Request], repeat: int = 0) -> list[Request]:
        """The requests it still has to decode in a repeat; none once it has failed."""
        return [] if self.decoder is None else self.lacking(requests, repeat)

    def lacking(self, requests: Sequence[Request], repeat: int = 0) -> list[Request]:
        """As ``missing``, and for failed cells too: requests without a record timed beside AR."""
        return [
            each
            for each in requests
            if each.prompt_id not in self.done[repeat] or (repeat, each.prompt_id) in self.unpaired
        ]

    def fail(self, error: Exception) -> None:
        """Gives the cell up; its trace is beside its records.

        Raises:
            OSError: the error itself, if its folder can take no more: not even a trace.
        """
        refused_path = (
            error.filename if isinstance(error, OSError) and files.refused(error) else None
        )
        if refused_path is not None and Path(refused_path).is_relative_to(self.store.folder):
            raise error
        files.write_text(self.store.trace_path, "".join(traceback.format_exception(error)))
        message = first_line(error)[:_MESSAGE_LENGTH]
        trace = str(self.store.trace_path)
        self.failure = Reason("", f"{type(error).__name__}: {message}", trace)
        self.decoder = None
        log.error("%s failed: %s", self.cell.title, self.failure)


def job_of(runs: Sequence[CellRun]) -> str:
    """The id of the job that these cells make up."""
    return job_id(run.run_id for run in runs)
