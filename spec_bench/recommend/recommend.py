"""``python -m spec_bench recommend``: which decoder for this pair, task and machine.

Plain decoding is run once and target and draft are run over its text; from that the block
efficiency of every decoder that can be forecast follows without running it. Decoders that cannot
are counted by running them on the same few prompts, and named with the reason. Iterations of those
that may win are timed on this machine, decoders in turn. The best few are then measured, in turn
with plain decoding, on prompts that nothing has seen. A target alone is enough: decoders that look
up drafts in the text need no other model, and for a draft that does not exist yet a table says what
it would have to cost and accept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.identity import run_id
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.store.store import CellStore
from spec_bench.metrics.intervals import rate_ratio_interval
from spec_bench.metrics.many import at_once
from spec_bench.recommend.needed import Needed, needed, pass_costs
from spec_bench.recommend.screening import Candidate, Screening
from spec_bench.records.types import CellResult
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS
from spec_bench.vocabulary.numbers import with_ends

_OF_THE_SEARCH = ("prompts=", "confirm", "cells=", "budget=", "length=", "name=")
_OF_A_DECODER = ("decoder=", "decoder.", "spec=")  # the answer names its own


@dataclass(frozen=True)
class Recommendation:
    """The answer, and its evidence.

    Attributes:
        candidates: all, the best forecast first.
        measured: rows of those that were measured on fresh prompts, plain decoding among them.
        best: of them; plain decoding if nothing is surely faster.
        ties: of the others, those that are not surely slower than the best.
        needed: what a draft would have to cost and accept, where the pair has none or it does not
            pay.
    """

    candidates: tuple[Candidate, ...]
    measured: tuple[CellResult, ...]
    best: CellResult
    ties: tuple[CellResult, ...] = ()
    needed: tuple[Needed, ...] = ()


def recommend(settings: JobSettings, told: Callable[[str], None] | None = None) -> Recommendation:
    """Looks for the fastest of the cells of a job in two stages; ``told`` takes a line before each
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
    settings, step = settings.pinned(), told or (lambda line: None)
    baseline = settings.cells[0]
    step(f"1 of 3: plain decoding of {len(settings.examples)} prompts")
    (plain,) = run_stage(replace(settings, cells=(baseline,)), ())
    if plain.status != "complete":
        raise ValueError(f"plain decoding failed: {plain.reason}")
    store = CellStore(settings.results, run_id(settings.cell_settings(baseline)))
    step(f"2 of 3: a first look at {len(settings.cells) - 1} decoders")
    screening = Screening(settings, dict(store.load()), told is not None)
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
    faster = [
        row
        for row in measured
        if row.status == "complete" and (_least_speedup(row, len(measured) - 1) or 0) > 1
    ]
    return max(faster, key=lambda row: float(row.metrics["speedup"] or 0), default=plain)


def ties_of(
    best: CellResult, measured: Sequence[CellResult], results: Path
) -> tuple[CellResult, ...]:
    """Rows that may be as fast as the best, by their token rates over the same prompts."""
    others = [row for row in measured if row is not best and row.status == "complete"]
    found, mine = [], CellStore(results, best.run_id).load()
    for row in others:
        own = CellStore(results, row.run_id).load()
        both = [(mine[prompt], own[prompt]) for prompt in mine if prompt in own]
        rates = [[len(each.tokens), each.decode_s] for pair in both for each in pair]
        ours, theirs = rates[::2], rates[1::2]
        ratio = rate_ratio_interval(*zip(*ours, strict=True), *zip(*theirs, strict=True))
        ends = (ratio.value, ratio.low or 0.0, ratio.high or 0.0) if ratio else (0.0, 0.0, 0.0)
        surely = at_once(ends, len(both), len(others)) if both else None
        if surely is None or surely[0] <= 1:
            found.append(row)
    return tuple(found)


def _least_speedup(row: CellResult, of: int) -> float | None:
    """The lower end of the speed-up's interval if so many are to cover; None without one."""
    ends = [each for each in _ends_of(row, "speedup") if isinstance(each, float)]
    prompts = row.metrics.get("prompts")
    if len(ends) < 3 or not isinstance(prompts, int | float):
        return None
    found = at_once((ends[0], ends[1], ends[2]), prompts, of)
    return found[0] if found else None


