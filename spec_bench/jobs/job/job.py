"""One job: every cell's records on disk as they come, and its results collected.

``session`` says how the cells take turns, a backend who decodes them: the pair's models, here and
in the processes that share a split target, or a server. The baseline is among the cells even if it
was complete before. A killed job continues after its last record.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import Any, Literal, cast

import torch

from spec_bench.core import processes
from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.cache import CachePool
from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.served_cells import SERVER, make_client
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.collect import write_results
from spec_bench.jobs.job.session import GIVEN_UP, CellRun, Session, batches, decode_interleaved
from spec_bench.jobs.store.store import CellStore, ReadOnlyCellStore
from spec_bench.jobs.work import models
from spec_bench.jobs.work.metering import EnergyMetering, gpu_ordinals
from spec_bench.jobs.work.prompts import JobPrompts
from spec_bench.measure.provenance import Machine, PeakMemory, device_name, machine, provenance
from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.plain import compare_with_printed, find_printed
from spec_bench.records.types import CellResult, PromptError, Request
from spec_bench.server.decoder import RequestOptions, ServedDecoder
from spec_bench.server.endpoint import Server, one_short_line
from spec_bench.settings.fields import one_line
from spec_bench.settings.foreign import parse_json
from spec_bench.sinks.console import show_spinner
from spec_bench.sinks.rows import read_rows
from spec_bench.system import files
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
RECORDED_GAIN = 2.5  # of an eager iteration's seconds over a recorded one's, on an H100
_WARMUP_TOKENS = 4  # an iteration or a few
# Tells others what the job does now.
StateCallback = Callable[[Literal["waiting", "running"]], None]
_CAPTURE_TOKENS = 16  # enough for every kind of forward pass to have been captured


def run_job(settings: JobSettings, says: StateCallback = lambda state: None) -> list[CellResult]:
    """Runs what is not yet complete; one result per cell of the job, the baseline first where there
    is one. Raises ValueError: models or prompts that cannot work together, before any decoding.
    """
    settings = settings.pin_revisions()
    abandoned = True
    while abandoned:
        with ExitStack() as held:
            runs = _open_cells(settings, held, says)
            pending = [run for run in runs if not run.store.complete(settings.asked.repeats)]
            if pending:
                _run_cells(settings, runs, pending, held)
            processes.barrier()
            results = [run.store.result() for run in runs]
            left = [run for run in runs if run.shared and not run.store.result()]
            # Whoever held the baseline is gone and left it undone: then it is this job's.
            abandoned = any(run.store.lock(wait=False) for run in left)
    return [result for result in results if result is not None]


def _open_cells(settings: JobSettings, held: ExitStack, says: StateCallback) -> list[CellRun]:
    """The job's cells with their stores locked, always in the same order against deadlock. The
    baseline of several cells waits for no other job: it is timed here in any case.
    """
    first = processes.rank() == 0
    runs = []
    for cell in settings.cells:
        kind = CellStore if first else ReadOnlyCellStore
        store = kind(settings.results, settings.run_id(cell), settings.user_code_digest)
        runs.append(CellRun(cell, store, PeakMemory(settings.device)))
    for run in sorted(runs, key=lambda run: run.run_id):
        alone = run.cell.name != BASELINE or len(runs) == 1 or processes.count() > 1
        free = run.store.lock(wait=False)
        if alone and not free:
            says("waiting")
            free = run.store.lock()
            says("running")
        run.shared = not free and first
        held.callback(run.store.unlock)
    for run in runs if first else ():
        if run.shared:
            log.info("%s is another job's now: it is timed here for this one", run.cell.title)
            run.done = run.store.load_repeats()
            for each in run.store.load_retimed():  # what a session of this job had timed
                run.done[each.repeat].setdefault(each.prompt_id, each)
        else:
            run.models = run.store.hold_models(settings.read_models(run.cell))
            run.done = run.store.repair()
    processes.barrier()  # none reads before bad files are set aside
    for run in runs:
        if not first:
            run.done = run.store.load_repeats()
        if run.store.complete(settings.asked.repeats):
            if first and not run.shared:
                run.store.call(settings.facts(run.cell).decoder)
            ours = first and not run.shared
            unknown = "; it keeps no digest of its models" if ours and not run.models else ""
            log.info("%s is complete: %s%s", run.cell.title, run.store.folder, unknown)
    return runs


def _run_cells(
    settings: JobSettings, runs: list[CellRun], pending: list[CellRun], held: ExitStack
) -> None:
    first = processes.rank() == 0
    shown = settings.asked.sink.progress and first
    metering = held.enter_context(EnergyMetering(settings))
    here = held.enter_context(Machine(settings.device, gpu_ordinals(settings)))
    tokenizer, tokens = models.load_pair_tokenizer(settings.pair)
    prompts = JobPrompts.build(settings, tokenizer)
    backend: ModelBackend | ServerBackend
    if settings.served is not None:
        backend = held.enter_context(closing(ServerBackend(settings, tokenizer, tokens)))
    else:
        with show_spinner("loading the models", shown):
            backend = held.enter_context(closing(ModelBackend(settings, tokenizer, tokens)))
    session = Session(settings, runs, pending, prompts, metering, here)
    if first:
        copy_shorter_cells(settings, runs, prompts)
    processes.barrier()
    for run in () if first else runs:
        run.done = run.store.load_repeats()
    for run in runs if first else ():
        if not run.shared and (run in pending or run is session.baseline):
            run.done = run.store.repair_tokens(backend.vocabulary)
    active = session.active()
    origin = provenance()
    for run in (run for run in pending if not run.shared):
        run.store.hold_token_ids(prompts.token_ids_digest)
        run.store.describe(settings.cell_settings(run.cell), origin)
    began = perf_counter()
    with show_spinner("warming up", shown):
        backend.prepare(session, active)
    for run in pending:
        if run.models not in ({}, settings.read_models(run.cell)):
            raise UsageError(f"{run.cell.title}: its models' files changed while they were loaded")
    processes.barrier()  # none writes before all have read
    prepared = perf_counter()
    try:
        look_at_plain(session)
    except Exception as error:  # it is a look ahead: decoding itself goes on or fails
        log.warning("gate=%d left out: %s", settings.asked.gate, one_line(error))
    decode_interleaved(session, active)
    preparing = prepared - began
    decoding = perf_counter() - prepared
    how = settings.pair.specs[0].compile
    gain = RECORDED_GAIN if how.startswith("static") else 1
    if how != "none" and not settings.served and preparing > gain * decoding:
        log.warning(
            "engine.compile=%s took %.0f s before the first prompt, the prompts %.0f s: "
            "a job of this size is done sooner with engine.compile=none",
            *(how, preparing, decoding),
        )
    if first:
        with show_spinner("computing intervals", shown):
            write_results(session, backend.runtime_facts(session))


def copy_shorter_cells(settings: JobSettings, runs: Sequence[CellRun], prompts: JobPrompts) -> None:
    """Gives cells that have no answers yet those to the first of their prompts, where the same cell
    was decoded on fewer: only the other prompts are decoded, in a session of their own.
    """
    table = files.results_file(settings.results, settings.asked.name)
    plain = [row["run_id"] for row in read_rows(table) if row["decoder"] == BASELINE]
    asked = (CellStore(settings.results, each).settings().get("examples", {}) for each in plain)
    counts = {int(each.get("count", 0)) for each in asked}
    for count in sorted((n for n in counts if 0 < n < len(settings.examples)), reverse=True):
        shorter = replace(settings, examples=settings.examples[:count])
        token_ids = prompts.digest_token_ids(prompts.select_requests(shorter.examples))
        for run in runs:
            other = CellStore(settings.results, shorter.run_id(run.cell))
            fresh = not run.shared and not run.store.load()
            if fresh and other.is_answered_by(run.models, token_ids):
                run.store.copy_answers(other)
                log.info("%s: %d prompts are answered already", run.cell.title, count)


def _apply_to_decoders(
    session: Session, runs: Sequence[CellRun], does: Callable[[Any], object]
) -> None:
    """Does something with each decoder that will decode; a cell that it fails for is given up."""
    for run in session.will_decode(runs):
        try:
            does(run.decoder)
        except Exception as error:
            run.fail(error)


def _warm_up(session: Session, runs: Sequence[CellRun], most: int) -> None:
    """Decodes a few tokens with the cells that will decode, which nothing records."""
    asked = session.settings.asked
    warming = list(batches(session.prompts.requests, session.settings.engine.batch_size))

    for run in session.will_decode(runs):
        warmed = 0
        for batch in warming[: asked.warmup + GIVEN_UP]:
            if warmed == asked.warmup:
                break
            short = [replace(r, max_new_tokens=min(r.max_new_tokens, most)) for r in batch]
            try:
                cast(AnyDecoder, run.decoder).generate(short, asked.seed)
                warmed += 1
            except Exception as error:  # decoding will tell which prompts it is of
                log.debug("%s does not warm up: %s", run.cell.title, error)


def look_at_plain(session: Session) -> None:
    """Says what plain decoding scores on a few prompts, before other cells decode, beside what a
    paper prints of this pair; nothing of other pairs.

    Answers that it has serve. Else the first prompts are decoded for this alone: kept, they would
    be timed apart from the other cells' answers.
    """
    settings, prompts, run = session.settings, session.prompts, session.runs[0]
    first = prompts.requests[: settings.asked.gate]
    known = {**vars(settings.facts(run.cell))}
    if not first or run.failure is not None or not find_printed(known):
        return
    done = [*run.done[0].values()]
    for batch in () if done else batches(first, settings.engine.batch_size):
        done += run.decoder.generate(batch, settings.asked.seed)  # type: ignore[union-attr]
    records = CellRecords(done, texts=prompts.texts(done), references=prompts.references)
    row = summarise(records, prompts.task.scores, tokenize=prompts.task.tokenize).row
    known["prompt_length"] = fmean(len(each.prompt_ids) for each in first)
    for line in compare_with_printed(row | known):
        log.warning(line)


def _leave_out_unfit(run: CellRun, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Leaves out what a decoder cannot be asked. Raises PromptError: that is every prompt."""
    for each in requests:
        try:
            decoder.preflight([each])
        except PromptError as error:
            run.skip_prompt(each.prompt_id, error)
            if len(run.failed) == len(requests):
                raise


