"""The papers' printed numbers: ``experiments/PAPER/reference.csv``, one line per number, as text.

All papers share one schema. A number stays text, so that it is shown as printed; an empty ``value``
is a number that the paper prints but the available copy has lost.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from spec_bench.settings.configs import find_configs, list_experiments_dirs, read_composed_config
from spec_bench.settings.fields import format_suggestion
from spec_bench.system.errors import UsageError
from spec_bench.system.files import iter_csv_lines
from spec_bench.vocabulary.decoders import get_decoder_parts, refuse_unfit_tree, require_decoder
from spec_bench.vocabulary.numbers import format_count

FILE = "reference.csv"
HEADER = (
    "table,target,draft,task,method,decoder,spec,axis,axis_value,temperature,top_k,top_p,"
    "tree_attention,metric,value,plus_minus,reason,candidates,twin_table,twin_value"
)
COLUMNS = tuple(HEADER.split(","))
"""The file's columns; ``experiments/README.md`` says what each holds."""
KEYS = COLUMNS[: COLUMNS.index("metric")]
"""The columns that identify the cell of a number; all of them are text."""

_NUMBER = r"\d*\.?\d+"
_OR_EMPTY = (rf"({_NUMBER})?", "a number or empty")
_ALLOWED_VALUES = {
    "axis,axis_value": (
        r"(draft_length|target_budget),\d+|,",
        "draft_length or target_budget with a whole axis_value, or both empty",
    ),
    "temperature": _OR_EMPTY,
    "top_p": _OR_EMPTY,
    "plus_minus": _OR_EMPTY,
    "top_k": (r"\d*", "a whole number or empty"),
    "tree_attention": ("true|false|", "true, false or empty"),
    "value,reason,candidates": (  # 0.74B: a size as papers print it
        rf"{_NUMBER}[BM]?,,|,row_lost,|,order_unknown,{_NUMBER}(\|{_NUMBER})+",
        "a number alone, or empty with the reason row_lost, or with order_unknown and candidates "
        "between bars",
    ),
    "value,metric": (r"(?![0.].*,(block_efficiency|perplexity)$).+", ">= 1 for this metric"),
    "twin_table,twin_value": (rf"\d+,{_NUMBER}|,", "a table with its twin_value, or both empty"),
}
"""Allowed values by column, or by columns joined with commas: a pattern, and the same in words."""
Row = dict[str, str]


@cache
def read_published_numbers(
    file: Path,
    allowed_tables: tuple[str, ...] = (),
    allowed_metrics: tuple[str, ...] = (),
) -> tuple[Row, ...]:
    """Reads a paper's printed numbers, in printed order. They are cached: do not change them.

    Raises UsageError for a missing column, a wrong value, a number with two lines, or a number of
    another table or metric than the allowed ones; () allows all. The message names file, line,
    value and choices.
    """
    choices_by_column = {
        "task": sorted(find_configs("task")),
        "table": allowed_tables,
        "metric": allowed_metrics,
    }
    choices_by_column["twin_table"] = allowed_tables and ("", *allowed_tables)
    rows: dict[tuple[str, ...], Row] = {}
    errors = list[str]()
    for line, names, cells in iter_csv_lines(file, COLUMNS):
        row = dict(zip(names, cells, strict=True))
        try:
            _check_published_row(row, choices_by_column)
            if rows.setdefault((*map(row.__getitem__, KEYS), row["metric"]), row) is not row:
                raise UsageError(f"an earlier line has this number too, got {row['value']!r}")
        except UsageError as error:
            errors.append(f"line {line}: {error}")
    if errors:
        hint = [f"and {format_count(len(errors) - 3, 'more line')}"] * (len(errors) > 3)
        raise UsageError(f"{str(file)!r}, {'; '.join([*errors[:3], *hint])}")
    if not rows:
        raise UsageError(f"{str(file)!r} has no numbers; its columns are {HEADER}")
    return tuple(rows.values())


