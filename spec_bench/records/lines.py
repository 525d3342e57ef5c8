"""A generation as a line of ``records.parquet``, and back; knows nothing about files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from spec_bench.records.fields import LISTED, PARTS, SCORE, SERVED, STEP
from spec_bench.records.types import Delivery, Generation, StepRecord

UNKNOWN_TOKEN = -1
Scored = float | Sequence[float]
"""A number, of which the score is the mean, or numbers that make the score by their sums."""
Scores = Mapping[str, Mapping[str, Scored]]
"""What each prompt's answer scored: name of the score -> prompt id -> number or numbers."""


def line_of(run_id: str, generation: Generation, scores: Scores) -> dict[str, Any]:
    """A generation as a line, with its scores by column."""
    line = {**vars(generation), "run_id": run_id, "tokens": len(generation.tokens)}
    for each in fields(StepRecord):
        line[f"{STEP}{each.name}"] = [getattr(step, each.name) for step in generation.steps]
    line |= {f"{SERVED}counted": "", f"{SERVED}proposed": 0, f"{SERVED}attempts": 0}
    if (came := generation.delivery) is not None:
        line |= {f"{SERVED}{name}": getattr(came, own) for name, own in _DELIVERY.items()}
        line[f"{SERVED}proposed"] = int(came.proposed)
    for column, own in scores.items():
        line[column] = None if generation.repeat else own.get(generation.prompt_id)
    return line


_DELIVERY = {"s" if each.name == "seconds" else each.name: each.name for each in fields(Delivery)}
_GENERATION = frozenset(each.name for each in fields(Generation))


def generation_of(line: Mapping[str, Any]) -> Generation:
    """Inverts ``line_of`` but for the token ids."""
    names = [each.name for each in fields(StepRecord)]
    columns = zip(*(line[f"{STEP}{name}"] for name in names), strict=True)
    steps = []
    for values in columns:
        step = dict(zip(names, values, strict=True))
        steps.append(StepRecord(**{**step, "widths": tuple(step["widths"])}))
    own = {name: value for name, value in line.items() if name in _GENERATION}
    own |= {"tokens": (UNKNOWN_TOKEN,) * line["tokens"], "steps": tuple(steps)}
    if line[LISTED[1]]:
        came = {own: line[f"{SERVED}{name}"] for name, own in _DELIVERY.items()}
        lists = {name: tuple(came[name]) for name in ("seconds", "tokens")}
        own["delivery"] = Delivery(**{**came, **lists, "proposed": bool(came["proposed"])})
    return Generation(**own)


def column_of(score: str, own: Mapping[str, Scored]) -> str:
    """The column of a score: of one number a prompt, or of several."""
    several = any(isinstance(value, Sequence) for value in own.values())
    return f"{PARTS if several else SCORE}{score}"
