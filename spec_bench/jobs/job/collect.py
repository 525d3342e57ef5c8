"""From a finished cell's records to its row.

Knows the session, the metrics and the columns; nothing about how a cell was decoded, nor of Hydra.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, starmap, takewhile
from typing import Any

from spec_bench.core import processes
from spec_bench.decode.config import AnyDecoder
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.generate import GenerateDecoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.session import CellRun, Session, pair_timings, summarise_error
from spec_bench.jobs.store.experiment import job_id
from spec_bench.jobs.work.metering import NO_SAMPLE, energy_reasons
from spec_bench.jobs.work.prompts import JobPrompts
from spec_bench.measure.roofline import (
    bound_over_measured,
    count_bytes_of_prompt,
    measure_bandwidth,
    model_cost,
    nominal_bandwidth,
)
from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.calls import levels_per_call
from spec_bench.metrics.efficiency import came_in_bursts, disturbance_note, stall_note
from spec_bench.metrics.interval import FEW_CLOCKS, FEWEST, TOO_FEW
from spec_bench.records.parquet import Scores
from spec_bench.records.types import CellFacts, CellResult, Generation, Reason
from spec_bench.sinks.rows import get_digest_columns
from spec_bench.vocabulary.columns import ENDS, header

log = logging.getLogger(__name__)
RATE = "acceptance_rate"
_ENERGY = "energy_j_per_token"
_VARY = "trees have another form in every call, where a path ends is no rejection"
_CUT = ("block_efficiency", "mbsu", RATE)
_DROPPED = (
    "transformers drops what it accepts behind an answer's end; see tokens delivered per call"
)
# What a row of a server, or of recorded iterations, leaves empty, and why.
_NOT_SEEN = ("draft_s", "target_s", "host_")  # what these columns' names begin with
_ONE_GRAPH = "an iteration is one graph: which seconds were the draft's or the host's is not seen"
_BURSTS = (
    "chunks came in bursts, as behind a proxy that buffers: when each was made is not to be seen"
)
_UNNAMED = "of a server, that of the GPUs that are named: energy=nvml energy.devices=[0]"
# What hangs on when the chunks came; whole answers' seconds do not.
_WHOLE = "token_rate_end_to_end"
_TIMED = (
    "prefill_s", "decode_s", "ttft_s", "inter_token_s", "chunk_gap_s", "token_rate", "speedup",
    "energy_j", "energy_saving",
)  # fmt: skip
_NOT_PROPOSED = ("acceptance_rate", "nodes_per_call")


def write_results(session: Session, ran: Mapping[str, Any]) -> None:
    """Writes the result of every cell that this job worked on."""
    job = job_id(run.run_id for run in session.runs)
    baseline = session.baseline
    assert baseline or session.settings.served
    for run in (run for run in session.pending if not run.shared):
        known = {**ran, **get_digest_columns(run.models)}
        known["token_ids_digest"] = session.prompts.token_ids_digest
        facts = replace(session.settings.facts(run.cell), **known)
        beside = dict[str, Any]()
        try:
            if run.decoder is not None:
                ids = _select_counted_prompts(session, run)
                if not ids:
                    raise next(iter(run.failed.values()))
                timed = _complete_repeats(run, ids)
                reference = pair_timings(timed, session.against) if baseline else None
                result, beside["scores"] = _build_result(
                    session, facts, run, run.decoder, timed, reference
                )
                if reference is not None and baseline:
                    sittings = sorted({each.sitting for one in reference for each in one})
                    beside["compared"] = {"run_id": baseline.run_id, "sittings": sittings}
        except Exception as error:
            run.fail(error)
        if run.failure is not None:
            result = CellResult(run.run_id, facts, "failed", reasons=(run.failure,))
        run.store.finish(result, job, **beside)


def _build_result(
    session: Session,
    facts: CellFacts,
    run: CellRun,
    decoder: AnyDecoder,
    timed: list[list[Generation]],
    baseline: list[list[Generation]] | None,
) -> tuple[CellResult, Scores]:
    """A row with its numbers, and what each answer scored; if a column is empty the reason says
    why. Without a baseline that was timed in turn it is ``partial``: a rerun times both, and fills
    in the speedup.
    """
    settings = session.settings
    prompts = session.prompts
    reference, more = (baseline[0], baseline[1:]) if baseline else (None, [])
    texts = prompts.texts(timed[0])
    records = CellRecords(
        timed[0],
        baseline=reference,
        again=timed[1:],
        baseline_again=more,
        texts=texts,
        references=prompts.references,
        draft_calls=_draft_calls(decoder, timed[0]),
        parameter_ratio=decoder.speed_ratio,
        batched=settings.engine.batch_size > 1 and settings.served is None,
        depth=None if settings.served else decoder.depth,
    )
    exact = decoder.lossless == "exact" and not settings.sampling.temperature
    _warn_of_answers(run.cell.title, [*texts.values()], _count_others(records) if exact else 0)
    summary = summarise(records, prompts.task.scores, tokenize=prompts.task.tokenize)
    failed = explain_missing_prompts(session, run, records.ids)
    without = _find_undefined_metrics(decoder, summary.row)
    meter = session.metering.meter
    emptied = [f"{name}{end}" for name in without for end in ("", *ENDS)]
    emptied += [f"{RATE}_by_depth"] * (RATE in without)
    lengths = {each.prompt_id: len(each.prompt_ids) for each in prompts.requests}
    alone = reference is None and not has_no_baseline(settings)
    result = CellResult(
        run.run_id,
        facts,
        "partial" if failed or summary.failed or alone else "complete",
        decoder.lossless,
        (
            *failed,
            *_reasons(session, run, records),
            *starmap(Reason, [*without.items(), *summary.failed]),
        ),
        summary.row
        | dict.fromkeys(emptied)
        | _system_columns(settings, run, decoder, prompts)
        | roofline_columns(decoder, records.windows, lengths, facts.device)
        | empty_served_columns(records.windows)
        | ({"prompts_failed": prompts.count - len(records.ids)} if failed else {})
        | {
            "energy_method": None if meter.name == "none" else meter.name,
            "energy_period_s": meter.period_s,
            "idle_power_w": meter.idle_power_w,
        },
        None if reference is None else "same job",
    )
    return result, summary.scores


def explain_missing_prompts(session: Session, run: CellRun, counted: Sequence[str]) -> list[Reason]:
    """Returns how many prompts are left out of a row, and why the first one; nothing of none."""
    prompts = session.prompts
    lost = prompts.count - len(counted)
    beside = session.baseline.failed if session.baseline else {}
    every = {**beside, **prompts.failed, **run.failed}
    why = next(
        (f"{name!r}, {summarise_error(every[name])}" for name in every if name not in counted), ""
    )
    return [Reason("prompts_failed", f"{lost} of {prompts.count}: {why}")] if lost else []


def _find_undefined_metrics(decoder: AnyDecoder, row: Mapping[str, Any]) -> dict[str, str]:
    """Metrics that a decoder's records do not tell, and why.

    A record says how deep a call's tree was and how much of it was accepted. In a tree that the
    draft reshapes every time a path may end above the deepest level: reaching its end is no
    rejection, and whether that happened is not recorded. transformers drops what it accepts behind
    an answer's end, which our block efficiency counts. No joules are no measurement.
    """
    unmetered = {_ENERGY: NO_SAMPLE} if row[_ENERGY] == 0 else {}
    if isinstance(decoder, Decoder) and decoder.policy.varies:
        return {RATE: _VARY} | unmetered
    cuts = isinstance(decoder, GenerateDecoder) and decoder.aid.tokens > 0
    return dict.fromkeys(_CUT if cuts else (), _DROPPED) | unmetered


def _draft_calls(decoder: AnyDecoder, generations: Sequence[Generation]) -> float | None:
    """L of MBSU: the decoder states it, or it is counted where its trees have no fixed depth."""
    if not isinstance(decoder, Decoder) or not decoder.policy.as_deep_as_drafted:
        return decoder.draft_calls
    a_level = decoder.draft_calls == decoder.depth  # one call
    return levels_per_call(generations) if a_level else decoder.draft_calls


def _system_columns(
    settings: JobSettings, run: CellRun, decoder: AnyDecoder, prompts: JobPrompts
) -> dict[str, Any]:
    """Columns that are not metrics of the records."""
    longest = [(len(each.prompt_ids), each.max_new_tokens) for each in prompts.requests]
    values: dict[str, Any] = {"peak_memory_bytes": run.memory.peak_bytes}
    if not settings.served:
        values["cache_bytes"] = max(decoder.cache_bytes(*each) for each in longest)
    if settings.pair.specs[0].compile.startswith("static"):
        recordings = getattr(decoder, "recordings", None)
        refused = f": {recordings.refused}" if recordings and recordings.refused else ""
        values["passes"] = f"{run.ran.share}{refused}"
        values["captures"] = len(recordings.made) if recordings else 0
        if run.ran.recorded:
            values |= dict.fromkeys(name for name in header() if name.startswith(_NOT_SEEN))
    if settings.task.overlong != "fail":
        values |= {"prompts_truncated": prompts.truncated, "prompts_skipped": prompts.skipped}
    return values


def _reasons(session: Session, run: CellRun, records: CellRecords) -> list[Reason]:
    settings = session.settings
    left_out = session.prompts.left_out
    none = "the baseline failed, none was timed in turn"
    if has_no_baseline(settings):
        none = "no server decodes plainly beside it, server.baseline_url names none"
    not_asked = f"{left_out} not asked, no fixed answer to continue"
    few_clocks = 0 < len({*records.clocks}) < FEWEST
    causes = [
        ("speedup", none if records.baseline is None else ""),
        ("later_turns", not_asked if left_out else ""),
        ("speedup", disturbance_note(records, session.slowdown()) or stall_note(records)),
        ("host_overhead", _ONE_GRAPH if run.ran.recorded else ""),
        ("repeats", _describe_changed_repeats(records)),
        ("intervals", TOO_FEW if len(records.generations) < FEWEST else ""),
        ("intervals", FEW_CLOCKS if few_clocks else ""),
        ("spec", run.cell.config.describe_cut(run.decoder) if run.decoder else ""),
    ]
    meter = session.metering.meter
    unmetered = bool(settings.served) and meter.name == "none"
    retold = settings.served is not None and settings.served.tokens == "text"
    causes += explain_served_columns(records.windows, unmetered, retold)
    reasons = [Reason(column, text) for column, text in causes if text]
    return reasons if unmetered else [*reasons, *energy_reasons(meter.reason, records.windows)]


def _select_counted_prompts(session: Session, run: CellRun) -> list[str]:
    """Returns the prompts that a row is about: decoded in every repeat, the baseline beside."""
    repeats = [run.done[each] for each in range(session.settings.asked.repeats)]
    names = [each.prompt_id for each in session.prompts.requests]
    ids = [name for name in names if all(name in each for each in repeats)]
    beside = [name for name in ids if pair_timings([[e[name]] for e in repeats], session.against)]
    return beside or ids


def _complete_repeats(run: CellRun, ids: Sequence[str]) -> list[list[Generation]]:
    """The generations of each whole repeat, in the order of the requests."""
    whole = takewhile(lambda repeat: set(ids) <= run.done[repeat].keys(), count())
    return [[run.done[repeat][prompt_id] for prompt_id in ids] for repeat in whole]


def _warn_of_answers(title: str, texts: Sequence[str], others: int) -> None:
    """Warns where most answers are empty, and of greedy ones that are not plain decoding's."""
    empty = sum(not text.strip() for text in texts)
    if 2 * empty > len(texts):
        what = f"{title}: {empty} of {len(texts)} answers are empty"
        log.warning("%s: is its template, or what ends an answer, right?", what)
    if others:
        what = f"{title}: {others} of {len(texts)} greedy answers differ from plain decoding's"
        log.warning("%s: see spec-bench check decoders --target", what)


