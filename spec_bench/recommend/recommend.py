"""``spec-bench recommend``: finds the fastest decoder for a pair, a task and this machine.

Searches by successive halving (``race``): every candidate decodes two prompts, better candidates
decode more, and the best ones also decode fresh prompts, always in turn with plain decoding. A
stage is an ordinary job, so an interrupted search resumes. Only the fresh prompts decide whether a
decoder is surely faster, by the rule of tables and pages, because the best of many candidates on a
few prompts is partly luck; among decoders that tie there, all prompts of the search decide. A
target alone is enough: lookups need no draft, and a table gives the cost and acceptance that a
future draft would need.
"""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spec_bench.jobs.app import build_unpinned_settings, iter_partial_results, run_stages
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.compose import compose_config
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.confirmation import compute_rank_key
from spec_bench.jobs.config.flags import TYPED_ESCAPE, replace_escapes_in_model_texts
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.sweep.plan import plan_stage
from spec_bench.recommend.draft_cost import (
    ChainBreakEven,
    format_break_even_lines,
    measure_break_evens,
)
from spec_bench.recommend.race import CandidateElimination
from spec_bench.records.types import CellResult, Stage
from spec_bench.report.data.counts import Counts, RecordReader, compute_metric_from_sums
from spec_bench.report.data.rows import Group, get_timing_doubt
from spec_bench.report.page.build import render_template
from spec_bench.report.page.headline import LEAD, Headline, make_headline, widen_interval
from spec_bench.sinks.rows import result_to_row
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.tasks import Example
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import ENDS, get_column
from spec_bench.vocabulary.numbers import format_count, format_ends

