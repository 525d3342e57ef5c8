"""One job: every cell's records on disk as they come, and its results collected.

``turns`` says how the cells take turns, a ``backend`` who decodes them. The baseline is among the
cells even if it was complete before (``work.pairing``). A killed job continues after its last
record.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from typing import Any

from spec_bench.core import processes
from spec_bench.jobs.config.settings import JobSettings, run_id
from spec_bench.jobs.job.backend import Backend
from spec_bench.jobs.job.turns import decode_in_turn
from spec_bench.jobs.rows.collect import collect
from spec_bench.jobs.store.store import CellStore, FollowerStore
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.metering import Metering, ordinals
from spec_bench.jobs.work.models import tokenizer_of
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.jobs.work.session import Session, baseline_of
from spec_bench.measure.machine import Machine
from spec_bench.measure.memory import PeakMemory
from spec_bench.measure.provenance import provenance
from spec_bench.records.types import CellResult

log = logging.getLogger(__name__)


def run_job(settings: JobSettings) -> list[CellResult]:
    """Runs what is not yet complete; one result per cell of the job, the baseline first where there
    is one.

    Raises:
        ValueError: models or prompts that cannot work together, before any decoding.
    """
    settings = settings.pinned()
    with ExitStack() as held:
        runs = _open_cells(settings, held)
        pending = [run for run in runs if not run.store.complete(settings.asked.repeats)]
        if pending:
            _work(settings, runs, pending, held)
        processes.wait_for_all()
        results = [run.store.result() for run in runs]
    return [result for result in results if result is not None]


def _work(
    settings: JobSettings, runs: list[CellRun], pending: list[CellRun], held: ExitStack
) -> None:
    """Decodes what cells lack, and writes their results."""
    metering = held.enter_context(Metering(settings))
    machine = held.enter_context(Machine(settings.device, ordinals(settings)))
    tokenizer, tokens = tokenizer_of(settings.pair)
    prompts = Prompts.build(settings, tokenizer)
    backend = held.enter_context(closing(_backend(settings, tokenizer, tokens)))
    session = Session(settings, runs, pending, prompts, metering, machine)
    _mend_tokens(session, backend.vocabulary)
    active = session.active()
    origin = provenance()
    for run in pending:
        run.store.describe(settings.cell_settings(run.cell), origin)
    backend.prepare(session, active)
    processes.wait_for_all()  # none writes before all have read
    decode_in_turn(session, active)
    backend.finish(session)
    if processes.rank() == 0:
        collect(session, backend.ran_with(session))


def _backend(settings: JobSettings, tokenizer: Any, tokens: int) -> Backend:
    """Who decodes; models are loaded here."""
    if settings.served is not None:
        from spec_bench.jobs.job.served import ServerBackend

        return ServerBackend(settings, tokenizer, tokens)
    from spec_bench.jobs.job.models import ModelBackend

    return ModelBackend(settings, tokenizer, tokens)


def _open_cells(settings: JobSettings, held: ExitStack) -> list[CellRun]:
    """The job's cells with their stores locked, always in the same order against deadlock."""
    runs = []
    kind = FollowerStore if processes.rank() else CellStore
    for cell in settings.cells:
        store = kind(settings.results, run_id(settings.cell_settings(cell)))
        runs.append(CellRun(cell, store, PeakMemory(settings.device)))
    for run in sorted(runs, key=lambda run: run.store.folder.name):
        run.store.lock()
        held.callback(run.store.unlock)
    for run in runs:
        if processes.rank() == 0:
            run.done = run.store.mend(settings.cell_settings(run.cell))
    processes.wait_for_all()  # none reads before bad files are set aside
    for run in runs:
        if processes.rank():
            run.done = run.store.load_repeats()
        if run.store.complete(settings.asked.repeats):
            log.info("%s is complete: %s", run.cell.title, run.store.folder)
    return runs


def _mend_tokens(session: Session, vocabulary: int) -> None:
    """Sets aside records of the cells and the baseline whose token ids the target does not know."""
    if processes.rank() == 0:
        baseline = baseline_of(session.runs)
        first = [] if baseline is None else [baseline]
        for run in [*first, *(each for each in session.pending if each is not baseline)]:
            run.done = run.store.mend_tokens(vocabulary)
