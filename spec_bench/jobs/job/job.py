"""Who decodes a job's cells: models in this process (``models``) or a server (``served``)."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from time import perf_counter
from typing import Any

from spec_bench.core import processes
from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.cache import CachePool
from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.served_cells import SERVER, client
from spec_bench.jobs.config.settings import JobSettings, run_id
from spec_bench.jobs.job.turns import batches, decode_in_turn
from spec_bench.jobs.rows.collect import collect
from spec_bench.jobs.store.store import CellStore, FollowerStore
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.metering import Metering, ordinals
from spec_bench.jobs.work.models import (
    heads_of,
    models_of,
    ran_with,
    tokenizer_of,
    use_threads,
    warn_of_misreading,
)
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.jobs.work.session import Session, baseline_of
from spec_bench.measure.provenance import Machine, PeakMemory, provenance
from spec_bench.records.types import CellResult, Request
from spec_bench.server.decoder import Asking, ServedDecoder
from spec_bench.server.endpoint import Server, fit


class Backend(ABC):
    """Gives cells their decoders."""

    vocabulary: int  # tokens that the target knows; ids of records must lie below

    @abstractmethod
    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Builds each cell's decoder and warms it up; one that cannot be has failed.

        Raises:
            ValueError: a prompt does not fit; nothing is decoded.
        """

    @abstractmethod
    def ran_with(self, session: Session) -> dict[str, Any]:
        """What only those who decode tell: fields of ``CellFacts``."""

    def finish(self, session: Session) -> None:  # noqa: B027 - most have nothing to do
        """Looks at what was decoded, before results are collected."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Ends what was opened."""


# A pair's models decode a job's cells, here and in the processes that share a split target.


log = logging.getLogger(__name__)
_WARMUP_TOKENS = 4  # an iteration or a few
_CAPTURE_TOKENS = 16  # enough for every kind of forward pass to have been captured


class ModelBackend(Backend):
    """Loaded models; all cells share them and one pool of caches."""

    def __init__(self, settings: JobSettings, tokenizer: Any, tokens: int) -> None:
        self._tokenizer = tokenizer
        self.models = models_of(settings.pair, tokens)
        self.vocabulary = self.models[0].vocab_size
        self._preparing = self._prepared = 0.0
        use_threads(settings, self.models[0])

    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Builds each cell's decoder, checks that every prompt fits, allocates, warms up."""
        start, settings, requests = perf_counter(), session.settings, session.requests
        target, drafts, pool = self.models[0], self.models[1:], CachePool()
        for run in runs:
            try:
                run.decoder = run.cell.config.build(
                    target,
                    drafts[: run.cell.drafts],
                    settings.sampling,
                    settings.engine.batch_size,
                    pool,
                    heads_of(settings.pair, run.cell.heads, target),
                )
                if requests:
                    warn_of_misreading(run.decoder, requests[0].prompt_ids)
            except Exception as error:
                run.fail(error)
                continue
            run.decoder.preflight(requests)
        # All make room before any warms up: what is made to run over a cache is lost when it grows.
        for step in (_make_room, _warm_up):
            for run in _needed(session, runs):
                if run.decoder:
                    try:
                        step(settings, run.decoder, requests)
                    except Exception as error:
                        run.fail(error)
        lengths = [len(request.prompt_ids) for request in requests]
        pool.prepare(settings.engine.batch_size, min(lengths, default=1))
        self._prepared = perf_counter()
        self._preparing = self._prepared - start

    def finish(self, session: Session) -> None:
        """Says what capturing cost."""
        decoding = perf_counter() - self._prepared
        how = session.settings.pair.specs[0].compile
        if how != "none" and self._preparing > decoding:
            log.warning(
                "engine.compile=%s took %.0f s before the first prompt, the prompts %.0f s: "
                "a job of this size is done sooner with engine.compile=none",
                *(how, self._preparing, decoding),
            )

    def ran_with(self, session: Session) -> dict[str, Any]:
        """What the loaded models tell."""
        return ran_with(session.settings, self.models[0], self._tokenizer)


def _needed(session: Session, runs: Sequence[CellRun]) -> list[CellRun]:
    """The cells that will decode; the baseline is timed beside whatever does."""
    repeats = range(session.settings.asked.repeats)
    missing = [run for run in runs if any(run.missing(session.requests, each) for each in repeats)]
    return [run for run in runs if run in missing or (missing and run.cell.name == BASELINE)]


