"""Builds a finished cell's row from its records.

Knows the session, the metrics and the columns; nothing about how a cell was decoded, or Hydra.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, starmap, takewhile
from typing import Any

from spec_bench.core import processes
from spec_bench.decode.config import AnyDecoder
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.generate import GenerateDecoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.session import CellRun, Session, select_paired_timings, summarise_error
from spec_bench.jobs.store.experiment import compute_job_id
from spec_bench.jobs.work.metering import NO_SAMPLE, explain_missing_energy
from spec_bench.jobs.work.prompts import JobPrompts
from spec_bench.measure.bandwidth import look_up_nominal_bytes_per_s, measure_bytes_per_s
from spec_bench.measure.roofline import (
    compute_bound_over_measured_time,
    count_decode_bytes,
    count_model_bytes,
)
from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.calls import levels_per_call
from spec_bench.metrics.latencies import are_most_chunks_simultaneous
from spec_bench.metrics.stalls import describe_deciding_stalls, describe_disturbance
from spec_bench.records.cell_folder import compute_digest_columns
from spec_bench.records.parquet import Scores
from spec_bench.records.types import CellFacts, CellResult, Generation, Reason
from spec_bench.vocabulary.columns import ENDS, define_all_column_names, list_value_column_names

log = logging.getLogger(__name__)
RATE = "acceptance_rate"
_ENERGY = "energy_j_per_token"
_SIMULATED_REASON = "the text is of an acceptance that was given"
_VARY = "trees have another form in every call, where a path ends is no rejection"
_LIKELIHOODS = ("perplexity", "perplexity_by_prompt")
_CUT = ("block_efficiency", "mbsu", RATE)
_CUT_PROMPT_REASON = (
    "transformers drops what it accepts behind an answer's end; see tokens delivered per call"
)
# Columns that are empty for a server, or for recorded iterations, and the reasons.
_NOT_SEEN = ("draft_s", "target_s", "host_")  # beginnings of the columns' names
_ONE_GRAPH = "an iteration is one graph: which seconds were the draft's or the host's is not seen"
_BURSTS = (
    "chunks came in bursts, as behind a proxy that buffers: when each was made is not to be seen"
)
_REMOTE_METER = "of a server, that of the GPUs that are named: energy=nvml energy.devices=[0]"
# Columns that depend on the chunks' arrival times, except the rate of whole answers.
_WHOLE = "token_rate_end_to_end"
_TIMED_COLUMNS = (
    "prefill_s", "decode_s", "ttft_s", "inter_token_s", "chunk_gap_s", "token_rate", "speedup",
    "energy_j", "energy_saving",
)  # fmt: skip
_NOT_PROPOSED = ("acceptance_rate", "nodes_per_call")


def write_results(session: Session, runtime_facts: Mapping[str, Any]) -> None:
    """Writes the result of every cell that this job worked on."""
    job = compute_job_id(cell_run.run_id for cell_run in session.runs)
    baseline = session.baseline
    assert baseline or session.settings.server_settings
    for cell_run in (cell_run for cell_run in session.pending if not cell_run.is_held_by_other_job):
        fact_fields = {**runtime_facts, **compute_digest_columns(cell_run.model_digests)}
        fact_fields["token_ids_digest"] = session.prompts.token_ids_digest
        facts = replace(session.settings.build_facts(cell_run.cell), **fact_fields)
        extras = dict[str, Any]()
        try:
            if cell_run.decoder is not None:
                ids = _select_repeated_and_paired_ids(session, cell_run)
                if not ids:
                    raise next(iter(cell_run.prompt_errors.values()))
                repeats = _select_complete_repeats(cell_run, ids)
                reference = (
                    select_paired_timings(repeats, session.baseline_timings) if baseline else None
                )
                result, extras["scores"] = _build_result(
                    session,
                    facts,
                    cell_run,
                    cell_run.decoder,
                    repeats,
                    reference,
                )
                if reference is not None and baseline:
                    sessions = sorted(
                        {generation.session for repeat in reference for generation in repeat}
                    )
                    extras["comparison"] = {"run_id": baseline.run_id, "sessions": sessions}
        except Exception as error:
            cell_run.fail(error)
        if cell_run.failure is not None:
            result = CellResult(cell_run.run_id, facts, "failed", reasons=(cell_run.failure,))
        cell_run.store.write_result(result, job, **extras)


def _build_result(
    session: Session,
    facts: CellFacts,
    cell_run: CellRun,
    decoder: AnyDecoder,
    repeats: list[list[Generation]],
    baseline: list[list[Generation]] | None,
) -> tuple[CellResult, Scores]:
    """Builds a row with its numbers, and the scores of each answer; each empty column has a reason.
    Without a baseline timed in turn the row is ``partial``: a rerun times both and fills in the
    speed-up.
    """
    settings = session.settings
    prompts = session.prompts
    records = _gather_records(session, decoder, repeats, baseline)
    is_exact_greedy = decoder.lossless == "exact" and not settings.sampling.temperature
    changed_count = _count_changed_answers(records) if is_exact_greedy else 0
    texts = [*(records.texts or {}).values()]
    _warn_of_suspicious_answers(cell_run.cell.title, texts, changed_count)
    summary = summarise(records, prompts.task.scores, tokenize=prompts.task.tokenize)
    missing_reasons = explain_missing_prompts(session, cell_run, records.ids)
    failed_count = prompts.prompt_count_with_failed - len(records.ids)
    undefined_metrics = _explain_metrics_to_blank(decoder, summary.row)
    meter = session.metering.meter
    empty_columns = [f"{name}{end}" for name in undefined_metrics for end in ("", *ENDS)]
    empty_columns += [f"{RATE}_by_depth"] * (RATE in undefined_metrics)
    lengths = {request.prompt_id: len(request.prompt_ids) for request in prompts.requests}
    lacks_baseline = records.baseline is None and not is_served_without_baseline(settings)
    row = (
        summary.row
        | dict.fromkeys(empty_columns)
        | _build_memory_and_graph_columns(settings, cell_run, decoder, prompts)
        | build_roofline_columns(decoder, records.windows, lengths, facts.device)
        | blank_served_columns(records.windows)
        | ({"prompts_failed": failed_count} if missing_reasons else {})
        | {
            "energy_method": None if meter.name == "none" else meter.name,
            "energy_period_s": meter.period_s,
            "idle_power_w": meter.idle_power_w,
        }
    )
    interval_reasons = summary.explain_missing_ends(records, row)
    result = CellResult(
        cell_run.run_id,
        facts,
        "partial" if missing_reasons or summary.failures or lacks_baseline else "complete",
        decoder.lossless,
        (
            *missing_reasons,
            *_collect_reasons(session, cell_run, records, interval_reasons),
            *starmap(Reason, [*undefined_metrics.items(), *summary.failures, *summary.empty_cells]),
        ),
        row,
        None if records.baseline is None else "same job",
    )
    scores = {name: part for name, part in summary.scores.items() if name not in undefined_metrics}
    return result, scores


def _gather_records(
    session: Session,
    decoder: AnyDecoder,
    repeats: list[list[Generation]],
    baseline: list[list[Generation]] | None,
) -> CellRecords:
    """Gathers the input of metrics: generations, the baseline's, texts and references."""
    settings = session.settings
    first_repeat = repeats[0]
    return CellRecords(
        first_repeat,
        baseline=baseline[0] if baseline else None,
        later_repeats=repeats[1:],
        later_baseline_repeats=baseline[1:] if baseline else [],
        texts=session.prompts.decode_scored_texts(first_repeat),
        references=session.prompts.references,
        draft_calls=_get_draft_calls_per_step(decoder, first_repeat),
        parameter_ratio=decoder.parameter_ratio,
        batched=settings.engine.batch_size > 1 and settings.server_settings is None,
        depth=None if settings.server_settings else decoder.depth,
    )


