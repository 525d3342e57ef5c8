"""The outcome of a search for a decoder: as a table, an answer in three lines, plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.metrics.choice import Choice, choose
from spec_bench.metrics.interval import Interval
from spec_bench.recommend.needed import Needed
from spec_bench.recommend.screening import Candidate
from spec_bench.records.types import CellResult
from spec_bench.vocabulary.columns import ENDS
from spec_bench.vocabulary.numbers import with_ends

_OF_THE_SEARCH = ("prompts=", "confirm", "cells=", "budget=", "length=", "name=")
_OF_A_DECODER = ("decoder=", "decoder.", "spec=")  # the answer names these itself


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
            measured = {name: ends_of(row, name) for name in ("block_efficiency", "speedup")}
        known = {"block_efficiency": each.block_efficiency, "speedup": each.speedup}
        ours = {name: [i.value, i.low, i.high] for name, i in known.items()}
        line = {"decoder": each.cell.name, "spec": each.cell.spec, "forecast": each.forecast}
        counting = {"why_counted": each.why_counted, "timed": each.timed}
        lines.append({**line, **counting, **ours, "measured": measured})
    return {
        "pair": settings.pair.name,
        "task": settings.task.name,
        "temperature": settings.sampling.temperature,
        "prompts": len(settings.examples),
        "fresh": len(settings.fresh),
        "answer": answer_of(answer, overrides),
        "candidates": lines,
    }


def ends_of(row: CellResult, name: str) -> list[Any]:
    """A number of a row and both ends of its interval."""
    return [row.metrics.get(each) for each in (name, f"{name}_low", f"{name}_high")]


def choice_of(measured: Sequence[CellResult]) -> tuple[list[CellResult], Choice]:
    """The speculative rows with a speed-up, and what follows from all of them."""
    known = ((row, Interval(*ends_of(row, "speedup"))) for row in measured)
    cells = [(row, speed) for row, speed in known if speed.value and row.facts.decoder != BASELINE]
    speeds = [(_title(row), speed, float(row.metrics.get("prompts") or 0)) for row, speed in cells]
    return [row for row, _ in cells], choose(speeds, "confirm.prompts={}")


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
    lines = [
        f"{', '.join(titles)}: counted, not forecast: {why}" for why, titles in reasons.items()
    ]
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
        shown = "".join(
            f"{'never' if acceptance is None else f'{acceptance:.2f}':>10}" for acceptance in least
        )
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
        _, choice = choice_of(answer.measured)
        first, second = choice.answer, f"{choice.why}; {among}"
    else:
        first = f"{best.decoder} {best.spec}"
        second = f"speed-up {_shown(answer.best, 'speedup')} over plain decoding, best of {among}"
        if ties := [*map(_title, answer.ties)]:
            second += f"; tied with {', '.join(ties)}"
    spec = "" if best.decoder == BASELINE or best.spec == "-" else f" spec={best.spec}"
    return [
        first,
        second,
        " ".join(["spec-bench", *kept, f"decoder={best.decoder}{spec}"]),
    ]


def _shown(row: CellResult, name: str) -> str:
    """A number of a row with its interval."""
    value = row.metrics.get(name)
    if not isinstance(value, float | int):
        return "-"
    ends = (row.metrics.get(f"{name}{end}") for end in ENDS)
    low, high = (end if isinstance(end, float) else None for end in ends)
    return with_ends(value, low, high, ".2f")


def _title(row: CellResult) -> str:
    return f"{row.facts.decoder} {row.facts.spec}".strip(" -")
