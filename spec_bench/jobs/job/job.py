"""Runs one job: decodes its cells, with every record on disk at once, and collects the results.

``session`` decides the order in which cells decode. A backend decodes: the pair's models, in this
process and in those that share a split target, or a server. The baseline is among the cells even if
it was complete before. A killed job continues after its last record.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
from spec_bench.jobs.config.served_cells import SERVER, build_server_client
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.results import write_results
from spec_bench.jobs.job.session import (
    GIVEN_UP,
    CellRun,
    Session,
    decode_interleaved,
    split_into_batches,
)
from spec_bench.jobs.store.store import CellStore, ReadOnlyCellStore
from spec_bench.jobs.work import models
from spec_bench.jobs.work.metering import EnergyMetering, find_torch_gpu_indices
from spec_bench.jobs.work.prompts import JobPrompts
from spec_bench.measure.monitors import LoadAndClockMonitor, PeakMemoryMonitor
from spec_bench.measure.provenance import (
    collect_provenance,
    format_device_count_and_model,
    get_gpu_name_or_device,
)
from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.plain import (
    find_published_baseline_scores,
    iter_published_baseline_comparisons,
)
from spec_bench.records.types import CellResult, PromptError, Request
from spec_bench.server.decoder import RequestOptions, ServedDecoder
from spec_bench.server.endpoint import ServerClient, redact_to_one_line
from spec_bench.settings.fields import to_one_line
from spec_bench.settings.foreign import parse_json_within_limits
from spec_bench.sinks.console import show_spinner
from spec_bench.sinks.rows import read_results_rows
from spec_bench.system import files
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
RECORDED_GAIN = 2.5  # an eager iteration's seconds over a recorded iteration's, on an H100
# maximum seconds that Inductor compiles a decoder's iteration; measured on a CPU, not on a GPU
FUSING_S = 180
FUSING_SHARE = 0.05  # maximum share of a job's decoding time for that
_WARMUP_TOKENS = 4  # an iteration or a few
# Called with the job's new state.
StateCallback = Callable[[Literal["waiting", "running"]], None]
_CAPTURE_TOKENS = 16  # enough to capture every kind of forward pass


def run_job(
    settings: JobSettings, on_state: StateCallback = lambda state: None
) -> list[CellResult]:
    """Decodes the cells that are not yet complete; returns a result per cell of the job, the
    baseline first if there is one. ``on_state`` is called before and after waiting for another job.
    Raises ValueError before any decoding if models or prompts cannot work together.
    """
    settings = settings.pin_revisions_and_stop_rule()
    is_abandoned = True
    while is_abandoned:
        with ExitStack() as stack:
            runs = _open_locked_cells(settings, stack, on_state)
            pending = [
                cell_run
                for cell_run in runs
                if not cell_run.store.is_complete(settings.request.repeats)
            ]
            if pending:
                _run_cells(settings, runs, pending, stack)
            processes.wait_for_processes()
            results = [cell_run.store.load_result() for cell_run in runs]
            shared_runs = [
                cell_run
                for cell_run in runs
                if cell_run.is_held_by_other_job and not cell_run.store.load_result()
            ]
            # If the other job ended without completing the baseline, this job takes it over.
            is_abandoned = any(cell_run.store.lock(wait=False) for cell_run in shared_runs)
    return [result for result in results if result is not None]


def _open_locked_cells(
    settings: JobSettings, stack: ExitStack, on_state: StateCallback
) -> list[CellRun]:
    """Opens the job's cells and locks their stores, in a fixed order against deadlock. The baseline
    of several cells does not wait for another job, because it is timed here in any case.
    """
    is_first = processes.process_rank() == 0
    runs = []
    for cell in settings.cells:
        store_class = CellStore if is_first else ReadOnlyCellStore
        store = store_class(
            settings.results_folder, settings.compute_run_id(cell), settings.score_code_digest
        )
        runs.append(CellRun(cell, store, PeakMemoryMonitor(settings.device)))
    for cell_run in sorted(runs, key=lambda cell_run: cell_run.run_id):
        must_wait = (
            cell_run.cell.name != BASELINE
            or len(runs) == 1
            or processes.count_torchrun_processes() > 1
        )
        is_locked = cell_run.store.lock(wait=False)
        if must_wait and not is_locked:
            on_state("waiting")
            is_locked = cell_run.store.lock()
            on_state("running")
        cell_run.is_held_by_other_job = not is_locked and is_first
        stack.callback(cell_run.store.unlock)
    for cell_run in runs if is_first else ():
        if cell_run.is_held_by_other_job:
            log.info("%s is another job's now: it is timed here for this one", cell_run.cell.title)
            cell_run.generations_by_repeat = cell_run.store.load_repeats()
            for generation in cell_run.store.load_retimed():  # a session of this job timed it
                cell_run.generations_by_repeat[generation.repeat].setdefault(
                    generation.prompt_id, generation
                )
        else:
            cell_run.model_digests = cell_run.store.claim_for_models(
                settings.read_model_and_code_digests(cell_run.cell)
            )
            cell_run.generations_by_repeat = cell_run.store.repair_and_load()
            if cell_run.store.replace_categories_dropping_result(settings.categories_by_prompt):
                cell_run.generations_by_repeat = cell_run.store.load_repeats()
    processes.wait_for_processes()  # process 0 sets bad files aside before others read
    for cell_run in runs:
        if not is_first:
            cell_run.generations_by_repeat = cell_run.store.load_repeats()
        if cell_run.store.is_complete(settings.request.repeats):
            if is_first and not cell_run.is_held_by_other_job:
                cell_run.store.rename_row(settings.build_facts(cell_run.cell).decoder)
            ours = is_first and not cell_run.is_held_by_other_job
            digest_note = (
                "; it keeps no digest of its models" if ours and not cell_run.model_digests else ""
            )
            log.info(
                "%s is complete: %s%s", cell_run.cell.title, cell_run.store.folder, digest_note
            )
    return runs


def _run_cells(
    settings: JobSettings, runs: list[CellRun], pending: list[CellRun], stack: ExitStack
) -> None:
    is_first = processes.process_rank() == 0
    shows_progress = settings.request.sink.progress and is_first
    energy_metering = stack.enter_context(EnergyMetering(settings))
    job_machine = stack.enter_context(
        LoadAndClockMonitor(settings.device, find_torch_gpu_indices(settings))
    )
    tokenizer, token_count = models.load_pair_tokenizer(settings.pair)
    prompts = JobPrompts.from_settings(settings, tokenizer)
    backend: ModelBackend | ServerBackend
    if settings.server_settings is not None:
        backend = ServerBackend(settings, tokenizer, token_count)
        stack.callback(backend.close_connections)
    else:
        with show_spinner("loading the models", shows_progress):
            backend = ModelBackend(settings, tokenizer, token_count)
        stack.callback(backend.free_caches)
    session = Session(settings, runs, pending, prompts, energy_metering, job_machine)
    if is_first:
        copy_answers_of_fewer_prompts(settings, runs, prompts)
    processes.wait_for_processes()
    for cell_run in () if is_first else runs:
        cell_run.generations_by_repeat = cell_run.store.load_repeats()
    for cell_run in runs if is_first else ():
        if not cell_run.is_held_by_other_job and (
            cell_run in pending or cell_run is session.baseline
        ):
            cell_run.generations_by_repeat = cell_run.store.drop_unknown_tokens_and_load(
                backend.vocabulary_size
            )
    active = session.drop_untimed_and_select_runs()
    origin = collect_provenance()
    for cell_run in (cell_run for cell_run in pending if not cell_run.is_held_by_other_job):
        cell_run.store.record_or_refuse_token_ids(prompts.token_ids_digest)
        cell_run.store.write_settings(settings.build_cell_settings(cell_run.cell), origin)
    began = perf_counter()
    with show_spinner("warming up", shows_progress):
        backend.build_and_warm_up_decoders(session, active)
    for cell_run in pending:
        if cell_run.model_digests not in ({}, settings.read_model_and_code_digests(cell_run.cell)):
            raise UsageError(
                f"{cell_run.cell.title}: its models' files changed while they were loaded"
            )
    processes.wait_for_processes()  # all processes read before any of them writes
    prepare_end = perf_counter()
    try:
        log_plain_scores_beside_printed(session)
    except Exception as error:  # only a preview: decoding goes on
        log.warning("gate=%d left out: %s", settings.request.gate, to_one_line(error))
    decode_interleaved(session, active)
    prepare_s, decode_s = prepare_end - began, perf_counter() - prepare_end
    advise_on_compilation(settings, len(active), prepare_s, decode_s)
    if is_first:
        with show_spinner("computing intervals", shows_progress):
            write_results(session, backend.collect_runtime_facts(session))


def advise_on_compilation(
    settings: JobSettings, decoder_count: int, prepare_s: float, decode_s: float
) -> None:
    """Logs a warning if preparing a job took longer than compiled models can have saved, or, for a
    long job on a GPU, the cost of fusing kernels. The mode is never chosen automatically, because
    it is part of a run id and the number of prompts is not.
    """
    compile_mode = settings.pair.specs[0].compile
    gain = RECORDED_GAIN if compile_mode.startswith("static") else 1
    if compile_mode != "none" and not settings.server_settings and prepare_s > gain * decode_s:
        log.warning(
            "engine.compile=%s took %.0f s before the first prompt, the prompts %.0f s: "
            "a job of this size is done sooner with engine.compile=none",
            compile_mode,
            prepare_s,
            decode_s,
        )
    fusing_s = FUSING_S * decoder_count
    on_gpu = settings.device.startswith("cuda")
    if compile_mode == "static" and on_gpu and fusing_s < FUSING_SHARE * decode_s:
        log.info(
            "the prompts took %.0f s: a job of this size may be done sooner with "
            "engine.compile=static_inductor, which compiles for at most %.0f s first",
            decode_s,
            fusing_s,
        )


def copy_answers_of_fewer_prompts(
    settings: JobSettings, runs: Sequence[CellRun], prompts: JobPrompts
) -> None:
    """Copies answers to cells without answers from the same cells with fewer prompts, so that only
    the other prompts are decoded, in a session of their own.
    """
    table = files.get_results_file(settings.results_folder, settings.request.name)
    baseline_ids = [row["run_id"] for row in read_results_rows(table) if row["decoder"] == BASELINE]
    examples = (
        CellStore(settings.results_folder, run_id).load_settings().get("examples", {})
        for run_id in baseline_ids
    )
    counts = {int(example_settings.get("count", 0)) for example_settings in examples}
    for count in sorted((n for n in counts if 0 < n < len(settings.examples)), reverse=True):
        shorter = replace(settings, examples=settings.examples[:count])
        token_ids = prompts.digest_token_ids(prompts.select_requests(shorter.examples))
        for cell_run in runs:
            shorter_store = CellStore(
                settings.results_folder, shorter.compute_run_id(cell_run.cell)
            )
            has_no_answers = (
                not cell_run.is_held_by_other_job and not cell_run.store.load_first_repeat()
            )
            if not has_no_answers or not shorter_store.load_first_repeat():
                continue
            if shorter_store.has_answers_of(cell_run.model_digests, token_ids):
                cell_run.store.copy_answers_and_starts(shorter_store)
                cell_run.store.replace_categories_dropping_result(settings.categories_by_prompt)
                log.info("%s: %d prompts are answered already", cell_run.cell.title, count)
            else:
                log.warning(
                    "%s: the answers to %d of the prompts are of other models or texts, or do not "
                    "say of which; all are decoded",
                    *(cell_run.cell.title, count),
                )


def _apply_to_decoders(
    session: Session, runs: Sequence[CellRun], function: Callable[[Any], object]
) -> None:
    """Applies ``function`` to each decoder that will decode; marks a cell failed if it raises."""
    for cell_run in session.select_decoding_runs(runs):
        try:
            function(cell_run.decoder)
        except Exception as error:
            cell_run.fail(error)


def _warm_up(session: Session, runs: Sequence[CellRun], max_tokens: int) -> None:
    """Decodes a few tokens with each cell that will decode; nothing is recorded."""
    options = session.settings.request
    warmup_batches = list(
        split_into_batches(session.prompts.requests, session.settings.engine.batch_size)
    )

    for cell_run in session.select_decoding_runs(runs):
        warmup_count = 0
        for batch in warmup_batches[: options.warmup + GIVEN_UP]:
            if warmup_count == options.warmup:
                break
            short_requests = [
                replace(r, max_new_tokens=min(r.max_new_tokens, max_tokens)) for r in batch
            ]
            try:
                cast(AnyDecoder, cell_run.decoder).generate(short_requests, options.seed)
                warmup_count += 1
            except Exception as error:  # decoding will find the prompts that fail
                log.debug("%s does not warm up: %s", cell_run.cell.title, error)


def log_plain_scores_beside_printed(session: Session) -> None:
    """Logs plain decoding's scores on a few prompts next to a paper's scores for this pair, before
    other cells decode; does nothing for a pair without published scores.

    Stored answers are used if there are any. Else the first prompts are decoded only for this: kept
    answers would not be timed together with the other cells'.
    """
    settings = session.settings
    prompts = session.prompts
    cell_run = session.runs[0]
    first_requests = prompts.requests[: settings.request.gate]
    columns = {**vars(settings.build_facts(cell_run.cell)), **settings.sampling.get_columns()}
    if (
        not first_requests
        or cell_run.failure is not None
        or not find_published_baseline_scores(columns)
    ):
        return
    generations = [*cell_run.generations_by_repeat[0].values()]
    for batch in (
        () if generations else split_into_batches(first_requests, settings.engine.batch_size)
    ):
        generations += cell_run.decoder.generate(batch, settings.request.seed)  # type: ignore[union-attr]
    records = CellRecords(
        generations,
        texts=prompts.decode_scored_texts(generations),
        references=prompts.references,
    )
    row = summarise(records, prompts.task.scores, tokenize=prompts.task.tokenize).row
    columns["prompt_length"] = fmean(len(request.prompt_ids) for request in first_requests)
    for line in iter_published_baseline_comparisons(row | columns):
        log.warning(line)


def _skip_refused_prompts(
    cell_run: CellRun, decoder: AnyDecoder, requests: Sequence[Request]
) -> None:
    """Marks the prompts that a decoder refuses as skipped. Raises PromptError if it refuses all."""
    for request in requests:
        try:
            decoder.refuse_unfit_prompts([request])
        except PromptError as error:
            cell_run.skip_prompt(request.prompt_id, error)
            if len(cell_run.prompt_errors) == len(requests):
                raise


class ModelBackend:
    """Backend of loaded models, which all cells share together with a pool of caches."""

    def __init__(self, settings: JobSettings, tokenizer: Any, token_count: int) -> None:
        self._tokenizer = tokenizer
        self._pool = CachePool()
        self.models = models.load_models(settings.pair, token_count)
        self.vocabulary_size = self.models[0].vocab_size  # bound of token ids in records
        spec = settings.pair.specs[0]
        target = f"{spec.path} {settings.pair.read_content_ids()[0]} {spec.dtype}"
        stored_choice = settings.results_folder / files.RUNS / "threads.json", target
        self._measure_slowdown = models.set_thread_count(
            settings.engine.threads,
            settings.device,
            self.models[0],
            stored_choice,
        )

    def build_and_warm_up_decoders(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Builds the cells' decoders, allocates memory and warms up; a cell for which this raises
        is marked failed. Raises PromptError if a decoder refuses every prompt.
        """
        session.measure_slowdown = self._measure_slowdown
        settings = session.settings
        requests = session.prompts.requests
        target = self.models[0]
        drafts = self.models[1:]
        for cell_run in runs:
            try:
                cell_run.decoder = cell_run.cell.config.build(
                    target,
                    drafts[: cell_run.cell.config.drafts],
                    settings.sampling,
                    settings.engine.batch_size,
                    self._pool,
                    models.load_pair_heads(settings.pair, cell_run.cell.config.heads, target),
                )
            except Exception as error:
                cell_run.fail(error)
                continue
            _skip_refused_prompts(cell_run, cell_run.decoder, requests)
            fit = next(
                request for request in requests if request.prompt_id not in cell_run.prompt_errors
            )
            _apply_to_decoders(
                session,
                [cell_run],
                partial(models.warn_of_better_eagle_layers, prompt=fit.prompt_ids),
            )
        # All caches are reserved before any warm-up, because growing a cache loses its graphs.
        lengths = [(len(request.prompt_ids), request.max_new_tokens) for request in requests]
        _apply_to_decoders(
            session,
            runs,
            lambda d: d.reserve(
                max(d.count_slots_per_row(*request_lengths) for request_lengths in lengths)
            ),
        )
        _apply_to_decoders(session, runs, lambda decoder: decoder.record_graphs(requests))
        captures_graphs = settings.pair.specs[0].compile != "none"
        _warm_up(session, runs, _CAPTURE_TOKENS if captures_graphs else _WARMUP_TOKENS)

    def collect_runtime_facts(self, session: Session) -> dict[str, Any]:
        """Collects the fields of ``CellFacts`` that are known only after models are loaded."""
        target = self.models[0]
        device = session.settings.device
        config = getattr(getattr(target, "module", None), "config", None)
        return {
            "device": get_gpu_name_or_device(device),
            "dtype": str(getattr(target, "dtype", "")).removeprefix("torch."),
            "attention": getattr(config, "_attn_implementation", "") or "",
            "products": getattr(target, "products", ""),
            "threads": torch.get_num_threads(),
            "stop_rule": session.settings.task.make_stop_criteria(self._tokenizer).rule_text,
            "machine": format_device_count_and_model(device),
        }

    def free_caches(self) -> None:
        """Frees the caches, but not the models, which the next job of a sweep may use."""
        self._pool.free()


