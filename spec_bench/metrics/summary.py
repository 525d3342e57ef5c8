"""Computes a cell's row of numbers from its records.

Knows the registered metrics and the columns; nothing about files, labels or how a table is printed.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeVar

from spec_bench.metrics import calls as calls  # registers the metrics
from spec_bench.metrics import latencies as latencies  # likewise
from spec_bench.metrics import stalls as stalls  # likewise
from spec_bench.metrics.execution import code as code  # likewise
from spec_bench.metrics.execution import sql as sql  # likewise
from spec_bench.metrics.interval import (
    FEW_CLOCKS,
    FEWEST,
    TOO_FEW,
    WIDEST,
    Interval,
    clip_or_drop_wide_ends,
)
from spec_bench.metrics.intervals import widen_to_tau_width
from spec_bench.metrics.metric import (
    MEASURED_ANEW,
    CellRecords,
    Number,
    PromptSums,
    compute_interval,
    metric,
)
from spec_bench.metrics.quality import SCORES, compute_score_columns, needs_references
from spec_bench.settings.fields import describe_error
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary import columns

T = TypeVar("T")
Row = dict[str, float | str | None]
_TOO_ALIKE = "too few independent or different prompts"
_TOO_WIDE = f"ends over a factor of {WIDEST:g} apart"


@dataclass(frozen=True)
class CellSummary:
    """The numbers of one cell."""

    # values of all registered metrics and of the scores, and the ends of their intervals; None is
    # an empty cell
    row: Row = field(default_factory=dict)
    # score -> prompt id -> the prompt's own value if the score is a mean over prompts, else its
    # numbers whose sums determine the score
    scores: dict[str, dict[str, float | tuple[float, ...]]] = field(default_factory=dict)
    # columns of metrics and scores that raised, and why
    failures: list[tuple[str, str]] = field(default_factory=list)
    # columns with a NaN or infinite value, and why
    empty_cells: list[tuple[str, str]] = field(default_factory=list)
    # columns whose interval has no ends, and why; not those of metric modules, which never have any
    missing_ends: dict[str, str] = field(default_factory=dict)

    def explain_missing_ends(self, cell: CellRecords, row: Mapping[str, Any]) -> Iterator[str]:
        """Yields why intervals of the cell have no ends, one text for each cause.

        A column without a value in ``row``, the row as it is stored, needs no reason. With fewer
        than ``FEWEST`` prompts no columns are named, with fewer clocks none of times or energies,
        as all lack their ends.
        """
        is_small = len(cell.generations) < FEWEST
        has_few_clocks = 0 < len({*cell.clocks}) < FEWEST
        if is_small:
            yield TOO_FEW
        if has_few_clocks:
            yield FEW_CLOCKS
        for cause in () if is_small else (_TOO_ALIKE, _TOO_WIDE):
            names = [
                name
                for name, reason in self.missing_ends.items()
                if reason == cause
                and row.get(name) not in (None, "")
                and not (has_few_clocks and columns.get_column(name).kind in MEASURED_ANEW)
            ]
            if names:
                yield f"{cause} for {', '.join(names)}"

    def add_number(
        self, column: str, number: Number, has_ends: bool, tau: Interval | None = None
    ) -> None:
        """Adds a number to the row; a NaN or infinite one leaves its cells empty."""
        if isinstance(number, PromptSums):
            number = compute_interval(number) if has_ends else number.value
        entries: Row = {column: number.value if isinstance(number, Interval) else number}
        if has_ends and (number is None or isinstance(number, Interval)):
            low, high = (f"{column}{end}" for end in columns.ENDS)
            entries |= {low: None, high: None}
            if number is not None:
                interval = clip_or_drop_wide_ends(column, widen_to_tau_width(number, tau, column))
                entries |= {low: interval.low, high: interval.high}
                if interval.ends is None and columns.find_column(column):
                    self.missing_ends[column] = _TOO_WIDE if number.ends else _TOO_ALIKE
        value = entries[column]
        if isinstance(value, float) and not isfinite(value):
            entries = dict.fromkeys(entries)
            # In a row's reason a column must be a plain word.
            place = column if re.fullmatch(r"[a-z]\w*", column) else "quality_signature"
            self.empty_cells.append((place, f"{column} came out as {value}"))
        self.row.update(entries)


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
    summary = CellSummary()
    tau = compute_interval(calls.block_efficiency_sums(cell))
    for name, quantity in metric.items():
        try:
            summary.add_number(name, quantity.compute(cell), quantity.column.interval and ends, tau)
        except Exception as error:  # such as an error in another package's metric
            summary.failures.append((name, describe_error(error)))
    signatures = []
    for name in scores:
        references = _select_references(cell, name)
        answers = _select_prompts(cell.texts, references, "texts")
        try:
            intervals, signature = compute_score_columns(
                name, answers, [*references.values()], tokenize
            )
        except Exception as error:  # such as an error in a user's function
            summary.failures.append(("quality_signature", f"{name}: {describe_error(error)}"))
            continue
        signature += f"|scored: {len(references)} of {len(cell.ids)} answers" * (
            len(references) < len(cell.ids)
        )
        known_columns = {*columns.define_all_column_names(), *summary.row}
        if name not in SCORES and (taken_columns := sorted(set(intervals) & known_columns)):
            raise UsageError(f"score {name}: there is a column {', '.join(taken_columns)} already")
        for column, interval in intervals.items():
            # Columns of metric modules, which are not registered, all have an interval.
            declared_column = columns.find_column(column)
            summary.add_number(
                column, interval, declared_column is None or declared_column.interval
            )
            parts: Sequence[float | tuple[float, ...]] = interval.by_prompt or interval.parts
            if parts:
                summary.scores[column] = dict(zip(references, parts, strict=True))
        signatures.append(signature)
    summary.row["quality_signature"] = "; ".join(signatures) or None
    return summary


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
    known_values = by_prompt or {}
    if missing_ids := sorted(set(ids) - known_values.keys()):
        raise UsageError(f"no {value_kind} for prompts: {', '.join(missing_ids)}")
    return [known_values[prompt_id] for prompt_id in ids]
