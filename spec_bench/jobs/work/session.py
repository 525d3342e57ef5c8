"""One job while it works: everything that its steps share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.metering import Metering
from spec_bench.jobs.work.pairing import Timings, timings_of, unpaired
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.measure.provenance import Machine
from spec_bench.records.types import Request


@dataclass
class Session:
    """One job while it works, in one process."""

    settings: JobSettings  # the job's
    runs: Sequence[CellRun]  # all its cells, the baseline first where there is one
    pending: Sequence[CellRun]  # those without a complete result
    prompts: Prompts  # what is decoded
    metering: Metering  # its energy meter, open
    machine: Machine  # what it runs on
    against: Timings = field(default_factory=dict)  # every timing of the baseline
    # names this process's work on the job: what has one name was decoded in turn
    sitting: str = field(default_factory=lambda: uuid4().hex[:12])

    @property
    def requests(self) -> Sequence[Request]:
        """Everything that each cell decodes."""
        return self.prompts.requests

    @property
    def baseline(self) -> CellRun | None:
        """Plain decoding; none where a server has none."""
        return baseline_of(self.runs)

    def active(self) -> list[CellRun]:
        """The cells to work on, the baseline first where one of them decodes anything.

        Reads the baseline's timings, and finds the cells' records that have none beside them.
        """
        baseline = self.baseline
        if baseline is None:
            return list(self.pending)
        self.against = timings_of(baseline)
        cells = [run for run in self.pending if run is not baseline]
        for run in cells:
            run.unpaired = unpaired(run.done, self.against)
        repeats = range(self.settings.asked.repeats)
        decoding = any(run.lacking(self.requests, each) for run in cells for each in repeats)
        return [baseline, *cells] if decoding or baseline in self.pending else cells


def baseline_of(runs: Sequence[CellRun]) -> CellRun | None:
    """The baseline of a job's cells, which stands first."""
    return runs[0] if runs[0].cell.name == BASELINE else None