def _count_others(records: CellRecords) -> int:
    """Returns how many answers are not plain decoding's."""
    both = zip(records.generations, records.baseline or records.generations, strict=True)
    return sum(each.tokens != plain.tokens for each, plain in both)


def _describe_changed_repeats(records: CellRecords) -> str:
    """Returns what to mind if a device does not decode the same every time; "" if it did."""
    again = [each for repeat in records.again for each in repeat]
    first = [*records.generations] * len(records.again)
    other = sum(not each.repeats(once) for each, once in zip(again, first, strict=True))
    said = "delivered other tokens than the first, as this device may; counts are of the first"
    return f"{other} of {len(again)} later windows {said}" if other else ""


def roofline_columns(
    decoder: AnyDecoder,
    generations: list[Generation],
    prompt_tokens: dict[str, int],
    device_name: str,
) -> dict[str, Any]:
    """Columns of the roofline; none if what the models read is unknown. Layers spread over several
    GPUs run one after another, at one GPU's bandwidth; a target split over processes is read by all
    of them at once. The bandwidth is measured after all decoding, so it costs no cell any time.
    """
    models = (decoder.target, *decoder.drafts)
    calls = sum(len(each.steps) for each in generations)
    known = [model for model in models if isinstance(model, HuggingFaceModel)]
    if not calls or len(known) < len(models):
        return {}
    target, *drafts = (model_cost(each.module, each.bytes_per_slot) for each in known)
    heads = getattr(decoder, "heads", None)
    head_bytes = float(sum(part.nbytes for part in heads.parameters())) if heads else 0.0
    moved = sum(
        count_bytes_of_prompt(
            each, prompt_tokens[each.prompt_id], target, drafts, head_bytes, decoder.rows
        )
        for each in generations
    )
    at_once = max(1, processes.count())
    columns: dict[str, Any] = {"moved_bytes": round(moved / calls)}
    if (measured := measure_bandwidth(known[0].module)) is not None:
        columns["bandwidth_bytes_per_s"] = round(measured * at_once)
    if (nominal := nominal_bandwidth(device_name)) is not None:
        share = bound_over_measured(moved, generations, nominal * at_once)
        columns["bound_over_measured"] = share
    return columns