def explain_missing_prompts(
    session: Session, cell_run: CellRun, counted_ids: Sequence[str]
) -> list[Reason]:
    """Explains the prompts that a row lacks, by their number and the first one's error; [] if none
    is missing.
    """
    prompts = session.prompts
    missing_count = prompts.prompt_count_with_failed - len(counted_ids)
    baseline_failures = session.baseline.prompt_errors if session.baseline else {}
    failures = {
        **baseline_failures,
        **prompts.error_by_prompt_id,
        **cell_run.prompt_errors,
    }
    first_failure = next(
        (
            f"{name!r}, {summarise_error(failures[name])}"
            for name in failures
            if name not in counted_ids
        ),
        "",
    )
    return (
        [
            Reason(
                "prompts_failed",
                f"{missing_count} of {prompts.prompt_count_with_failed}: {first_failure}",
            )
        ]
        if missing_count
        else []
    )


def _explain_metrics_to_blank(decoder: AnyDecoder, row: Mapping[str, Any]) -> dict[str, str]:
    """Explains which metrics to blank, because a decoder's records do not determine them: column ->
    reason.

    A record has the depth of a call's tree and the number of accepted levels. If the draft reshapes
    the tree in every call, a path may end above the deepest level; reaching its end is no
    rejection, and the record does not tell the two apart. transformers drops tokens that it accepts
    after an answer's end, which our block efficiency counts. An energy of 0 J is no measurement.
    """
    notes = {_ENERGY: NO_SAMPLE} if row[_ENERGY] == 0 else {}
    if decoder.lossless == "simulated":
        notes |= {
            name: _SIMULATED_REASON
            for name in (*list_value_column_names("score"), *_LIKELIHOODS)
            if name in row
        }
    if isinstance(decoder, Decoder) and decoder.policy.varies:
        return {RATE: _VARY} | notes
    cuts_answers = isinstance(decoder, GenerateDecoder) and decoder.assistance.draft_tokens > 0
    return dict.fromkeys(_CUT if cuts_answers else (), _CUT_PROMPT_REASON) | notes