class ModelBackend:
    """Loaded models; all cells share them and one pool of caches."""

    def __init__(self, settings: JobSettings, tokenizer: Any, tokens: int) -> None:
        self._tokenizer, self._pool = tokenizer, CachePool()
        self.models = models.load_models(settings.pair, tokens)
        self.vocabulary = self.models[0].vocab_size  # ids of records must lie below
        spec = settings.pair.specs[0]
        target = f"{spec.path} {settings.pair.get_marks()[0]} {spec.dtype}"
        kept = settings.results / files.RUNS / "threads.json", target
        self._slowdown = models.use_threads(
            settings.engine.threads, settings.device, self.models[0], kept
        )

    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Builds each cell's decoder, allocates, warms up; one that cannot be has failed. Raises
        ValueError: a prompt does not fit; nothing is decoded.
        """
        session.slowdown = self._slowdown
        settings = session.settings
        requests = session.prompts.requests
        target = self.models[0]
        drafts = self.models[1:]
        for run in runs:
            try:
                run.decoder = run.cell.config.build(
                    target,
                    drafts[: run.cell.config.drafts],
                    settings.sampling,
                    settings.engine.batch_size,
                    self._pool,
                    models.load_pair_heads(settings.pair, run.cell.config.heads, target),
                )
            except Exception as error:
                run.fail(error)
                continue
            _leave_out_unfit(run, run.decoder, requests)
            fit = next(each for each in requests if each.prompt_id not in run.failed)
            _apply_to_decoders(
                session, [run], partial(models.warn_of_wrong_layers, prompt=fit.prompt_ids)
            )
        # All make room before any warms up: what is made to run over a cache is lost when it grows.
        lengths = [(len(each.prompt_ids), each.max_new_tokens) for each in requests]
        _apply_to_decoders(
            session, runs, lambda d: d.reserve(max(d.slots_needed(*each) for each in lengths))
        )
        _apply_to_decoders(session, runs, lambda decoder: decoder.prepare(requests))
        captured = settings.pair.specs[0].compile != "none"
        _warm_up(session, runs, _CAPTURE_TOKENS if captured else _WARMUP_TOKENS)

    def runtime_facts(self, session: Session) -> dict[str, Any]:
        """Returns what is known only once models are loaded: fields of ``CellFacts``."""
        target = self.models[0]
        device = session.settings.device
        config = getattr(getattr(target, "module", None), "config", None)
        return {
            "device": device_name(device),
            "dtype": str(getattr(target, "dtype", "")).removeprefix("torch."),
            "attention": getattr(config, "_attn_implementation", "") or "",
            "products": getattr(target, "products", ""),
            "threads": torch.get_num_threads(),
            "stop_rule": session.settings.task.ends(self._tokenizer).rule,
            "machine": machine(device),
        }

    def close(self) -> None:
        """Frees the caches, which the next job of a sweep need not find beside its own."""
        self._pool.free()


class ServerBackend:
    """Servers that run already, one a cell. Of the models only the target's tokenizer is loaded."""

    def __init__(self, settings: JobSettings, tokenizer: Any, tokens: int) -> None:
        self.vocabulary = tokens
        self._tokenizer = tokenizer
        self._servers: list[Server] = []
        sampling = settings.sampling
        asking = RequestOptions(sampling.temperature, sampling.top_k, sampling.top_p, tokens)
        if settings.served is not None and settings.served.tokens != "ids":
            asking = replace(
                asking, tokenise=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
            )
        self._asking = asking

    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Each cell's decoder over its server, warmed up; one whose server is silent has failed."""
        settings = session.settings
        assert settings.served is not None
        for run in runs:
            server = make_client(settings.served, run.cell)
            self._servers.append(server)
            decoder: Any = ServedDecoder(  # of no models
                server, self._asking, settings.engine.batch_size, settings.served.rate
            )
            run.decoder = decoder
            _leave_out_unfit(run, decoder, session.prompts.requests)
        _warm_up(session, runs, _WARMUP_TOKENS)

    def runtime_facts(self, session: Session) -> dict[str, Any]:
        """Returns what the server says of itself."""
        named = {read_server_version(server) for server in self._servers}
        return {
            "device": SERVER,
            "stop_rule": session.settings.task.ends(self._tokenizer).rule,
            "library": named.pop() if len(named) == 1 else SERVER,
        }

    def close(self) -> None:
        """Closes the connections."""
        for server in self._servers:
            server.close()


def read_server_version(server: Server) -> str:
    """Returns a server's name and version as far as it tells them; vLLM says both."""
    if server.kind == "llama_cpp":
        return f"llama.cpp {_read_json_text(server.read('props'), 'build_info')}".strip()
    version = _read_json_text(server.read("version"), "version")
    if not version:
        return SERVER
    known = "vllm:" in (server.read("metrics") or "")
    return f"{'vllm' if known else SERVER} {version}"


def _read_json_text(answer: str | None, name: str) -> str:
    """Returns a text in a server's JSON, in one line; "" where there is none."""
    try:
        value = parse_json(answer or "{}").get(name)
    except (ValueError, AttributeError):
        value = None
    return one_short_line(value, longest=40) if isinstance(value, str) else ""