def has_no_baseline(settings: JobSettings) -> bool:
    """Returns whether nothing decodes plainly beside a server."""
    served = settings.served
    return served is not None and not served.has_baseline and served.decoder != "ar"


def empty_served_columns(windows: Sequence[Generation]) -> dict[str, Any]:
    """Columns that a client cannot fill, emptied; none if this program decoded."""
    if not any(each.delivery for each in windows):
        return {}
    stems = _NOT_SEEN + (() if _has_proposals(windows) else _NOT_PROPOSED)
    stems += _TIMED if came_in_bursts(windows) else ()
    emptied = (name for name in header() if name.startswith(stems))
    return {name: None for name in emptied if not name.startswith(_WHOLE)}


def explain_served_columns(
    windows: Sequence[Generation], unmetered: bool, retold: bool
) -> list[tuple[str, str]]:
    """Why they are empty, and what to mind about others; ``retold``: answers came as text."""
    came = [each.delivery for each in windows if each.delivery]
    if not came:
        return []
    again = sum(each.attempts > 1 for each in came)
    unknown = (
        "" if _has_proposals(windows) else "nobody says how many tokens were proposed to a call"
    )
    return [
        ("delivered_tokens", "of the answers' text, tokenised again" if retold else ""),
        ("host_overhead", "what a server's seconds go to is not seen from outside"),
        ("perplexity", "the target is not loaded here"),
        ("acceptance_rate", unknown),
        ("token_rate", _BURSTS if came_in_bursts(windows) else ""),
        (_ENERGY, _UNNAMED if unmetered else ""),
        ("latency_s", f"{again} of {len(came)} answers took several requests" if again else ""),
    ]


def _has_proposals(windows: Sequence[Generation]) -> bool:
    return all(each.delivery.proposed for each in windows if each.delivery)
