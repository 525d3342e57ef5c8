"""A paper's table from its name: printed numbers, measured ones, notes, commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.papers.paper import Item, Table, load_paper
from spec_bench.report.tables.commands import commands_for
from spec_bench.report.tables.fill import fill, missing_of
from spec_bench.report.tables.grid import Grid
from spec_bench.report.tables.layout import printed_grid
from spec_bench.report.tables.lost import lost_notes
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.notes import notes_for


def build_table(
    item: Table, measured: Measured, pair: str | None = None, results: Path | None = None
) -> Grid:
    """A table with its measured cells, notes and commands, of a pair or of the paper's pairs.

    Raises:
        ValueError: no such pair.
    """
    measured = measured.of(item.experiments)
    paper = load_paper(item.paper)
    if pair is not None:
        check_pair(item, pair, measured)
    grid = fill(printed_grid(item.name, pair), measured)
    pairs = sorted({wanted.pair for wanted in printed_grid(item.name).wanted()})
    lost = lost_notes(paper.numbers_of(item.number))
    notes = (*grid.notes, *lost, *notes_for(paper, item, grid, measured, pair, pairs))
    commands: list[str] = []
    if item.recipes:
        missing = missing_of(grid.wanted(), measured)
        commands = commands_for(item.recipes[0], missing, measured, results)
    return replace(grid, notes=notes, commands=tuple(commands))


def build_tables(
    item: Table, measured: Measured, pair: str | None = None, results: Path | None = None
) -> list[Grid]:
    """A table, once for each way in which its cells were run: rows that differ are not mixed.

    The headings name the differences. Commands for missing cells stand below the first.

    Raises:
        ValueError: no such pair.
    """
    measured = measured.of(item.experiments)
    first = build_table(item, measured, pair, results)
    parts = measured.apart(first.wanted())
    if len(parts) == 1:
        return [first]
    grids = [(text, build_table(item, part, pair, results)) for text, part in parts]
    return [
        replace(
            grid,
            title=f"{grid.title} ({text})",
            setting=text,
            commands=() if place else first.commands,
        )
        for place, (text, grid) in enumerate(grids)
    ]


def check_pair(item: Item, pair: str, measured: Measured) -> None:
    """Refuses a pair that neither has a config nor was measured.

    Raises:
        ValueError: naming the choices.
    """
    known = sorted({*pair_configs(), *measured.pairs()})
    if pair not in known:
        raise ValueError(f"unknown pair {pair!r}; known: {', '.join(known)}")