NUMBERS = ("block_efficiency", "speedup")
# Overrides that the recommended job drops: those of the search, and those of the decoder.
_DROPPED_COLUMNS = (
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
_TABLE_HEADS = (
    "decoder",
    "prompts",
    "tokens a call",
    "speed-up (interval: from 5 prompts on, of fresh ones corrected as the answer's)",
)


@dataclass(frozen=True)
class RecommendationResult:
    """The recommended decoder and its evidence."""

    headline: Headline | None  # on the fresh prompts; None if no candidate has a number on them
    # A row per candidate, the best first: decoder, spec, prompts, fresh, NUMBERS with the ends of
    # their intervals, and a failure's reason, all from the candidate's last stage.
    candidates: pd.DataFrame
    break_evens: tuple[ChainBreakEven, ...] = ()  # if the pair has no draft, or no draft pays
    # decoder and tree of the candidates that only disturbed or stalled rates excluded from the
    # fresh prompts
    dropped_while_disturbed: tuple[str, ...] = ()

    @property
    def cell(self) -> tuple[str, str]:
        """Decoder and spec to use; plain decoding if no other is surely faster."""
        winner = self.headline
        return (winner.decoder_name, winner.spec) if winner and winner.decoder_name else ("ar", "-")

    def format_answer(self) -> list[str]:
        """Formats the decoder to use, and the reason."""
        candidate_count = f"of {len(self.candidates)} candidates"
        if self.headline is None:
            return ["AR", f"nothing else has a speed, {candidate_count}"]
        winner = self.headline
        decoder, spec = self.cell
        reason_text = winner.why
        if self.dropped_while_disturbed:
            reason_text = reason_text.replace(
                "surely faster than AR", "faster than AR on the fresh prompts"
            )
            dropped_names = ", ".join(self.dropped_while_disturbed)
            candidate_count += "; perhaps not the fastest: on disturbed rates "
            candidate_count += f"{dropped_names} left out"
        if decoder == "ar":
            return [winner.decoder, f"{reason_text}, {candidate_count}"]
        cell_name = names.format_decoder_and_tree({"decoder": decoder, "spec": spec})
        return [
            cell_name,
            f"speed-up {winner.speed} over plain decoding, {reason_text}, {candidate_count}",
        ]


def start_race(settings: JobSettings, confirm: ConfirmSettings) -> CandidateElimination:
    """Starts the race among a job's candidates, with a budget of at most 3 answers per cell plus 4
    per prompt.
    """
    count = len(settings.cells)
    prompts = len(settings.examples)
    answers = min(3 * count + 4 * prompts, count * prompts)
    return CandidateElimination([*range(1, count)], confirm.best, answers, prompts)


def count_remaining_answers(settings: JobSettings, race: CandidateElimination) -> int:
    """Counts the answers that a search still decodes at most, plain decoding's included."""
    fresh_answers = (min(race.winner_count, len(race.candidates)) + 1) * len(
        settings.confirmation_examples
    )
    return (
        race.answer_budget * bool(race.count_next_round_prompts()) + fresh_answers
    ) * settings.request.repeats


def describe_search_cost(settings: JobSettings, race: CandidateElimination) -> str:
    """Describes in one line how many candidates, fresh prompts and answers a search has at most."""
    count = len(race.candidates)
    answers = count_remaining_answers(settings, race)
    return (
        f"{format_count(count, 'candidate')}, the best {min(race.winner_count, count)} on "
        f"{len(settings.confirmation_examples)} fresh prompts: at most {answers} answers of "
        f"at most {settings.max_new_tokens} tokens"
    )


class StopAfterPlanError(ValueError):
    """Ends a search with ``plan=true`` before it decodes; its message is the plan."""


def _describe_search_time(settings: JobSettings, race: CandidateElimination) -> str:
    """Describes a search's duration, estimated in minutes from plain decoding's known rate."""
    duration = "minutes unknown until plain decoding of this pair is measured"
    if rate := plan_stage(settings)[0].rate:
        tokens = count_remaining_answers(settings, race) * settings.max_new_tokens
        minutes = tokens / rate.tokens_per_s / 60
        duration = f"some {minutes:.1f} minutes at plain decoding's rate ({rate.source})"
    return f"{duration}; fewer --decoders or 'confirm={{best: 2, prompts: 12}}' make it shorter"


class _CandidateRunner:
    """Decodes a search's candidates, which are identified by their indices among the cells."""

    def __init__(
        self, settings: JobSettings, rank_column: str, print_progress: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.rank_column = rank_column  # column that ranks the candidates
        self.print_progress = print_progress
        self.plain_answer_s = 0.0  # seconds per answer of plain decoding
        self.rows_by_candidate: dict[int, dict[str, Any]] = {}
        self.counts: dict[int, Counts] = {}  # by candidate, terms of the ranking number by prompt
        self.is_doubtful = False  # whether a disturbed round counts in the ranking
        self.dropped_while_disturbed: list[int] = []  # candidates dropped by such a round or later

    def decode_with_baseline(
        self,
        examples: tuple[Example, ...],
        candidate_indices: Sequence[int] = (),
        stage: Stage = "screen",
    ) -> list[CellResult]:
        """Runs a job of plain decoding and some candidates; returns their results in order. If
        interrupted, prints the ranking so far and raises KeyboardInterrupt.
        """
        cells = self.settings.cells
        job_cells = (cells[0], *(cells[place] for place in candidate_indices))
        job = replace(
            self.settings,
            # The search itself runs the confirmation.
            request=replace(self.settings.request, confirm=None),
            cells=job_cells,
            examples=examples,
            confirmation_examples=(),
            stage=stage,
        )
        interruption: KeyboardInterrupt | None = None
        try:
            results = run_stages(job)
        except KeyboardInterrupt as error:
            results = [*iter_partial_results(job)]
            interruption = error
        baseline, *candidates = results
        if candidate_indices and baseline.status == "failed":
            raise UsageError(f"plain decoding failed: {baseline.reason}")
        self.plain_answer_s = float(baseline.metrics.get("latency_s") or 0)
        pairs = zip(candidate_indices, candidates, strict=True)
        place_results = [
            place_result
            for place_result in pairs
            if place_result[1].metrics or place_result[1].status == "failed"
        ]
        place_results.sort(
            key=lambda place_result: compute_rank_key(place_result[1], self.rank_column)
        )
        new_lines = {
            place: _build_candidate_row(cells[place], row, job) for place, row in place_results
        }
        # candidates of the last stage come first
        self.rows_by_candidate = new_lines | self.rows_by_candidate | new_lines
        if interruption and self.rows_by_candidate:
            table = _align_table_columns(pd.DataFrame(list(self.rows_by_candidate.values())))
            self.print_progress(
                "\n".join(["the ranking so far, which more prompts may change:", *table])
            )
        if interruption:
            raise interruption
        return results

    def drop_candidates(
        self, race: CandidateElimination, round_prompts: int, results: Sequence[CellResult]
    ) -> None:
        """Ends a round of the race. A disturbed or stalled round drops no candidate and is repeated
        on other prompts, if the race's budget allows that.
        """
        if any(get_timing_doubt(result_to_row(row), self.rank_column) for row in results):
            if race.skip_round_if_affordable(round_prompts):
                self.print_progress("disturbed: nobody is left out, the same on other prompts")
                return
            self.is_doubtful = True
        values, values_by_prompt = self.compute_ranking_values(race.candidates, results)
        race.drop_candidates_after_round(round_prompts, values, values_by_prompt)
        if self.is_doubtful:
            ranked_candidates = values.dropna().index
            self.dropped_while_disturbed += [
                n for n in ranked_candidates if n not in race.candidates
            ]

    def list_dropped_while_disturbed(self, race: CandidateElimination) -> tuple[str, ...]:
        """Lists decoder and tree of the candidates that a disturbed round excluded from the fresh
        prompts.
        """
        too_many = race.candidates[race.winner_count :] if self.is_doubtful else []
        rows = (
            self.rows_by_candidate[place] for place in [*self.dropped_while_disturbed, *too_many]
        )
        return tuple(map(names.format_decoder_and_tree, rows))

    def compute_ranking_values(
        self,
        candidate_indices: Sequence[int],
        results: Sequence[CellResult],
    ) -> tuple[pd.Series, pd.DataFrame]:
        """Computes the candidates' ranking numbers (larger is better, NaN if unknown), over all
        prompts so far and by prompt.
        """
        # All rates are of the same prompts, so they rank as speed-ups do.
        name = "token_rate" if self.rank_column.startswith("speedup") else self.rank_column
        sign = -1 if get_column(name).better == "down" else 1
        records = RecordReader(
            files.get_results_file(self.settings.results_folder, self.settings.request.name)
        )
        numbers = {place: pd.Series({"": np.nan}) for place in candidate_indices}
        for place, row in zip(candidate_indices, map(result_to_row, results), strict=True):
            counts = self.counts.setdefault(place, {})
            counts |= records.sum_counts_over_repeats(row, name) or {}
            if counts:
                table = pd.DataFrame(counts)
                table[""] = table.sum(axis=1)
                values = sign * compute_metric_from_sums(table.to_numpy(), row, name)
                numbers[place] = pd.Series(values, table.columns)
        by_prompt = pd.DataFrame(numbers).T
        return by_prompt.pop(""), by_prompt


def search_fastest_decoder(
    settings: JobSettings, show: Callable[[str], None] | None = None
) -> RecommendationResult:
    """Searches for the fastest of a job's cells; calls ``show`` with a line before each long step.

    Raises UsageError if there are no fresh prompts, if no decoder fits the pair, or if plain
    decoding fails; StopAfterPlanError if ``plan=true``.
    """
    confirm = settings.request.confirm
    if confirm is None:
        raise UsageError("fresh prompts are needed: set confirm={prompts: NUMBER}")
    if len(settings.cells) < 2:
        reason = f": {settings.left_out_reasons[0]}" if settings.left_out_reasons else ""
        raise UsageError(f"recommend has no decoder to choose among{reason}")
    if settings.request.sink.wandb.enabled:
        raise UsageError("recommend has no sink=wandb: the job that it recommends logs")
    settings = settings.pin_revisions_and_stop_rule()
    search = _CandidateRunner(settings, confirm.by, show or (lambda line: None))
    race = start_race(settings, confirm)
    cost = describe_search_cost(settings, race)
    if settings.request.plan:
        raise StopAfterPlanError(f"{cost}\n{_describe_search_time(settings, race)}")
    search.print_progress(f"{cost}; first, plain decoding's pace on one prompt")
    search.decode_with_baseline(settings.examples[:1])

    def print_stage(prompt_count: str) -> None:
        minutes = count_remaining_answers(settings, race) * search.plain_answer_s / 60
        stage = f"{format_count(len(race.candidates), 'decoder')} on {prompt_count}"
        search.print_progress(
            f"some {minutes:.1f} minutes left of the whole search at most; now {stage}"
        )

    while count := race.count_next_round_prompts():
        print_stage(format_count(count, "prompt"))
        examples = settings.examples[race.next_prompt : race.next_prompt + count]
        _, *results = search.decode_with_baseline(examples, race.candidates)
        search.drop_candidates(race, count, results)
    frame = pd.DataFrame()
    if best := race.candidates[: confirm.best]:
        print_stage(f"{len(settings.confirmation_examples)} fresh prompts")
        plain, *results = search.decode_with_baseline(
            settings.confirmation_examples, best, "confirm"
        )
        frame = pd.DataFrame(map(result_to_row, [plain, *results]))
        frame[LEAD] = [np.nan, *search.compute_ranking_values(best, results)[0]]
    result = _build_result(settings, frame, list(search.rows_by_candidate.values()))
    return replace(result, dropped_while_disturbed=search.list_dropped_while_disturbed(race))


def _build_result(
    settings: JobSettings,
    fresh_rows: pd.DataFrame,
    candidate_rows: list[dict[str, Any]],
) -> RecommendationResult:
    """Builds the result from the rows on fresh prompts, if any, and the rows of all candidates."""
    best = None if fresh_rows.empty else make_headline(Group(settings.task.name, fresh_rows))
    no_draft_pays = best is None or best.decoder_name in ("", "ar") or not settings.pair.drafts
    is_quiet = not any(line["doubt"] for line in candidate_rows)  # times of passes are sound
    break_evens = (
        measure_break_evens(settings.pair)
        if no_draft_pays and is_quiet and settings.server_settings is None
        else ()
    )
    for line in candidate_rows:
        if best and line["fresh"]:  # widened like the answer's interval
            wide = widen_interval(
                line, "speedup", 1 if best.decoder_name == "ar" else best.tied_and_all_counts[1]
            )
            line |= zip(get_column("speedup").names[1:], wide or (), strict=False)
    return RecommendationResult(best, pd.DataFrame(candidate_rows), break_evens)


def _build_candidate_row(cell: Cell, row: CellResult, job: JobSettings) -> dict[str, Any]:
    numbers = [column_name for name in NUMBERS for column_name in get_column(name).names]
    failure = row.reasons[0].text if row.status != "complete" else ""
    values = {name: row.metrics.get(name) for name in numbers}
    values["doubt"] = get_timing_doubt(result_to_row(row)).partition(":")[0]
    return {
        "decoder": cell.name,
        "spec": cell.config.spec,
        "prompts": int(row.metrics.get("prompts") or len(job.examples)),
        "fresh": job.stage == "confirm",
        **values,
        "failed": failure,
    }


def main(options: Namespace) -> int:
    """Prints the answer, the command of a job that uses it, and the candidates; writes a page of
    them below ``results/NAME``. Returns the exit status.
    """
    try:
        usual = ("experiment=recommend", "sink=quiet", "sink.progress=true")
        settings = build_unpinned_settings(compose_config([*usual, *options.words]))
        result = search_fastest_decoder(
            settings, lambda line: print(line, file=sys.stderr, flush=True)
        )
    except StopAfterPlanError as plan:
        print(plan)
        return 0
    answer = result.format_answer()
    command = format_command(result, options.words)
    needs = format_break_even_lines(result.break_evens)
    table = _align_table_columns(result.candidates)
    output_lines = [": ".join(answer), *([command] if command else []), ""]
    print("\n".join([*output_lines, *table, *([""] if needs else []), *needs]))
    page = files.get_results_file(settings.results_folder, settings.request.name).with_name(
        f"recommend-{settings.pair.name}-{settings.task.name}.html"
    )
    text = render_template(
        "recommended.html.j2",
        pair=settings.pair.name,
        task=names.get_task_title(settings.task.name),
        temperature=settings.sampling.temperature,
        told=[*answer, command],
        heads=_TABLE_HEADS,
        lines=list(_iter_sort_keys_and_texts(result.candidates)),
        needs="\n".join(needs),
    )
    files.write_text(page, text)
    print(f"page: {page}")
    return 0


def format_command(result: RecommendationResult, overrides: Sequence[str]) -> str:
    """Formats the command of a job with the recommended decoder and the given settings; "" if
    nothing is recommended.
    """
    if result.headline and not result.headline.decoder_name:
        return ""
    job_overrides = [
        override for override in overrides if not override.lstrip("+").startswith(_DROPPED_COLUMNS)
    ]
    decoder, spec = result.cell
    cell = f"{decoder}:{spec}".rstrip(":-")
    return shlex.join(
        [
            "spec-bench",
            "run",
            *replace_escapes_in_model_texts(job_overrides, TYPED_ESCAPE),
            "--decoders",
            cell,
        ]
    )


def _align_table_columns(candidates: pd.DataFrame) -> list[str]:
    lines = [
        _TABLE_HEADS,
        *([text for _, text in line] for line in _iter_sort_keys_and_texts(candidates)),
    ]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _iter_sort_keys_and_texts(candidates: pd.DataFrame) -> Iterator[list[tuple[str, str]]]:
    """Yields each candidate's cells as (key to sort by, text)."""
    for row in candidates.to_dict("records"):
        title = names.format_decoder_and_tree(row)
        prompts = str(row["prompts"])
        title += f", {row['doubt']}" if row["doubt"] else ""
        cells = [(title, title), (prompts, f"{prompts}{' fresh' if row['fresh'] else ''}")]
        for name in NUMBERS:
            value, low, high = (row[f"{name}{end}"] for end in ("", *ENDS))
            ends = format_ends(low, high, ".2f")
            text = "-" if pd.isna(value) else f"{value:.2f} {ends}".rstrip()
            cells.append(("" if pd.isna(value) else f"{value:.4f}", text))
        *first_cells, (rank, text) = cells
        cell_text = (
            f"failed: {row['failed']}" if text == "-" else f"{text}, partial: {row['failed']}"
        )
        yield [*first_cells, (rank, cell_text)] if row["failed"] else cells
