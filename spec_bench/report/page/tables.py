"""Selects a paper's tables that show something of the measured pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_bench.report.data.apart import slugs
from spec_bench.report.papers.paper import Item, Table
from spec_bench.report.tables.build import build_tables
from spec_bench.report.tables.grid import Grid, Wanted
from spec_bench.report.tables.measured import Measured


@dataclass(frozen=True)
class ShownTable:
    """A table with measured cells.

    Attributes:
        grid: the table.
        pair: of the cells, if it is not the paper's; else "".
    """

    grid: Grid
    pair: str


def stems(tables: Sequence[ShownTable]) -> list[str]:
    """The names of the tables' files: the table's, another pair's name, distinctive settings."""
    parts = slugs(table.grid.setting for table in tables)
    names = [table.grid.name.replace("/", "-") for table in tables]
    return [
        (f"{name}-{table.pair}" if table.pair else name) + parts[table.grid.setting]
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
    grids = [grid for item in tables for grid in build_tables(item, measured, None, results)]
    shown_grids = [ShownTable(grid, "") for grid in grids if grid.measured]
    covered = {wanted.pair for shown in shown_grids for wanted in shown.grid.wanted()}
    for pair in measured.pairs():
        if pair in covered:
            continue
        seen: set[tuple[Wanted, ...]] = set()
        for item in tables:
            grids = build_tables(item, measured, pair, results)
            key = tuple(grids[0].wanted())
            if key not in seen and any(grid.measured for grid in grids):
                seen.add(key)
                shown_grids += [ShownTable(grid, pair) for grid in grids if grid.measured]
    return shown_grids
