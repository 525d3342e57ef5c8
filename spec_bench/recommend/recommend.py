"""Which decoder for this pair, task and machine: all candidates on a few prompts, the best on more.

A search by successive halving: every candidate decodes three prompts, the fastest five ten of them,
and the fastest three are measured on fresh prompts, each time in turn with plain decoding. A stage
is a job like any other, so a search that was interrupted goes on where it was. What the first
stages measured only chooses who comes next, since the best of many on a few prompts is partly luck;
the answer follows from the fresh prompts alone, by the rule of tables and pages. A target alone is
enough: lookups need no draft, and for a draft that does not exist yet a table says what it would
have to cost and accept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from spec_bench.jobs.app import run_stage
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.recommend.needed import Needed, needed_by
from spec_bench.records.types import CellResult
from spec_bench.report.data.rows import Group
from spec_bench.report.page.headline import Headline, headline
from spec_bench.sinks.rows import row_of
from spec_bench.tasks import Example
from spec_bench.vocabulary.columns import ENDS, column

FIRST, KEPT = 3, 5  # prompts that all candidates decode; candidates that decode all of ``prompts``
NUMBERS = ("block_efficiency", "speedup")


@dataclass(frozen=True)
class Recommendation:
    """The answer, and what it rests on."""

    headline: Headline | None  # by the fresh prompts; None where no candidate has a number there
    # A row for each candidate, the best first: decoder, spec, prompts, fresh, NUMBERS with the ends
    # of their intervals and the reason of a failure, all of the last stage that it came to.
    candidates: pd.DataFrame
    needed: tuple[Needed, ...] = ()  # where the pair has no draft, or none pays

    @property
    def cell(self) -> tuple[str, str]:
        """Decoder and spec to use; plain decoding where no other one is surely faster."""
        found = self.headline
        return (found.code, found.spec) if found and found.code else ("ar", "-")

    def answer(self) -> list[str]:
        """What to use, and why."""
        tried = f"of {len(self.candidates)} candidates"
        if self.headline is None:
            return ["AR", f"nothing else has a speed, {tried}"]
        found, (decoder, spec) = self.headline, self.cell
        if decoder == "ar":
            return [found.decoder, f"{found.why}, {tried}"]
        named = f"{decoder} {spec}".removesuffix(" -")
        return [named, f"speed-up {found.speed} over plain decoding, {found.why}, {tried}"]


@dataclass(frozen=True)
class Stage:
    """One job of a search."""

    most: int  # candidates that it takes
    examples: tuple[Example, ...]
    fresh: bool = False  # whether no earlier stage saw the prompts


def stages_of(settings: JobSettings, confirm: ConfirmSettings) -> list[Stage]:
    """The jobs of a search; those that would choose all of so few candidates are left out."""
    count, best = len(settings.cells) - 1, confirm.best
    few = max(KEPT, best)
    last = Stage(min(count, best), settings.fresh, fresh=True)
    if count > few and len(settings.examples) > FIRST:
        return [Stage(count, settings.examples[:FIRST]), Stage(few, settings.examples), last]
    return [Stage(count, settings.examples), last] if count > best else [last]


def cost_of(settings: JobSettings, stages: list[Stage]) -> str:
    """What a search decodes, in one line."""
    parts = [
        f"{f'the best {each.most}' if place else f'{each.most} candidates'} on "
        f"{len(each.examples)}{' fresh' if each.fresh else ''} prompts"
        for place, each in enumerate(stages)
    ]
    cells = sum(each.most + 1 for each in stages)
    answers = sum((each.most + 1) * len(each.examples) for each in stages) * settings.asked.repeats
    return (
        f"{', '.join(parts)}: {cells} cells with plain decoding's, {answers} answers of at most "
        f"{settings.max_new_tokens} tokens"
    )


def recommend(settings: JobSettings, show: Callable[[str], None] | None = None) -> Recommendation:
    """Looks for the fastest of the cells of a job; ``show`` takes a line before each long step.

    Raises:
        ValueError: there are no fresh prompts, no decoder fits the pair, or plain decoding failed.
    """
    confirm = settings.asked.confirm
    if confirm is None:
        raise ValueError("recommend wants fresh prompts: set confirm={prompts: NUMBER}")
    if len(settings.cells) < 2:
        why = f": {settings.left_out[0]}" if settings.left_out else ""
        raise ValueError(f"recommend has no decoder to choose among{why}")
    settings, say = settings.pinned(), show or (lambda line: None)
    stages = stages_of(settings, confirm)
    say(cost_of(settings, stages))
    plain, *left = settings.cells
    lines: dict[int, dict[str, Any]] = {}
    measured: list[CellResult] = []
    for number, stage in enumerate(stages, start=1):
        left = left[: stage.most]
        titles = ", ".join(cell.title for cell in left) if number > 1 else f"{len(left)} decoders"
        say(f"{number} of {len(stages)}: {titles} on {len(stage.examples)} prompts")
        job = replace(
            settings,
            cells=(plain, *left),
            examples=stage.examples,
            fresh=(),
            stage="confirm" if stage.fresh else "screen",
        )
        measured = run_stage(job, ())
        rows = {row.run_id: row for row in measured}
        first = rows[job.run_id(plain)]
        if first.status != "complete":
            raise ValueError(f"plain decoding failed: {first.reason}")
        found = [(cell, rows[job.run_id(cell)]) for cell in left]
        found.sort(key=lambda each: _rank(each[1], confirm.by))
        known = {settings.cells.index(cell): _line(cell, row, stage) for cell, row in found}
        lines = known | {place: line for place, line in lines.items() if place not in known}
        left = [cell for cell, row in found if row.metrics.get(confirm.by) is not None]
        if not left:
            break
    frame = pd.DataFrame([row_of(row) for row in measured])
    best = headline(Group(settings.task.name, frame)) if left else None
    unpaid = best is None or best.code in ("", "ar") or not settings.pair.drafts
    asks = needed_by(settings.pair) if unpaid and settings.served is None else ()
    return Recommendation(best, pd.DataFrame(list(lines.values())), asks)


def _rank(row: CellResult, by: str) -> float:
    """The better the smaller; by the number itself, since on few prompts intervals say little."""
    value = row.metrics.get(by)
    if not isinstance(value, float | int):
        return float("inf")
    return value if column(by).better == "down" else -value


def _line(cell: Cell, row: CellResult, stage: Stage) -> dict[str, Any]:
    """A candidate's numbers of one stage."""
    numbers = [f"{name}{end}" for name in NUMBERS for end in ("", *ENDS)]
    return {
        "decoder": cell.name,
        "spec": cell.spec,
        "prompts": len(stage.examples),
        "fresh": stage.fresh,
        **{name: row.metrics.get(name) for name in numbers},
        "failed": row.reasons[0].text if row.status == "failed" else "",
    }
