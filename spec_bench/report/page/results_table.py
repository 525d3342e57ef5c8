"""Tables of a group's cells, best first, that can be sorted: each number with its interval. Further
tables have the numbers by category of prompts.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from spec_bench.metrics.interval import Interval
from spec_bench.report.data.categories import (
    SPEC_BENCH,
    TABLES,
    compute_speedup_and_tau_by_category,
    describe_shared_clocks,
    group_prompts_by_category,
)
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import (
    Group,
    Row,
    find_filled_column,
    format_tree_titles_with_drafts,
    get_failure_reason,
    get_interval,
    get_remarks,
    get_timing_doubt,
    select_undoubted_rows,
    to_rows,
)
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.columns import Column
from spec_bench.vocabulary.numbers import format_count, format_ends

_DRAWN_COLUMNS = ("block_efficiency", "speedup")  # their intervals are drawn, not only written
_SHADED_COLUMNS = ("speedup", "token_rate", "block_efficiency", "mbsu")  # best values are shaded
_OF_A_REQUEST = "token_rate_per_request"
_COUNTS = ("draft_calls", "nodes_per_call")
_CUT = "block_efficiency_stream"
DECODER = ("decoder", "name of the algorithm; the tree in the papers' shorthand")
Scale = tuple[float, float]


class PageCell(NamedTuple):
    """A number in a table of a page."""

    text: str  # the number as printed
    interval: str  # its 95% interval; "" if there is none
    sort_key: str  # the number by which a click on the heading sorts
    # low end, value and high end on the column's scale, from 0 to 1; None if there is no scale
    bar_positions: tuple[float, ...] | None
    is_best: bool  # whether it is the best exact number, or ties with it


class DecoderTableRow(NamedTuple):
    """A line of the table, for one cell of the experiment."""

    decoder_name: str  # the decoder's name in results
    decoder: str  # its name for people
    tree: str  # its tree, with the draft's name if only that differs
    marks: tuple[tuple[str, bool], ...]  # remarks on it, and whether each is minor
    kind: str  # `baseline`, `failed` or ""
    failure: str  # why it failed; "" if it did not
    cells: Sequence[PageCell | None]  # one per column; None if it has no number


class ResultsTable(NamedTuple):
    """A group's table."""

    heads: Sequence[tuple[str, str]]  # title and definition of each column
    lines: Sequence[DecoderTableRow]  # one per cell
    left_out: int = 0  # number of further cells, all ranked below the last line


def select_columns(rows: pd.DataFrame) -> list[Column]:
    """Selects the columns with values, the speed-up first: two counts, and all with an interval.

    If a row has no block efficiency but delivered tokens per call, these count as a column, too.
    """
    present = columns.get_columns(rows.columns)
    counts = [*_COUNTS]
    if _CUT in rows and (rows[_CUT].notna() & rows[_SHADED_COLUMNS[2]].isna()).any():
        counts.append(_CUT)
    chosen = [c for c in present if (c.interval or c.name in counts) and rows[c.name].notna().any()]
    return sorted(chosen, key=lambda column: column.name != _SHADED_COLUMNS[0])


def build_results_table(group: Group, max_lines: int | None = None) -> ResultsTable:
    """Builds a group's table of at most ``max_lines``: the baseline, then from best to worst."""
    rows = group.rows
    metric = find_filled_column(rows, _SHADED_COLUMNS)
    if metric is not None:
        rank = rows[metric].where(rows.decoder != "ar", float("inf")).fillna(float("-inf"))
        rows = rows.loc[rank.sort_values(ascending=False, kind="stable").index]
    shown_columns = select_columns(rows)
    if "batch_size" in rows and (rows.batch_size == 1).all():
        # With batches of one, the rate per request is the token rate.
        shown_columns = [c for c in shown_columns if c.name != _OF_A_REQUEST]
    scales = {
        c.name: _get_value_range(rows, c.name) for c in shown_columns if c.name in _DRAWN_COLUMNS
    }
    best = {
        c.name: _find_tied_best_exact_indices(rows, c.name)
        for c in shown_columns
        if c.name in _SHADED_COLUMNS
    }
    # Small rates get a digit more, so that they do not look alike.
    digits = {c: c.digits or int(c.interval and rows[c.name].max() < 100) for c in shown_columns}
    lines = []
    part = rows.head(max_lines) if max_lines else rows
    for index, row, tree in zip(
        part.index, to_rows(part), format_tree_titles_with_drafts(rows), strict=False
    ):
        cells = [
            _make_page_cell(
                get_interval(row, c.name),
                digits[c],
                scales.get(c.name),
                index in best.get(c.name, ()),
            )
            for c in shown_columns
        ]
        marks = [(remark, True) for remark in get_remarks(row)]
        if (lossless := str(row["lossless"])) in names.MARKS:
            marks.insert(0, (names.MARKS[lossless], lossless == "exact_beam"))
        lines.append(_make_table_row(row, tree, cells, tuple(marks)))
    heads = (DECODER, *((c.title, c.definition) for c in shown_columns))
    return ResultsTable(heads, lines, len(rows) - len(part))


