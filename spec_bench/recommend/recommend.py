"""``spec-bench recommend``: which decoder for this pair, task and machine.

A search by successive halving (``race``): every candidate decodes two prompts, those that may be
the best more of them, and the best three are measured on fresh prompts, each time in turn with
plain decoding. A stage is a job like any other, so a search that was interrupted goes on where it
was. Whether a decoder is surely faster follows from the fresh prompts alone, by the rule of tables
and pages, since the best of many on a few prompts is partly luck; which of those that tie there is
named, from all prompts of the search. A target alone is enough: lookups need no draft, and for a
draft that does not exist yet a table says what it would have to cost and accept.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from spec_bench.jobs.app import build_job_settings, read_so_far, run_stage
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.compose import compose_config, one_line
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.flags import TYPED, read_escapes
from spec_bench.jobs.config.settings import JobSettings, rank_of
from spec_bench.jobs.sweep.plan import plan_job
from spec_bench.recommend.race import Race
from spec_bench.records.types import CellResult, Stage
from spec_bench.report.data.counts import Counts, RecordReader, value_of_sums
from spec_bench.report.data.rows import Group, get_stall
from spec_bench.report.page.build import render
from spec_bench.report.page.headline import LEAD, Headline, headline, widen
from spec_bench.settings.fields import print_error
from spec_bench.sinks.rows import to_row
from spec_bench.system import files, signals
from spec_bench.system.errors import UsageError
from spec_bench.tasks import Example
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import ENDS, column
from spec_bench.vocabulary.numbers import format_count, format_ends

if TYPE_CHECKING:  # torch, which refusals do not wait for
    from spec_bench.engine.model import LanguageModel
    from spec_bench.jobs.config.pair import Pair

# What a draft would have to cost and accept, from measured passes of the target alone.
#
# A chain of k draft tokens pays where its tokens per call exceed what a call costs: a pass of k + 1
# tokens over a pass of one, and k draft calls of a share r of one each. With every draft token
# accepted with chance a independently, a call delivers (1 - a^(k+1)) / (1 - a) tokens (Leviathan et
# al. 2023, equation 1).

PASSES = (1, 2, 3, 4, 6, 8, 16)
SHARES = (0.0, 0.02, 0.05, 0.1)
_CONTEXT = 64
_ROUNDS = 7


class RequiredSpeed(NamedTuple):
    """One chain that a draft could draft."""

    length: int  # k, its tokens
    cost: float  # of a pass of k + 1 tokens, over a pass of one
    # By share r, the chance of acceptance above which it is faster than plain decoding; None where
    # none is enough.
    acceptance: Mapping[float, float | None]


def measure_required_speeds(pair: Pair) -> tuple[RequiredSpeed, ...]:
    """Returns what the pair's target, measured here, asks of a draft."""
    from spec_bench.jobs.work.models import load_models, load_pair_tokenizer

    return tuple(compute_required(pass_costs(load_models(pair, load_pair_tokenizer(pair)[1])[0])))


def format_lines(table: tuple[RequiredSpeed, ...]) -> list[str]:
    """Returns the table as text, by a draft's length and its cost; nothing where there is none."""
    if not table:
        return []
    heads = "".join(f"{f'r = {share:g}':>10}" for share in SHARES)
    lines = [
        "A draft pays if its tokens are accepted more often than this, r its seconds over the "
        "target's:",
        f"{'draft tokens':<14}{'cost of a call':>16}{heads}",
    ]
    for each in table:
        least = [each.acceptance[share] for share in SHARES]
        shown = ["never" if chance is None else f"{chance:.2f}" for chance in least]
        texts = "".join(f"{text:>10}" for text in shown)
        lines.append(f"{each.length:<14}{each.cost:>16.2f}{texts}")
    return lines


def pass_costs(target: LanguageModel) -> dict[int, float]:
    """Seconds of a pass of T tokens behind a short text over those of one; medians, in turn."""
    import torch

    from spec_bench.engine.model import synchronise

    cache = target.allocate(1, _CONTEXT + max(PASSES))
    seconds: dict[int, list[float]] = {count: [] for count in PASSES}
    with torch.inference_mode():
        for turn in range(_ROUNDS + 1):
            for count in PASSES:
                tokens = torch.arange(1, count + 1, device=target.device).unsqueeze(0)
                positions = _CONTEXT + torch.arange(count, device=target.device).unsqueeze(0)
                seen = torch.ones(1, count, _CONTEXT + count, dtype=torch.bool)
                seen = seen.to(target.device).tril(_CONTEXT)
                synchronise(target.device)
                start = time.perf_counter()
                target.forward(cache, [_CONTEXT], tokens, positions, seen)
                synchronise(target.device)
                if turn:  # the first may warm up
                    seconds[count].append(time.perf_counter() - start)
    one = statistics.median(seconds[1])
    return {count: statistics.median(measured) / one for count, measured in seconds.items()}