class ServerBackend:
    """Backend of running servers, one per cell; of the models only the target's tokenizer is
    loaded.
    """

    def __init__(self, settings: JobSettings, tokenizer: Any, token_count: int) -> None:
        self.vocabulary_size = token_count
        self._tokenizer = tokenizer
        self._servers: list[ServerClient] = []
        options = RequestOptions(settings.sampling, token_count)
        if settings.server_settings is not None and settings.server_settings.tokens != "ids":
            options = replace(
                options,
                tokenise=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            )
        self._request_options = options

    def build_and_warm_up_decoders(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Builds each cell's decoder over its server, and warms it up."""
        settings = session.settings
        assert settings.server_settings is not None
        for cell_run in runs:
            server = build_server_client(settings.server_settings, cell_run.cell)
            self._servers.append(server)
            decoder: Any = ServedDecoder(  # has no models
                server,
                self._request_options,
                settings.engine.batch_size,
                settings.server_settings.rate,
            )
            cell_run.decoder = decoder
            _skip_refused_prompts(cell_run, decoder, session.prompts.requests)
        _warm_up(session, runs, _WARMUP_TOKENS)

    def collect_runtime_facts(self, session: Session) -> dict[str, Any]:
        """Collects the fields of ``CellFacts`` that servers report."""
        versions = {read_server_name_and_version(server) for server in self._servers}
        return {
            "device": SERVER,
            "stop_rule": session.settings.task.make_stop_criteria(self._tokenizer).rule_text,
            "library": versions.pop() if len(versions) == 1 else SERVER,
        }

    def close_connections(self) -> None:
        """Closes the connections to the servers, which run on."""
        for server in self._servers:
            server.close()


def read_server_name_and_version(server: ServerClient) -> str:
    """Reads a server's name and version; ``server`` if it does not report them."""
    if server.kind == "llama_cpp":
        return f"llama.cpp {_read_json_text(server.fetch_text('props'), 'build_info')}".strip()
    version = _read_json_text(server.fetch_text("version"), "version")
    if not version:
        return SERVER
    is_vllm = "vllm:" in (server.fetch_text("metrics") or "")
    return f"{'vllm' if is_vllm else SERVER} {version}"


def _read_json_text(answer: str | None, name: str) -> str:
    """Returns the text under ``name`` in a server's JSON, in one line; "" if there is none."""
    try:
        value = parse_json_within_limits(answer or "{}").get(name)
    except (ValueError, AttributeError):
        value = None
    return redact_to_one_line(value, max_letters=40) if isinstance(value, str) else ""