def main(overrides: Sequence[str]) -> tuple[int, Path | None]:
    """The command; prints all candidates and the answer in three lines.

    Args:
        overrides: as those of a job.

    Returns:
        The exit status, 2 for settings that cannot be right, and the file the page is made from.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from spec_bench.jobs.app import settings_of
    from spec_bench.jobs.config.compose import one_line, recipe_arguments, register
    from spec_bench.settings.configs import conf_dirs

    register()
    try:
        told = ["experiment=recommend", "sink=quiet", "sink.progress=true"]
        told += recipe_arguments(list(overrides))
        with initialize_config_dir(str(conf_dirs()[0]), version_base="1.3"):
            config = compose("config", overrides=told)
        settings = settings_of(config)
        answer = recommend(settings, lambda line: print(line, file=sys.stderr, flush=True))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        print(f"spec_bench: {one_line(error)}", file=sys.stderr)
        return 2, None
    lines = [*table_of(answer), *counted_of(answer), *needed_of(answer), ""]
    print("\n".join([*lines, *answer_of(answer, overrides)]))
    stem = f"recommend-{settings.pair.name}-{settings.task.name}.json"
    kept = files.results_file(settings.results, settings.name).with_name(stem)
    files.write_json(kept, stated(settings, answer, overrides))
    return 0, kept


def stated(
    settings: JobSettings, answer: Recommendation, overrides: Sequence[str]
) -> dict[str, Any]:
    """All candidates with what was forecast and measured, and the answer, as plain values."""
    rows = {(row.facts.decoder, row.facts.spec): row for row in answer.measured}
    lines = []
    for each in answer.candidates:
        row = rows.get((each.cell.name, each.cell.spec))
        measured = None
        if row is not None and row.status == "complete":
            measured = {name: _ends_of(row, name) for name in ("block_efficiency", "speedup")}
        known = {"block_efficiency": each.block_efficiency, "speedup": each.speedup}
        ours = {name: [i.value, i.low, i.high] for name, i in known.items()}
        line = {"decoder": each.cell.name, "spec": each.cell.spec, "forecast": each.forecast}
        told = {"why_counted": each.why_counted, "timed": each.timed}
        lines.append({**line, **told, **ours, "measured": measured})
    return {
        "pair": settings.pair.name,
        "task": settings.task.name,
        "temperature": settings.sampling.temperature,
        "prompts": len(settings.examples),
        "fresh": len(settings.fresh),
        "answer": answer_of(answer, overrides),
        "candidates": lines,
    }


def _ends_of(row: CellResult, name: str) -> list[Any]:
    return [row.metrics.get(each) for each in (name, f"{name}_low", f"{name}_high")]


def table_of(answer: Recommendation) -> list[str]:
    """Every candidate with forecast and measurement."""
    rows = {(row.facts.decoder, row.facts.spec): row for row in answer.measured}
    lines = [f"{'decoder':<22}{'tokens a call':>28}{'speed-up':>20}  measured on fresh prompts"]
    for each in answer.candidates:
        cell, known, faster = each.cell, each.block_efficiency, each.speedup
        efficiency = with_ends(known.value, known.low, known.high, ".2f")
        efficiency += " forecast" if each.forecast else " counted"
        speed = (
            f"{with_ends(faster.value, faster.low, faster.high, '.2f')}{'' if each.timed else '*'}"
        )
        row = rows.get((cell.name, cell.spec))
        measured = (
            "" if row is None else f"{_shown(row, 'block_efficiency')}; {_shown(row, 'speedup')}"
        )
        lines.append(f"{cell.title:<22}{efficiency:>28}{speed:>20}  {measured}".rstrip())
    return lines


def counted_of(answer: Recommendation) -> list[str]:
    """Which decoders were run since they cannot be forecast, by reason; which were not timed."""
    reasons: dict[str, list[str]] = {}
    for each in answer.candidates:
        if each.why_counted:
            reasons.setdefault(each.why_counted, []).append(each.cell.title)
    lines = [f"{', '.join(own)}: counted, not forecast: {why}" for why, own in reasons.items()]
    if not all(each.timed for each in answer.candidates):
        lines.append(
            "* not timed itself: its seconds are what its size should take by those that were, "
            "which is less sure; it was not among the likeliest when these were chosen"
        )
    return ["", *lines] if lines else []


def needed_of(answer: Recommendation) -> list[str]:
    """What a draft would have to accept, by its length and its cost; nothing where one pays."""
    if not answer.needed:
        return []
    shares = list(answer.needed[0].acceptance)
    heads = "".join(f"{f'r = {share:g}':>10}" for share in shares)
    lines = [
        "",
        "A draft pays if its tokens are accepted more often than this, r its seconds over the "
        "target's:",
        f"{'draft tokens':<14}{'cost of a call':>16}{heads}",
    ]
    for each in answer.needed:
        least = (each.acceptance[share] for share in shares)
        shown = "".join(f"{'never' if own is None else f'{own:.2f}':>10}" for own in least)
        lines.append(f"{each.length:<14}{each.cost:>16.2f}{shown}")
    return lines


def answer_of(answer: Recommendation, overrides: Sequence[str]) -> list[str]:
    """The answer in three lines: decoder and spec, speed-up with interval, the command."""
    best, fresh = answer.best.facts, answer.best.metrics.get("prompts")
    others_own = (*_OF_THE_SEARCH, *_OF_A_DECODER)
    kept = [each for each in overrides if not each.lstrip("+").startswith(others_own)]
    others, count = len(answer.measured) - 1, len(answer.candidates)
    among = f"{others} measured on {fresh} fresh prompts, of {count} candidates"
    if best.decoder == BASELINE:
        first, second = "plain decoding", f"speed-up 1: nothing is surely faster; {among}"
    else:
        first = f"{best.decoder} {best.spec}"
        second = f"speed-up {_shown(answer.best, 'speedup')} over plain decoding, best of {among}"
        if ties := [f"{row.facts.decoder} {row.facts.spec}".strip(" -") for row in answer.ties]:
            second += f"; not told apart from {', '.join(ties)}"
    spec = "" if best.decoder == BASELINE or best.spec == "-" else f" spec={best.spec}"
    return [
        first,
        second,
        " ".join(["python -m spec_bench", *kept, f"decoder={best.decoder}{spec}"]),
    ]


def _shown(row: CellResult, name: str) -> str:
    """A number of a row with its interval."""
    value = row.metrics.get(name)
    if not isinstance(value, float | int):
        return "-"
    ends = (row.metrics.get(f"{name}{end}") for end in ENDS)
    low, high = (end if isinstance(end, float) else None for end in ends)
    return with_ends(value, low, high, ".2f")