def _get_draft_calls_per_step(
    decoder: AnyDecoder, generations: Sequence[Generation]
) -> float | None:
    """Returns L of MBSU, the draft calls per target call: the decoder's, or counted if its trees
    have no fixed depth.
    """
    if not isinstance(decoder, Decoder) or not decoder.policy.lacks_fixed_depth:
        return decoder.draft_calls
    is_call_per_level = decoder.draft_calls == decoder.depth  # one call
    return levels_per_call(generations) if is_call_per_level else decoder.draft_calls


def _build_memory_and_graph_columns(
    settings: JobSettings, cell_run: CellRun, decoder: AnyDecoder, prompts: JobPrompts
) -> dict[str, Any]:
    """Builds the columns of peak memory, caches, recorded iterations and cut prompts."""
    longest = [(len(request.prompt_ids), request.max_new_tokens) for request in prompts.requests]
    values: dict[str, Any] = {"peak_memory_bytes": cell_run.memory.peak_bytes}
    if not settings.server_settings:
        values["cache_bytes"] = max(decoder.cache_bytes_per_row(*lengths) for lengths in longest)
    if settings.pair.specs[0].compile.startswith("static"):
        recordings = getattr(decoder, "recordings", None)
        refusal = f": {recordings.refusal}" if recordings and recordings.refusal else ""
        values["passes"] = f"{cell_run.iteration_counts.recorded_share_text}{refusal}"
        values["captures"] = len(recordings.graphs) if recordings else 0
        if cell_run.iteration_counts.recorded:
            values |= dict.fromkeys(
                name for name in define_all_column_names() if name.startswith(_NOT_SEEN)
            )
    if settings.task.overlong != "fail":
        values |= {
            "prompts_truncated": prompts.truncated_count,
            "prompts_skipped": prompts.skipped_count,
        }
    return values


