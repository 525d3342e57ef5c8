"""``spec-bench recommend``: which decoder for this pair, task and machine.

Plain decoding is run once and target and draft are run over its text; from that the block
efficiency of every decoder that can be forecast follows without running it. Decoders that cannot
are counted by running them on the same few prompts, and named with the reason. Iterations of those
that may win are timed on this machine, decoders in turn. The best few are then measured, in turn
with plain decoding, on prompts that nothing has seen. A target alone is enough: decoders that look
up drafts in the text need no other model, and for a draft that does not exist yet a table says what
it would have to cost and accept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.identity import run_id
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.store.store import CellStore
from spec_bench.metrics.intervals import rate_ratio_interval
from spec_bench.metrics.many import at_once
from spec_bench.recommend.answer import Recommendation, choice_of
from spec_bench.recommend.needed import needed, pass_costs
from spec_bench.recommend.screening import Screening
from spec_bench.records.types import CellResult


def recommend(settings: JobSettings, show: Callable[[str], None] | None = None) -> Recommendation:
    """Looks for the fastest of the cells of a job in two stages; ``show`` takes a line before each
    long step.

    Raises:
        ValueError: the job does not have two stages, no decoder fits the pair, or plain decoding
            failed.
    """
    from spec_bench.jobs.app import run_stage

    confirm = settings.confirm
    if confirm is None:
        raise ValueError("recommend wants fresh prompts: set confirm={prompts: NUMBER}")
    if len(settings.cells) < 2:
        why = f": {settings.left_out[0]}" if settings.left_out else ""
        raise ValueError(f"recommend has no decoder to choose among{why}")
    settings, step = settings.pinned(), show or (lambda line: None)
    baseline = settings.cells[0]
    step(f"1 of 3: plain decoding of {len(settings.examples)} prompts")
    (plain,) = run_stage(replace(settings, cells=(baseline,)), ())
    if plain.status != "complete":
        raise ValueError(f"plain decoding failed: {plain.reason}")
    store = CellStore(settings.results, run_id(settings.cell_settings(baseline)))
    step(f"2 of 3: a first look at {len(settings.cells) - 1} decoders")
    screening = Screening(settings, dict(store.load()), show is not None)
    candidates = screening.candidates()
    tried = [each for each in candidates if each.timed][: confirm.best]
    titles = ", ".join(each.cell.title for each in tried)
    step(f"3 of 3: {titles} in turn with plain decoding, {len(settings.fresh)} fresh prompts")
    second = replace(
        settings,
        cells=(baseline, *(each.cell for each in tried)),
        examples=settings.fresh,
        fresh=(),
        confirm=None,
        stage="confirm",
    )
    measured = run_stage(second, ())
    best = best_of(measured)
    unpaid = best.facts.decoder == BASELINE or not settings.pair.drafts
    return Recommendation(
        tuple(candidates),
        tuple(measured),
        best,
        ties_of(best, measured, settings.results),
        tuple(needed(pass_costs(screening.target))) if unpaid else (),
    )


def best_of(measured: Sequence[CellResult]) -> CellResult:
    """The fastest complete row; plain decoding if none is surely faster, for all at once."""
    (plain,) = (row for row in measured if row.facts.decoder == BASELINE)
    rows, choice = choice_of(measured)
    faster = [rows[place] for place in choice.faster]
    return max(faster, key=lambda row: float(row.metrics["speedup"] or 0), default=plain)


def ties_of(
    best: CellResult, measured: Sequence[CellResult], results: Path
) -> tuple[CellResult, ...]:
    """Rows that may be as fast as the best, by their token rates over the same prompts."""
    others = [row for row in measured if row is not best and row.status == "complete"]
    tied, mine = [], CellStore(results, best.run_id).load()
    for row in others:
        other = CellStore(results, row.run_id).load()
        both = [(mine[prompt], other[prompt]) for prompt in mine if prompt in other]
        rates = [[len(each.tokens), each.decode_s] for pair in both for each in pair]
        ours, theirs = rates[::2], rates[1::2]
        ratio = rate_ratio_interval(*zip(*ours, strict=True), *zip(*theirs, strict=True))
        ends = (ratio.value, ratio.low or 0.0, ratio.high or 0.0) if ratio else (0.0, 0.0, 0.0)
        surely = at_once(ends, len(both), len(others)) if both else None
        if surely is None or surely[0] <= 1:
            tied.append(row)
    return tuple(tied)
