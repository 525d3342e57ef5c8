"""Computes a cell's row of numbers from its records.

Knows the registered metrics and the columns; nothing about files, labels or how a table is printed.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar

from spec_bench.metrics import calls as calls  # registers the metrics
from spec_bench.metrics import latencies as latencies  # likewise
from spec_bench.metrics import stalls as stalls  # likewise
from spec_bench.metrics.execution import code as code  # likewise
from spec_bench.metrics.execution import sql as sql  # likewise
from spec_bench.metrics.interval import Interval, clip_or_drop_wide_ends
from spec_bench.metrics.intervals import widen_to_tau_width
from spec_bench.metrics.metric import CellRecords, Number, PromptSums, compute_interval, metric
from spec_bench.metrics.quality import SCORES, compute_score_columns, needs_references
from spec_bench.settings.fields import describe_error
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary import columns

T = TypeVar("T")
Row = dict[str, float | str | None]


@dataclass(frozen=True)
class CellSummary:
    """The numbers of one cell."""

    # values of all registered metrics and of the scores, and the ends of their intervals; None is
    # an empty cell
    row: Row
    # score -> prompt id -> the prompt's own value if the score is a mean over prompts, else its
    # numbers whose sums determine the score
    scores: dict[str, dict[str, float | tuple[float, ...]]]
    failures: Sequence[tuple[str, str]] = ()  # columns of metrics and scores that raised, and why
    empty_cells: Sequence[tuple[str, str]] = ()  # columns with a NaN or infinite value, and why


def summarise(
    cell: CellRecords,
    scores: Sequence[str] = (),
    ends: bool = True,
    tokenize: str | None = None,
) -> CellSummary:
    """Computes the numbers of a cell, with or without the ``ends`` of intervals.

    ``scores`` names quality scores (ours, another package's, or modules of ``evaluate``), which
    need the cell's texts and references. A score that needs references is over the prompts that
    have one. Raises UsageError if there are no generations, if a score is unknown, or if a prompt
    lacks a text or its entry of references.
    """
    if not cell.generations:
        raise UsageError("a cell without generations has no metrics")
    row: Row = {}
    tau = compute_interval(calls.block_efficiency_sums(cell))
    failures = list[tuple[str, str]]()
    empty_cells = list[tuple[str, str]]()
    for name, quantity in metric.items():
        has_ends = quantity.column.interval and ends
        try:
            entries = _make_row_entries(name, quantity.compute(cell), has_ends, tau)
            row.update(_blank_if_infinite(name, entries, empty_cells))
        except Exception as error:  # such as an error in another package's metric
            failures.append((name, describe_error(error)))
    signatures = []
    by_prompt = dict[str, dict[str, float | tuple[float, ...]]]()
    for name in scores:
        references = _select_references(cell, name)
        answers = _select_prompts(cell.texts, references, "texts")
        try:
            intervals, signature = compute_score_columns(
                name, answers, [*references.values()], tokenize
            )
        except Exception as error:  # such as an error in a user's function
            failures.append(("quality_signature", f"{name}: {describe_error(error)}"))
            continue
        signature += f"|scored: {len(references)} of {len(cell.ids)} answers" * (
            len(references) < len(cell.ids)
        )
        if name not in SCORES and (
            taken_columns := sorted(set(intervals) & {*columns.define_all_column_names(), *row})
        ):
            raise UsageError(f"score {name}: there is a column {', '.join(taken_columns)} already")
        for column, interval in intervals.items():
            # Columns of metric modules, which are not registered, all have an interval.
            declared_column = columns.find_column(column)
            entries = _make_row_entries(
                column, interval, declared_column is None or declared_column.interval
            )
            row.update(_blank_if_infinite(column, entries, empty_cells))
            parts: Sequence[float | tuple[float, ...]] = interval.by_prompt or interval.parts
            if parts:
                by_prompt[column] = dict(zip(references, parts, strict=True))
        signatures.append(signature)
    row["quality_signature"] = "; ".join(signatures) or None
    return CellSummary(row, by_prompt, failures, empty_cells)


def _blank_if_infinite(column: str, entries: Row, empty_cells: list[tuple[str, str]]) -> Row:
    """Returns a number's row entries; if it is NaN or infinite, empty ones, and appends the column
    with the reason to ``empty_cells``.
    """
    number = entries[column]
    if not isinstance(number, float) or isfinite(number):
        return entries
    # In a row's reason a column must be a plain word.
    place = column if re.fullmatch(r"[a-z]\w*", column) else "quality_signature"
    empty_cells.append((place, f"{column} came out as {number}"))
    return dict.fromkeys(entries)


def _make_row_entries(
    column: str, number: Number, has_ends: bool, tau: Interval | None = None
) -> Row:
    if isinstance(number, PromptSums):
        number = compute_interval(number) if has_ends else number.value
    if not has_ends:
        return {column: number.value if isinstance(number, Interval) else number}
    ends = [f"{column}{end}" for end in columns.ENDS]
    if number is None:
        return dict.fromkeys((column, *ends))
    if not isinstance(number, Interval):
        return {column: number}
    number = clip_or_drop_wide_ends(column, widen_to_tau_width(number, tau, column))
    return dict(zip((column, *ends), (number.value, number.low, number.high), strict=True))


def _select_references(cell: CellRecords, score: str) -> dict[str, Sequence[str]]:
    """Selects the references of the prompts that a score is computed over, by prompt id: all
    prompts, or those with references if the score needs them. Raises UsageError if a prompt lacks
    its entry.
    """
    references = dict(
        zip(cell.ids, _select_prompts(cell.references, cell.ids, "references"), strict=True)
    )
    if needs_references(score) is True and any(references.values()):
        return {prompt_id: texts for prompt_id, texts in references.items() if texts}
    return references


def _select_prompts(
    by_prompt: Mapping[str, T] | None, ids: Collection[str], value_kind: str
) -> list[T]:
    """Selects the values of these prompts, in order. Raises UsageError if a prompt has none."""
    known_scores = by_prompt or {}
    if missing_ids := sorted(set(ids) - known_scores.keys()):
        raise UsageError(f"no {value_kind} for prompts: {', '.join(missing_ids)}")
    return [known_scores[prompt_id] for prompt_id in ids]