def _collect_reasons(
    session: Session, cell_run: CellRun, records: CellRecords, interval_reasons: Iterable[str]
) -> list[Reason]:
    settings = session.settings
    left_out = session.prompts.turn_count_not_asked
    no_speedup = "the baseline failed, none was timed in turn"
    if is_served_without_baseline(settings):
        no_speedup = "no server decodes plainly beside it, server.baseline_url names none"
    not_asked = f"{left_out} not asked, no fixed answer to continue"
    causes = [
        ("speedup", no_speedup if records.baseline is None else ""),
        ("later_turns", not_asked if left_out else ""),
        (
            "speedup",
            describe_disturbance(records, session.measure_slowdown())
            or describe_deciding_stalls(records),
        ),
        ("host_overhead", _ONE_GRAPH if cell_run.iteration_counts.recorded else ""),
        ("repeats", _describe_changed_repeats(records)),
        *(("intervals", text) for text in interval_reasons),
        (
            "spec",
            cell_run.cell.config.describe_tree_cut(cell_run.decoder) if cell_run.decoder else "",
        ),
    ]
    meter = session.metering.meter
    lacks_meter = bool(settings.server_settings) and meter.name == "none"
    server = settings.server_settings
    is_retokenised = server is not None and server.tokens == "text"
    causes += explain_served_columns(records.windows, lacks_meter, is_retokenised)
    reasons = [Reason(column, text) for column, text in causes if text]
    return (
        reasons
        if lacks_meter
        else [*reasons, *explain_missing_energy(meter.reason, records.windows)]
    )


def _select_repeated_and_paired_ids(session: Session, cell_run: CellRun) -> list[str]:
    """Selects the ids of the prompts that a row counts: those decoded in every repeat, and if any
    of these are paired with a timing of the baseline, only those.
    """
    repeats = [
        cell_run.generations_by_repeat[repeat] for repeat in range(session.settings.request.repeats)
    ]
    names = [request.prompt_id for request in session.prompts.requests]
    ids = [name for name in names if all(name in repeat for repeat in repeats)]
    paired_ids = [
        name
        for name in ids
        if select_paired_timings([[e[name]] for e in repeats], session.baseline_timings)
    ]
    return paired_ids or ids


def _select_complete_repeats(cell_run: CellRun, ids: Sequence[str]) -> list[list[Generation]]:
    """Selects the generations of each complete repeat, in the order of ``ids``."""
    repeat_numbers = takewhile(
        lambda repeat: set(ids) <= cell_run.generations_by_repeat[repeat].keys(), count()
    )
    return [
        [cell_run.generations_by_repeat[repeat][prompt_id] for prompt_id in ids]
        for repeat in repeat_numbers
    ]


def _warn_of_suspicious_answers(title: str, texts: Sequence[str], changed_count: int) -> None:
    """Warns if most answers are empty, or if greedy answers differ from plain decoding's."""
    empty = sum(not text.strip() for text in texts)
    if 2 * empty > len(texts):
        message = f"{title}: {empty} of {len(texts)} answers are empty"
        log.warning("%s: is its template, or what ends an answer, right?", message)
    if changed_count:
        message = (
            f"{title}: {changed_count} of {len(texts)} greedy answers differ from plain decoding's"
        )
        log.warning("%s: see spec-bench check decoders --target", message)


def _count_changed_answers(records: CellRecords) -> int:
    """Counts the answers that differ from plain decoding's."""
    pairs = zip(records.generations, records.baseline or records.generations, strict=True)
    return sum(generation.tokens != plain.tokens for generation, plain in pairs)


def _describe_changed_repeats(records: CellRecords) -> str:
    """Describes how many repeats differ from the first; "" if none does."""
    later_windows = [window for repeat in records.later_repeats for window in repeat]
    first_windows = [*records.generations] * len(records.later_repeats)
    changed_count = sum(
        not window.has_same_steps_and_tokens(first_window)
        for window, first_window in zip(later_windows, first_windows, strict=True)
    )
    text = "delivered other tokens than the first, as this device may; counts are of the first"
    return f"{changed_count} of {len(later_windows)} later windows {text}" if changed_count else ""