def _make_table_row(
    row: Row,
    tree: str,
    cells: Sequence[PageCell | None],
    marks: tuple[tuple[str, bool], ...] = (),
) -> DecoderTableRow:
    decoder = str(row["decoder"])
    is_failed = row["status"] == "failed"
    kind = "failed" if is_failed else "baseline" if decoder == "ar" else ""
    failure = get_failure_reason(row) if is_failed else ""
    return DecoderTableRow(
        decoder,
        names.get_decoder_style(decoder).title,
        tree,
        marks,
        kind,
        failure,
        cells,
    )


def _make_page_cell(
    number: Interval | None,
    digits: int = 2,
    scale: Scale | None = None,
    best: bool = False,
) -> PageCell | None:
    """Makes a table cell of a number and its interval, with a bar if the column has a scale."""
    if number is None:
        return None
    value = number.value
    low, high = number.ends or (value, value)
    interval = format_ends(low, high, f".{digits}f", "{}–{}") if low != high else ""
    mark = None
    if scale:
        mark = tuple((end - scale[0]) / (scale[1] - scale[0]) for end in (low, value, high))
    return PageCell(f"{value:.{digits}f}", interval, f"{value:.6g}", mark, best)


def _get_value_range(rows: pd.DataFrame, name: str) -> Scale:
    columns = [c for c in (name, f"{name}_low", f"{name}_high") if c in rows]
    low = float(rows[columns].min().min())
    high = float(rows[columns].max().max())
    return (low, high) if high > low else (low - 1, high + 1)


def _find_tied_best_exact_indices(rows: pd.DataFrame, column: str) -> Collection[object]:
    """Finds the indices of the best exact cell and of those whose intervals overlap its own."""
    low = f"{column}_low"
    high = f"{column}_high"
    if low not in rows or high not in rows:
        return ()
    exact = rows[(rows.decoder != "ar") & (rows.lossless == "exact") & rows[low].notna()]
    exact = select_undoubted_rows(exact, column)
    if len(exact) < 2:
        return ()
    return {*exact.index[exact[high] >= exact.at[exact[column].idxmax(), low]]}


class CategoryNumbers(NamedTuple):
    """A group's speed-ups, or its tokens per call, by category of prompts."""

    title: str
    prompt_counts: dict[str, int]  # category -> number of prompts
    overall_columns: list[str]  # titles of numbers over all prompts, after the categories
    rows: list[tuple[Row, list[Interval | None]]]  # cells with their numbers, in this order


def iter_category_numbers(group: Group, records: RecordReader) -> Iterator[CategoryNumbers]:
    """Yields a group's speed-ups, then its tokens per call; nothing if no prompt has a category."""
    kinds = group_prompts_by_category(group, records)
    cells = compute_speedup_and_tau_by_category(group, kinds, records) if kinds else []
    for column, title in TABLES.items() if cells else ():
        overall = {"overall": column}
        if str(group.rows.iloc[0].task) == SPEC_BENCH and column == "speedup":
            overall = {"mean accepted tokens": "block_efficiency", **overall}  # as in Spec-Bench
        numbers = [
            (
                row,
                [
                    *map(by_kind[column].get, kinds),
                    *(get_interval(row, n) for n in overall.values()),
                ],
            )
            for row, by_kind in cells
        ]
        counts = {kind: len(prompts) for kind, prompts in kinds.items()}
        yield CategoryNumbers(title, counts, [*overall], numbers)


def iter_category_tables(group: Group, records: RecordReader) -> Iterator[tuple[str, ResultsTable]]:
    """Yields title and table of speed-ups, then of tokens per call, if there are categories."""
    trees = dict(zip(group.rows.run_id, format_tree_titles_with_drafts(group.rows), strict=True))
    for title, counts, overall, numbers in iter_category_numbers(group, records):
        is_speedup = title == TABLES["speedup"]
        lines = [
            _make_table_row(
                row,
                trees[row["run_id"]],
                [*map(_make_page_cell, cells)],
                ((doubt, True),) if (doubt := get_timing_doubt(row)) and is_speedup else (),
            )
            for row, cells in numbers
            if any(cells[: len(counts)])
        ]
        note = describe_shared_clocks(group) if is_speedup else ""
        if lines:
            kinds = [(name, format_count(count, "prompt")) for name, count in counts.items()]
            yield (
                f"{title}. {note}" if note else title,
                ResultsTable((DECODER, *kinds, *((n, "all prompts") for n in overall)), lines),
            )
