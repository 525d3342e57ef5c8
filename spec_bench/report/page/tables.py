"""Selects a paper's tables that show something of the measured pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_bench.report.data.apart import slugs
from spec_bench.report.papers.paper import Item, Table
from spec_bench.report.tables.build import build_tables
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.printed import Sheet


@dataclass(frozen=True)
class ShownTable:
    """A table with measured cells."""

    sheet: Sheet
    pair: str  # of the cells, if it is not the paper's; else ""


def stems(tables: Sequence[ShownTable]) -> list[str]:
    """The names of the tables' files: the table's, another pair's name, distinctive settings."""
    parts = slugs(table.sheet.setting for table in tables)
    names = [table.sheet.name.replace("/", "-") for table in tables]
    return [
        (f"{name}-{table.pair}" if table.pair else name) + parts[table.sheet.setting]
        for name, table in zip(names, tables, strict=True)
    ]


def shown_tables(
    items: Sequence[Item], measured: Measured, results: Path | None
) -> list[ShownTable]:
    """The paper's tables of the measured pairs; for another pair, the first table of each task.

    Args:
        items: a paper's tables and figures.
        measured: the rows there are.
        results: the results folder for the commands; None where it is the default.
    """
    tables = [item for item in items if isinstance(item, Table)]
    sheets = [sheet for item in tables for sheet in build_tables(item, measured, None, results)]
    shown = [ShownTable(sheet, "") for sheet in sheets if sheet.measured]
    covered = {pair for each in shown for pair in each.sheet.wanted().pair}
    for pair in measured.pairs():
        if pair in covered:
            continue
        seen: set[str] = set()
        for item in tables:
            sheets = build_tables(item, measured, pair, results)
            key = sheets[0].wanted().to_json()
            if key not in seen and any(sheet.measured for sheet in sheets):
                seen.add(key)
                shown += [ShownTable(sheet, pair) for sheet in sheets if sheet.measured]
    return shown
