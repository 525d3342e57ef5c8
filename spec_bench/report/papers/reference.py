"""The papers' printed numbers, as text: a number is shown exactly as it was printed."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from spec_bench.report.papers.index import Paper

Row = dict[str, str]


@dataclass(frozen=True)
class Gap:
    """A number that the paper prints and the copy read has lost.

    Attributes:
        reason: ``row_lost`` or ``order_unknown``.
        candidates: the numbers it may be, where they are known.
        twin_table: the table that prints the same spec's number; "" where none does.
        twin_value: that number.
    """

    reason: str
    candidates: tuple[str, ...]
    twin_table: str
    twin_value: str


def reference_rows(paper: Paper, number: int) -> list[Row]:
    """A table's rows in printed order; a paper with one table has no column for its number."""
    rows = _read(paper.folder / "reference" / str(paper.settings["reference"]))
    return [row for row in rows if row.get("table", str(number)) == str(number)]


def gaps_of(paper: Paper, number: int) -> dict[tuple[str, str, str], Gap]:
    """(decoder, spec, column) -> why a table's cell is empty although the paper prints a number."""
    if "gaps" not in paper.settings:
        return {}
    rows = _read(paper.folder / "reference" / str(paper.settings["gaps"]))
    return {
        (row["decoder"], row["spec"], row["column"]): Gap(
            row["reason"],
            tuple(filter(None, row["candidates"].split("|"))),
            row["twin_table"],
            row["twin_value"],
        )
        for row in rows
        if row["table"] == str(number)
    }


@functools.cache
def _read(path: Path) -> tuple[Row, ...]:
    with path.open(newline="", encoding="utf-8") as stream:
        return tuple(csv.DictReader(stream))
