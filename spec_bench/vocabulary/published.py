"""The papers' printed numbers: ``experiments/PAPER/reference.csv``, one line per number, as text.

One schema for all papers. A number stays the text that was printed, so that it is shown again as
it stood; a line whose ``value`` is empty is a number that the paper prints and the available copy
has lost.
"""

import csv
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from spec_bench.settings.configs import conf_dirs
from spec_bench.vocabulary.decoders import check_decoder
from spec_bench.vocabulary.spec import parse

FILE = "reference.csv"
KEYS = (
    *("table", "target", "draft", "task", "method", "decoder", "spec", "axis", "axis_value"),
    *("temperature", "top_k", "top_p", "tree_attention"),
)
"""The columns that say which cell a number belongs to; all of them are text."""
_OF_NUMBER = ("metric", "value", "plus_minus", "reason", "candidates", "twin_table", "twin_value")
COLUMNS = (*KEYS, *_OF_NUMBER)
"""The file's columns; ``docs/extending.md`` says what each holds."""

_NUMBERS = ("table", "axis_value", "temperature", "top_k", "top_p", "value", "plus_minus")

_NUMBER = re.compile(r"-?\d*\.?\d+[BM]?")  # 0.74B: a size as papers print it
Row = dict[str, str]


@cache
def read_published(file: Path) -> tuple[Row, ...]:
    """All printed numbers of a paper, in printed order; read once, not to be written to. Raises
    ValueError: a column is missing or unknown, or a cell is no number, tree, task or decoder; the
    message names file, line, value and choices.
    """
    tasks = sorted({path.stem for folder in conf_dirs() for path in folder.glob("task/*.yaml")})
    rows = []
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream, restval="")
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{file} must have the columns {','.join(COLUMNS)}")
        for row in reader:
            try:
                _check_row(row, tasks)
            except ValueError as error:
                raise ValueError(f"{FILE}, line {reader.line_num}: {error}") from error
            rows.append(row)
    return tuple(rows)


def _check_row(row: Row, tasks: Sequence[str]) -> None:
    check_decoder(row["decoder"])
    if row["task"] not in tasks:
        raise ValueError(f"unknown task {row['task']!r}; known: {', '.join(tasks)}")
    if row["spec"][:1].isdigit() and parse(row["spec"]).form == "name":
        raise ValueError(f"spec must be a tree: 3, 2-2-1, 4x3, 4x2@0.9; got {row['spec']!r}")
    for name in _NUMBERS:
        if row[name] and not _NUMBER.fullmatch(row[name]):
            raise ValueError(f"{name} must be a number, got {row[name]!r}")


def side_by_side(numbers: Iterable[Row]) -> list[Row]:
    """One row per cell: its keys, and each of its numbers in a column named after the metric."""
    cells: dict[tuple[str, ...], Row] = {}
    for number in numbers:
        key = tuple(number[name] for name in KEYS)
        cell = cells.setdefault(key, dict(zip(KEYS, key, strict=True)))
        cell[number["metric"]] = number["value"]
    return list(cells.values())


def printed_tree(
    numbers: Iterable[Row],
    pairs: Collection[tuple[str, str]],
    task: str,
    temperature: float,
    decoder: str,
) -> str | None:
    """The tree with which a paper prints a speed-up of a pair, (target, draft) in each spelling,
    the first one; None for none.
    """
    for row in numbers:
        if row["metric"] != "speedup" or not row["spec"] or not row["temperature"]:
            continue
        cell = (row["task"], float(row["temperature"]), row["decoder"])
        if cell == (task, temperature, decoder) and (row["target"], row["draft"]) in pairs:
            return row["spec"]
    return None


def spellings(paper: Any) -> list[tuple[str, str]]:
    """(target, draft) in each way in which papers print a pair; "" where there is no draft.
    ``paper`` is a pair's in its config: a mapping whose names may be lists, a list of such
    mappings, or None.
    """
    several = [] if paper is None else paper if isinstance(paper, list | tuple) else [paper]
    return [
        (target, draft)
        for each in several
        for target in listed(each.get("target"))
        for draft in listed(each.get("draft")) or [""]
    ]


def listed(names: Any) -> list[str]:
    """Returns one name or several as a list; none for None."""
    return [] if names is None else [*names] if isinstance(names, list | tuple) else [str(names)]