def _make_room(settings: JobSettings, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Allocates for the longest request."""
    decoder.reserve(
        max(decoder.slots_needed(len(r.prompt_ids), r.max_new_tokens) for r in requests)
    )


def _warm_up(settings: JobSettings, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Decodes a few tokens that nothing records."""
    captured = settings.pair.specs[0].compile != "none"
    most = _CAPTURE_TOKENS if captured else _WARMUP_TOKENS
    for batch in list(batches(requests, settings.engine.batch_size))[: settings.asked.warmup]:
        short = [replace(r, max_new_tokens=min(r.max_new_tokens, most)) for r in batch]
        decoder.generate(short, settings.asked.seed)


# A server decodes a job's cells: asked in turn with a plain one, on disk as answers come.
#
# Of the models only the target's tokenizer is loaded. Prompts, seeds, turns, records and results
# are those of any other job.


class ServerBackend(Backend):
    """Servers that run already, one a cell."""

    def __init__(self, settings: JobSettings, tokenizer: Any, tokens: int) -> None:
        self.vocabulary = tokens
        self._tokenizer = tokenizer
        self._servers: list[Server] = []
        self._asking = _asking(settings, tokenizer, tokens)

    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Each cell's decoder over its server, warmed up; one whose server is silent has failed."""
        settings, requests = session.settings, session.requests
        assert settings.served is not None
        for run in runs:
            server = client(settings.served, run.cell)
            self._servers.append(server)
            decoder: Any = ServedDecoder(  # of no models
                server, self._asking, settings.engine.batch_size, settings.served.rate
            )
            run.decoder = decoder
            decoder.preflight(requests)
            if any(run.lacking(requests, repeat) for repeat in range(settings.asked.repeats)):
                try:
                    _warm_up_server(settings, decoder, requests)
                except Exception as error:
                    run.fail(error)

    def ran_with(self, session: Session) -> dict[str, Any]:
        """What the server says of itself."""
        named = {library_of(server) for server in self._servers}
        return {
            "device": SERVER,
            "stop_rule": session.settings.task.stop_rule(self._tokenizer),
            "library": named.pop() if len(named) == 1 else SERVER,
        }

    def close(self) -> None:
        """Closes the connections."""
        for server in self._servers:
            server.close()


def _asking(settings: JobSettings, tokenizer: Any, tokens: int) -> Asking:
    """What every request says."""
    sampling = settings.sampling
    asking = Asking(sampling.temperature, sampling.top_k, sampling.top_p, tokens)
    if settings.served is None or settings.served.tokens == "ids":
        return asking
    return replace(
        asking, tokenise=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    )


def _warm_up_server(
    settings: JobSettings, decoder: ServedDecoder, requests: Sequence[Request]
) -> None:
    """A few tokens that nothing records."""
    for batch in list(batches(requests, settings.engine.batch_size))[: settings.asked.warmup]:
        short = [
            replace(each, max_new_tokens=min(each.max_new_tokens, _WARMUP_TOKENS)) for each in batch
        ]
        decoder.generate(short, settings.asked.seed)


def library_of(server: Server) -> str:
    """A server's name and version as far as it tells them; vLLM says both."""
    if server.kind == "llama_cpp":
        return f"llama.cpp {_said(server.read('props'), 'build_info')}".strip()
    version = _said(server.read("version"), "version")
    if not version:
        return SERVER
    known = "vllm:" in (server.read("metrics") or "")
    return f"{'vllm' if known else SERVER} {version}"


def _said(answer: str | None, name: str) -> str:
    """A text in a server's JSON, in one line; "" where there is none."""
    try:
        value = json.loads(answer or "{}").get(name)
    except (ValueError, AttributeError):
        value = None
    return fit(value, longest=40) if isinstance(value, str) else ""


# One job: every cell's records on disk as they come, and its results collected.
#
# `turns` says how the cells take turns, a `backend` who decodes them. The baseline is among the
# cells even if it was complete before (`work.pairing`). A killed job continues after its last
# record.


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
        return ServerBackend(settings, tokenizer, tokens)

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
