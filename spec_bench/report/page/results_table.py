"""One group of cells as a sortable table, the fastest first: every number with its interval; and
the same by category of prompt.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from spec_bench.metrics.interval import Interval
from spec_bench.report.data.categories import (
    SPEC_BENCH,
    TABLES,
    compute_numbers_by_category,
    describe_shared_clocks,
    group_prompts_by_category,
)
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import (
    Group,
    Row,
    find_filled_column,
    format_tree_titles,
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
_SHADED_COLUMNS = ("speedup", "token_rate", "block_efficiency", "mbsu")  # the best ones are shaded
_OF_A_REQUEST = "token_rate_per_request"
_COUNTS = ("draft_calls", "nodes_per_call")
_CUT = "block_efficiency_stream"
DECODER = ("decoder", "name of the algorithm; the tree in the papers' shorthand")
Scale = tuple[float, float]


class PageCell(NamedTuple):
    """A number."""

    text: str  # as written
    interval: str  # its 95% interval; "" where there is none
    sort_key: str  # the key of a click on the heading
    # low end, value and high end on the column's common scale, from 0 to 1; None where it has none
    bar_positions: tuple[float, ...] | None
    is_best: bool  # whether it is the best exact one, or ties with it


class DecoderTableRow(NamedTuple):
    """One cell of the experiment."""

    decoder_name: str  # the decoder's name in results
    decoder: str  # its name for people
    tree: str  # its tree, and the drafter where that alone differs
    marks: tuple[tuple[str, bool], ...]  # its remarks, and whether each is a minor one
    kind: str  # `baseline`, `failed` or ""
    failure: str  # why it failed; "" where it did not
    cells: Sequence[PageCell | None]  # one per column, None where it has no number


class ResultsTable(NamedTuple):
    """A group's table."""

    heads: Sequence[tuple[str, str]]  # title and definition of each column
    lines: Sequence[DecoderTableRow]  # one per cell
    left_out: int = 0  # how many cells more there are, all of them behind those of the lines


def select_columns(rows: pd.DataFrame) -> list[Column]:
    """The columns with a value, the judged ones first: two counts, and all with an interval.

    Where a row's calls tell no block efficiency, the tokens delivered per call are a count, too.
    """
    present = columns.get_columns(rows.columns)
    counts = [*_COUNTS]
    if _CUT in rows and (rows[_CUT].notna() & rows[_SHADED_COLUMNS[2]].isna()).any():
        counts.append(_CUT)
    chosen = [c for c in present if (c.interval or c.name in counts) and rows[c.name].notna().any()]
    return sorted(chosen, key=lambda column: column.name != _SHADED_COLUMNS[0])


def build_results_table(group: Group, max_lines: int | None = None) -> ResultsTable:
    """The group's table of at most so many lines: the baseline, then the best ones first."""
    rows = group.rows
    metric = find_filled_column(rows, _SHADED_COLUMNS)
    if metric is not None:
        rank = rows[metric].where(rows.decoder != "ar", float("inf")).fillna(float("-inf"))
        rows = rows.loc[rank.sort_values(ascending=False, kind="stable").index]
    shown_columns = select_columns(rows)
    if "batch_size" in rows and (rows.batch_size == 1).all():
        shown_columns = [
            c for c in shown_columns if c.name != _OF_A_REQUEST
        ]  # all requests are one
    scales = {
        c.name: _get_value_range(rows, c.name) for c in shown_columns if c.name in _DRAWN_COLUMNS
    }
    best = {
        c.name: _find_tied_best_exact_indices(rows, c.name)
        for c in shown_columns
        if c.name in _SHADED_COLUMNS
    }
    # One digit more than usual where small rates would look alike.
    digits = {c: c.digits or int(c.interval and rows[c.name].max() < 100) for c in shown_columns}
    lines = []
    part = rows.head(max_lines) if max_lines else rows
    for index, row, tree in zip(part.index, to_rows(part), format_tree_titles(rows), strict=False):
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
    """Returns a number, its interval, and that drawn where the column has a scale."""
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
    """The indices of the best exact cell and of those whose intervals overlap its interval."""
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
    prompt_counts: dict[str, int]  # of each category
    overall_columns: list[str]  # over all prompts, behind the categories
    rows: list[tuple[Row, list[Interval | None]]]  # each cell's numbers under both


def iter_category_numbers(group: Group, records: RecordReader) -> Iterator[CategoryNumbers]:
    """Yields the speed-ups, then the tokens per call, of a group whose prompts have categories."""
    kinds = group_prompts_by_category(group, records)
    cells = compute_numbers_by_category(group, kinds, records) if kinds else []
    for column, title in TABLES.items() if cells else ():
        overall = {"overall": column}
        if str(group.rows.iloc[0].task) == SPEC_BENCH and column == "speedup":
            overall = {"mean accepted tokens": "block_efficiency", **overall}  # as in its own table
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
    """Title and table of the speed-ups and of the tokens; none without categories."""
    trees = dict(zip(group.rows.run_id, format_tree_titles(group.rows), strict=True))
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
