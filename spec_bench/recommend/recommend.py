"""``spec-bench recommend``: which decoder for this pair, task and machine.

A search by successive halving: every candidate decodes three prompts, the fastest five ten of them,
and the fastest three are measured on fresh prompts, each time in turn with plain decoding. A stage
is a job like any other, so a search that was interrupted goes on where it was. What the first
stages measured only chooses who comes next, since the best of many on a few prompts is partly luck;
the answer follows from the fresh prompts alone, by the rule of tables and pages. A target alone is
enough: lookups need no draft, and for a draft that does not exist yet a table says what it would
have to cost and accept.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd
from omegaconf import OmegaConf

from spec_bench.jobs.app import run_stage, settings_of
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.compose import composed, one_line
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.recommend.needed import Needed, lines_of, needed_by
from spec_bench.records.types import CellResult
from spec_bench.report.data.rows import Group
from spec_bench.report.page.build import render
from spec_bench.report.page.headline import Headline, headline
from spec_bench.settings.fields import complain
from spec_bench.sinks.rows import row_of
from spec_bench.system import files
from spec_bench.tasks import Example
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import ENDS, column
from spec_bench.vocabulary.numbers import ends_of

FIRST, KEPT = 3, 5  # prompts that all candidates decode; candidates that decode all of ``prompts``
NUMBERS = ("block_efficiency", "speedup")
_NOT_HERE = {
    "plan": "decodes to find its answer; spec-bench run has plan=true",
    "sink.wandb.enabled": "logs nothing; the job that it recommends does",
}
_OF_THE_SEARCH = ("prompts=", "confirm", "cells=", "budget=", "length=", "name=")
_OF_A_DECODER = ("decoder=", "decoder.", "spec=")  # the answer names these itself
_HEADS = ("decoder", "prompts", "tokens a call", "speed-up")


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
        """Returns what to use, and why."""
        tried = f"of {len(self.candidates)} candidates"
        if self.headline is None:
            return ["AR", f"nothing else has a speed, {tried}"]
        found, (decoder, spec) = self.headline, self.cell
        if decoder == "ar":
            return [found.decoder, f"{found.why}, {tried}"]
        named = names.name_of({"decoder": decoder, "spec": spec})
        return [named, f"speed-up {found.speed} over plain decoding, {found.why}, {tried}"]


class Stage(NamedTuple):
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
    """Returns what a search decodes, in one line."""
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
    Raises ValueError: there are no fresh prompts, no decoder fits the pair, or plain decoding
    failed.
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
    numbers = [f"{name}{end}" for name in NUMBERS for end in ("", *ENDS)]
    failed = row.reasons[0].text if row.status == "failed" else ""
    prompts = {"prompts": len(stage.examples), "fresh": stage.fresh}
    measured = {name: row.metrics.get(name) for name in numbers}
    return {"decoder": cell.name, "spec": cell.config.spec, **prompts, **measured, "failed": failed}


def main(overrides: Sequence[str]) -> int:
    """Prints the answer, the job that uses it and the candidates, and writes its page below
    ``results/NAME``; the exit status, 2 for settings that cannot be right.
    """
    try:
        usual = ("experiment=recommend", "sink=quiet", "sink.progress=true")
        config = composed([*usual, *overrides])
        for key, asked in _NOT_HERE.items():
            if OmegaConf.select(config, key):
                raise ValueError(f"recommend has no {key}: it {asked}")
        settings = settings_of(config)
        found = recommend(settings, lambda line: print(line, file=sys.stderr, flush=True))
    except ValueError as error:
        complain(f"spec_bench: {one_line(error)}")
        return 2
    answer, command, needs = found.answer(), command_of(found, overrides), lines_of(found.needed)
    lines = [_HEADS, *([text for _, text in line] for line in _lines(found.candidates))]
    wide = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, wide)).rstrip() for line in lines]
    told = [": ".join(answer), *([command] if command else []), ""]
    print("\n".join([*told, *table, *([""] if needs else []), *needs]))
    page = files.results_file(settings.results, settings.asked.name).with_name(
        f"recommend-{settings.pair.name}-{settings.task.name}.html"
    )
    text = render(
        "recommended.html.j2",
        pair=settings.pair.name,
        task=names.task(settings.task.name),
        temperature=settings.sampling.temperature,
        told=[*answer, command],
        heads=_HEADS,
        lines=list(_lines(found.candidates)),
        needs="\n".join(needs),
    )
    files.write_text(page, text)
    print(f"page: {page}")
    return 0


def command_of(found: Recommendation, overrides: Sequence[str]) -> str:
    """Returns the job that uses what is recommended, on the settings that were asked for; "" where
    nothing is yet.
    """
    if found.headline and not found.headline.code:
        return ""
    others = (*_OF_THE_SEARCH, *_OF_A_DECODER)
    kept = [each for each in overrides if not each.lstrip("+").startswith(others)]
    decoder, spec = found.cell
    tree = [] if decoder == "ar" or spec == "-" else [f"spec={spec}"]
    chosen = [f"decoder={decoder}", *tree]
    if " " in decoder:  # a decoder with settings of its own
        chosen = [f'--decoders "{decoder}:{spec}"']
    return " ".join(["spec-bench run", *kept, *chosen])


def _lines(candidates: pd.DataFrame) -> Iterator[list[tuple[str, str]]]:
    """Yields each candidate's cells: what each is sorted by, and its text."""
    for row in candidates.to_dict("records"):
        title, prompts = names.name_of(row), str(row["prompts"])
        cells = [(title, title), (prompts, f"{prompts}{' fresh' if row['fresh'] else ''}")]
        for name in NUMBERS:
            value, low, high = (row[f"{name}{end}"] for end in ("", *ENDS))
            text = "-" if pd.isna(value) else f"{value:.2f} {ends_of(low, high, '.2f')}".strip()
            cells.append(("" if pd.isna(value) else f"{value:.4f}", text))
        yield [*cells[:-1], ("", f"failed: {row['failed']}")] if row["failed"] else cells