def compute_required(costs: Mapping[int, float]) -> list[RequiredSpeed]:
    """What each chain asks, from the seconds of a pass of so many tokens over those of one."""
    table = []
    for length, cost in ((count - 1, cost) for count, cost in costs.items() if count > 1):
        least = {share: break_even_acceptance(length, cost + length * share) for share in SHARES}
        table.append(RequiredSpeed(length, cost, least))
    return table


def break_even_acceptance(length: int, cost: float) -> float | None:
    """The chance of acceptance at which a call of so many draft tokens, drafting included, delivers
    as many tokens as it costs plain calls.
    """
    if cost >= length + 1:
        return None
    if cost <= 1:
        return 0.0
    return float(brentq(lambda a: count_delivered(length, a) - cost, 0.0, 1.0))


def count_delivered(length: int, acceptance: float) -> float:
    """Expected tokens of a call: 1 + a + ... + a^k."""
    return float(sum(acceptance**level for level in range(length + 1)))


NUMBERS = ("block_efficiency", "speedup")
# Of the search, and of a decoder, which the answer names itself.
_DROPPED = (
    "prompts=",
    "confirm",
    "cells=",
    "budget=",
    "length=",
    "name=",
    "decoder=",
    "decoder.",
    "spec=",
)
_HEADS = (
    "decoder",
    "prompts",
    "tokens a call",
    "speed-up (interval: from 5 prompts on, of fresh ones corrected as the answer's)",
)


@dataclass(frozen=True)
class RecommendationResult:
    """The answer, and what it rests on."""

    headline: Headline | None  # by the fresh prompts; None where no candidate has a number there
    # A row for each candidate, the best first: decoder, spec, prompts, fresh, NUMBERS with the ends
    # of their intervals, and the reason of a failure, all of the last stage
    # that it came to.
    candidates: pd.DataFrame
    needed: tuple[RequiredSpeed, ...] = ()  # where the pair has no draft, or none pays

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
        found = self.headline
        decoder, spec = self.cell
        if decoder == "ar":
            return [found.decoder, f"{found.why}, {tried}"]
        named = names.cell_name({"decoder": decoder, "spec": spec})
        return [named, f"speed-up {found.speed} over plain decoding, {found.why}, {tried}"]


def race_of(settings: JobSettings, confirm: ConfirmSettings) -> Race:
    """Returns the race among a job's candidates, with at most as many answers as three prompts of
    all and four candidates on all prompts are.
    """
    count = len(settings.cells)
    prompts = len(settings.examples)
    answers = min(3 * count + 4 * prompts, count * prompts)
    return Race([*range(1, count)], confirm.best, answers, prompts)


def count_answers(settings: JobSettings, race: Race) -> int:
    """Counts the answers that a search decodes yet at most, plain decoding's among them."""
    measured = (min(race.best, len(race.open)) + 1) * len(settings.fresh)
    return (race.answers * bool(race.count_prompts()) + measured) * settings.asked.repeats


def estimate_cost(settings: JobSettings, race: Race) -> str:
    """Returns what a search decodes, in one line."""
    count = len(race.open)
    return (
        f"{format_count(count, 'candidate')}, the best {min(race.best, count)} on "
        f"{len(settings.fresh)} fresh prompts: at most {count_answers(settings, race)} answers of "
        f"at most {settings.max_new_tokens} tokens"
    )


class PlannedOnlyError(ValueError):
    """``plan=true``: nothing was decoded, the text is the plan."""


def _time_of(settings: JobSettings, race: Race) -> str:
    """Says how long a search decodes at the rate that plain decoding is known to have."""
    told = "minutes unknown until plain decoding of this pair is measured"
    if rate := plan_job(settings)[0].rate:
        tokens = count_answers(settings, race) * settings.max_new_tokens
        minutes = tokens / rate.tokens_per_s / 60
        told = f"some {minutes:.1f} minutes at plain decoding's rate ({rate.source})"
    return f"{told}; fewer --decoders or 'confirm={{best: 2, prompts: 12}}' make it shorter"