def build_roofline_columns(
    decoder: AnyDecoder,
    generations: list[Generation],
    prompt_tokens: dict[str, int],
    device_name: str,
) -> dict[str, Any]:
    """Builds the columns of the roofline; {} if the bytes that the models read are unknown. Layers
    spread over several GPUs run one after another, at one GPU's bandwidth; a target split over
    processes is read by all GPUs at once. The bandwidth is measured after all decoding, so that it
    costs the cells no time.
    """
    models = (decoder.target, *decoder.drafts)
    calls = sum(len(generation.steps) for generation in generations)
    loaded_models = [model for model in models if isinstance(model, HuggingFaceModel)]
    if not calls or len(loaded_models) < len(models):
        return {}
    target, *drafts = (
        count_model_bytes(model.module, model.bytes_per_slot) for model in loaded_models
    )
    heads = getattr(decoder, "heads", None)
    head_bytes = float(sum(part.nbytes for part in heads.parameters())) if heads else 0.0
    moved_bytes = sum(
        count_decode_bytes(
            generation,
            prompt_tokens[generation.prompt_id],
            target,
            drafts,
            head_bytes,
            decoder.rows,
        )
        for generation in generations
    )
    process_count = max(1, processes.count_torchrun_processes())
    columns: dict[str, Any] = {"moved_bytes": round(moved_bytes / calls)}
    if (bandwidth := measure_bytes_per_s(loaded_models[0].module)) is not None:
        columns["bandwidth_bytes_per_s"] = round(bandwidth * process_count)
    if (nominal := look_up_nominal_bytes_per_s(device_name)) is not None:
        share = compute_bound_over_measured_time(moved_bytes, generations, nominal * process_count)
        columns["bound_over_measured"] = share
    return columns


def is_served_without_baseline(settings: JobSettings) -> bool:
    """Returns whether a server decodes and there is no plain server."""
    server = settings.server_settings
    return server is not None and not server.has_baseline and server.decoder != "ar"


def blank_served_columns(generations: Sequence[Generation]) -> dict[str, Any]:
    """Returns None for each column that a client cannot fill; {} if this program decoded."""
    if not any(generation.delivery for generation in generations):
        return {}
    stems = _NOT_SEEN + (() if _knows_all_drafted_counts(generations) else _NOT_PROPOSED)
    stems += _TIMED_COLUMNS if are_most_chunks_simultaneous(generations) else ()
    names = (name for name in define_all_column_names() if name.startswith(stems))
    return {name: None for name in names if not name.startswith(_WHOLE)}


def explain_served_columns(
    generations: Sequence[Generation], lacks_meter: bool, is_retokenised: bool
) -> list[tuple[str, str]]:
    """Explains the columns that a server's answers cannot fill: (column, reason), "" for no reason.
    ``is_retokenised`` if they came as text.
    """
    deliveries = [generation.delivery for generation in generations if generation.delivery]
    if not deliveries:
        return []
    retried_count = sum(delivery.attempts > 1 for delivery in deliveries)
    proposed_reason = (
        ""
        if _knows_all_drafted_counts(generations)
        else "nobody says how many tokens were proposed to a call"
    )
    return [
        ("delivered_tokens", "of the answers' text, tokenised again" if is_retokenised else ""),
        ("host_overhead", "what a server's seconds go to is not seen from outside"),
        ("perplexity", "the target is not loaded here"),
        ("acceptance_rate", proposed_reason),
        ("token_rate", _BURSTS if are_most_chunks_simultaneous(generations) else ""),
        (_ENERGY, _REMOTE_METER if lacks_meter else ""),
        (
            "latency_s",
            f"{retried_count} of {len(deliveries)} answers took several requests"
            if retried_count
            else "",
        ),
    ]


def _knows_all_drafted_counts(generations: Sequence[Generation]) -> bool:
    return all(generation.delivery.proposed for generation in generations if generation.delivery)