def read_all_published_numbers() -> dict[str, tuple[Row, ...]]:
    """Reads the printed numbers of all papers, by name of paper."""
    return {
        file.parent.name: read_published_numbers(file)
        for folder in list_experiments_dirs()
        for file in folder.glob(f"*/{FILE}")
    }


def _check_published_row(row: Row, choices_by_column: Mapping[str, Sequence[str]]) -> None:
    for name, choices in choices_by_column.items():
        if choices and row[name] not in choices:
            suggestion = (
                format_suggestion(row[name], choices)
                or f"; known: {', '.join(choices).lstrip(', ')}"
            )
            raise UsageError(f"unknown {name} {row[name]!r}{suggestion}")
    for names, (pattern, requirement) in _ALLOWED_VALUES.items():
        if not re.fullmatch(pattern, ",".join(row[name] for name in names.split(","))):
            values = ", ".join(f"{name} {row[name]!r}" for name in names.split(","))
            raise UsageError(f"{names.partition(',')[0]} must be {requirement}; got {values}")
    require_decoder(row["decoder"])
    if row["spec"]:
        refuse_unfit_tree(
            row["decoder"], get_decoder_parts(row["decoder"]).tree_policy, row["spec"]
        )


def pivot_numbers(numbers: Iterable[Row]) -> list[Row]:
    """Builds one row per cell: its keys, and one column per metric."""
    cells: dict[tuple[str, ...], Row] = {}
    for number in numbers:
        key = tuple(number[name] for name in KEYS)
        cell = cells.setdefault(key, dict(zip(KEYS, key, strict=True)))
        cell[number["metric"]] = number["value"]
    return list(cells.values())


def iter_published_numbers(
    numbers: Iterable[Row],
    pairs: Collection[tuple[str, str]],
    task: str,
    temperature: float,
    metric: str,
) -> Iterator[Row]:
    """Yields the printed numbers of a metric for a pair's trees at a task and temperature.

    ``pairs`` are the spellings of the pair, as (target, draft).
    """
    for row in numbers:
        if row["metric"] != metric or not row["spec"] or not row["temperature"]:
            continue
        setting = (row["task"], float(row["temperature"]))
        if setting == (task, temperature) and (row["target"], row["draft"]) in pairs:
            yield row


def find_tree_of_published_speedup(
    numbers: Iterable[Row],
    pairs: Collection[tuple[str, str]],
    task: str,
    temperature: float,
    decoder: str,
) -> str | None:
    """Finds the first tree for which a paper prints a speed-up of a pair; None if there is none."""
    rows = iter_published_numbers(numbers, pairs, task, temperature, "speedup")
    return next((row["spec"] for row in rows if row["decoder"] == decoder), None)


def list_pair_spellings(printed_names: Any) -> list[tuple[str, str]]:
    """Lists the spellings of a pair in papers, as (target, draft); draft is "" if there is none.

    ``printed_names`` is the pair's config entry: a mapping with one or several names for each
    model, a list of such mappings, or None.
    """
    papers = (
        []
        if printed_names is None
        else printed_names
        if isinstance(printed_names, list | tuple)
        else [printed_names]
    )
    return [
        (target, draft)
        for pair_names in papers
        for target in wrap_in_list(pair_names.get("target"))
        for draft in wrap_in_list(pair_names.get("draft")) or [""]
    ]


def find_pair_spellings(pair: str) -> list[tuple[str, str]]:
    """Finds the spellings of a pair in papers, as (target, draft); empty if it has no config."""
    path = find_configs("pair").get(pair)
    return list_pair_spellings(read_composed_config(path).get("paper")) if path else []


def wrap_in_list(names: Any) -> list[str]:
    """Wraps one name in a list, copies several names to a list; an empty list for None."""
    return [] if names is None else [*names] if isinstance(names, list | tuple) else [str(names)]