class _Search:
    """What a search has measured so far; candidates by their places among the cells."""

    def __init__(self, settings: JobSettings, by: str, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.by = by  # the column that ranks
        self.say = say
        self.pace_s = 0.0  # of an answer of plain decoding
        self.lines: dict[int, dict[str, Any]] = {}
        self.counts: dict[int, Counts] = {}  # what the ranking number is made of, by prompt

    def decode(
        self, examples: tuple[Example, ...], places: Sequence[int] = (), stage: Stage = "screen"
    ) -> list[CellResult]:
        """Runs one job of plain decoding and some candidates; returns their results in order."""
        cells = self.settings.cells
        both = (cells[0], *(cells[place] for place in places))
        job = replace(self.settings, cells=both, examples=examples, fresh=(), stage=stage)
        interrupted: KeyboardInterrupt | None = None
        try:
            measured = run_stage(job, ())
        except KeyboardInterrupt as error:
            measured = [*read_so_far(job)]
            interrupted = error
        first, *others = measured
        if places and first.status == "failed":
            raise UsageError(f"plain decoding failed: {first.reason}")
        self.pace_s = float(first.metrics.get("latency_s") or 0)
        pairs = zip(places, others, strict=True)
        found = [each for each in pairs if each[1].metrics or each[1].status == "failed"]
        found.sort(key=lambda each: rank_of(each[1], self.by))
        known = {place: _line(cells[place], row, job) for place, row in found}
        self.lines = known | self.lines | known  # the last stage's first
        if interrupted and self.lines:
            table = _format_table(pd.DataFrame(list(self.lines.values())))
            self.say("\n".join(["the ranking so far, which more prompts may change:", *table]))
        if interrupted:
            raise interrupted
        return measured

    def rank(
        self, places: Sequence[int], measured: Sequence[CellResult]
    ) -> tuple[pd.Series, pd.DataFrame]:
        """Returns candidates' numbers over all prompts so far, the larger the better and NaN of
        those without one; and by prompt.
        """
        name = "token_rate" if self.by.startswith("speedup") else self.by  # of the same prompts
        sign = -1 if column(name).better == "down" else 1
        records = RecordReader(files.results_file(self.settings.results, self.settings.asked.name))
        numbers = {place: pd.Series({"": np.nan}) for place in places}
        for place, row in zip(places, map(to_row, measured), strict=True):
            counts = self.counts.setdefault(place, {})
            counts |= records.counts(row, name) or {}
            if counts:
                table = pd.DataFrame(counts)
                table[""] = table.sum(axis=1)
                values = sign * value_of_sums(table.to_numpy(), row, name)
                numbers[place] = pd.Series(values, table.columns)
        by_prompt = pd.DataFrame(numbers).T
        return by_prompt.pop(""), by_prompt


def recommend(
    settings: JobSettings, show: Callable[[str], None] | None = None
) -> RecommendationResult:
    """Looks for the fastest of the cells of a job; ``show`` takes a line before each long step.
    Raises UsageError: there are no fresh prompts, no decoder fits the pair, plain decoding failed,
    or ``plan=true``.
    """
    confirm = settings.asked.confirm
    if confirm is None:
        raise UsageError("recommend wants fresh prompts: set confirm={prompts: NUMBER}")
    if len(settings.cells) < 2:
        why = f": {settings.left_out[0]}" if settings.left_out else ""
        raise UsageError(f"recommend has no decoder to choose among{why}")
    if settings.asked.sink.wandb.enabled:
        raise UsageError("recommend has no sink=wandb: the job that it recommends logs")
    settings = settings.pin_revisions()
    search = _Search(settings, confirm.by, show or (lambda line: None))
    race = race_of(settings, confirm)
    cost = estimate_cost(settings, race)
    if settings.asked.plan:
        raise PlannedOnlyError(f"{cost}\n{_time_of(settings, race)}")
    search.say(f"{cost}; first, plain decoding's pace on one prompt")
    search.decode(settings.examples[:1])

    def tell(prompts: str) -> None:
        minutes = count_answers(settings, race) * search.pace_s / 60
        stage = f"{format_count(len(race.open), 'decoder')} on {prompts}"
        search.say(f"some {minutes:.1f} minutes left of the whole search at most; now {stage}")

    while count := race.count_prompts():
        tell(format_count(count, "prompt"))
        examples = settings.examples[race.used : race.used + count]
        _, *measured = search.decode(examples, race.open)
        race.end_round(count, *search.rank(race.open, measured))
    frame = pd.DataFrame()
    if best := race.open[: confirm.best]:
        tell(f"{len(settings.fresh)} fresh prompts")
        plain, *measured = search.decode(settings.fresh, best, "confirm")
        frame = pd.DataFrame(map(to_row, [plain, *measured]))
        frame[LEAD] = [np.nan, *search.rank(best, measured)[0]]
    return _conclude(settings, frame, list(search.lines.values()))


def _conclude(
    settings: JobSettings, measured: pd.DataFrame, lines: list[dict[str, Any]]
) -> RecommendationResult:
    """Returns the answer by the rows measured last, if any; lines are all candidates'."""
    best = None if measured.empty else headline(Group(settings.task.name, measured))
    unpaid = best is None or best.code in ("", "ar") or not settings.pair.drafts
    quiet = not any(line["doubt"] for line in lines)  # times of passes are sound
    asks = (
        measure_required_speeds(settings.pair)
        if unpaid and quiet and settings.served is None
        else ()
    )
    for line in lines:
        if best and line["fresh"]:  # as wide as the answer's
            wide = widen(line, "speedup", 1 if best.code == "ar" else best.tied[1])
            line |= zip(column("speedup").names[1:], wide or (), strict=False)
    return RecommendationResult(best, pd.DataFrame(lines), asks)


def _line(cell: Cell, row: CellResult, job: JobSettings) -> dict[str, Any]:
    numbers = [each for name in NUMBERS for each in column(name).names]
    failed = row.reasons[0].text if row.status != "complete" else ""
    measured = {name: row.metrics.get(name) for name in numbers}
    measured["doubt"] = get_stall(to_row(row)).partition(":")[0]
    return {
        "decoder": cell.name,
        "spec": cell.config.spec,
        "prompts": int(row.metrics.get("prompts") or len(job.examples)),
        "fresh": job.stage == "confirm",
        **measured,
        "failed": failed,
    }


def main(overrides: Sequence[str]) -> int:
    """Prints the answer, the job that uses it and the candidates, and writes its page below
    ``results/NAME``; the exit status, 2 for settings that cannot be right.
    """
    try:
        usual = ("experiment=recommend", "sink=quiet", "sink.progress=true")
        settings = build_job_settings(compose_config([*usual, *overrides]))
        with signals.raise_on_signals():
            found = recommend(settings, lambda line: print(line, file=sys.stderr, flush=True))
    except PlannedOnlyError as plan:
        print(plan)
        return 0
    except UsageError as error:
        print_error(f"spec_bench: {one_line(error)}")
        return 2
    answer = found.answer()
    command = format_command(found, overrides)
    needs = format_lines(found.needed)
    table = _format_table(found.candidates)
    told = [": ".join(answer), *([command] if command else []), ""]
    print("\n".join([*told, *table, *([""] if needs else []), *needs]))
    page = files.results_file(settings.results, settings.asked.name).with_name(
        f"recommend-{settings.pair.name}-{settings.task.name}.html"
    )
    text = render(
        "recommended.html.j2",
        pair=settings.pair.name,
        task=names.task_title(settings.task.name),
        temperature=settings.sampling.temperature,
        told=[*answer, command],
        heads=_HEADS,
        lines=list(_lines(found.candidates)),
        needs="\n".join(needs),
    )
    files.write_text(page, text)
    print(f"page: {page}")
    return 0


def format_command(found: RecommendationResult, overrides: Sequence[str]) -> str:
    """Returns the job that uses what is recommended, on the settings that were asked for; "" where
    nothing is yet.
    """
    if found.headline and not found.headline.code:
        return ""
    kept = [each for each in overrides if not each.lstrip("+").startswith(_DROPPED)]
    decoder, spec = found.cell
    chosen = f"{decoder}:{spec}".rstrip(":-")
    return shlex.join(["spec-bench", "run", *read_escapes(kept, TYPED), "--decoders", chosen])


def _format_table(candidates: pd.DataFrame) -> list[str]:
    lines = [_HEADS, *([text for _, text in line] for line in _lines(candidates))]
    wide = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, wide)).rstrip() for line in lines]


def _lines(candidates: pd.DataFrame) -> Iterator[list[tuple[str, str]]]:
    """Yields each candidate's cells: what each is sorted by, and its text."""
    for row in candidates.to_dict("records"):
        title = names.cell_name(row)
        prompts = str(row["prompts"])
        title += f", {row['doubt']}" if row["doubt"] else ""
        cells = [(title, title), (prompts, f"{prompts}{' fresh' if row['fresh'] else ''}")]
        for name in NUMBERS:
            value, low, high = (row[f"{name}{end}"] for end in ("", *ENDS))
            ends = format_ends(low, high, ".2f")
            text = "-" if pd.isna(value) else f"{value:.2f} {ends}".rstrip()
            cells.append(("" if pd.isna(value) else f"{value:.4f}", text))
        *others, (rank, text) = cells
        told = f"failed: {row['failed']}" if text == "-" else f"{text}, partial: {row['failed']}"
        yield [*others, (rank, told)] if row["failed"] else cells
