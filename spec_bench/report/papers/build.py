"""A paper's table from its name: printed numbers, measured ones, notes, commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spec_bench.report.papers import (
    layout_ablation,
    layout_acceptance,
    layout_blocks,
    layout_heads,
    layout_one_cache,
    layout_search,
    layout_temperatures,
)
from spec_bench.report.papers.commands import commands_for
from spec_bench.report.papers.fill import fill, missing_of
from spec_bench.report.papers.grid import Grid
from spec_bench.report.papers.index import Item, Paper, find_item, load_paper
from spec_bench.report.papers.measured import Measured
from spec_bench.report.papers.notes import notes_for
from spec_bench.report.papers.pairs import pair_configs

_LAYOUTS: dict[str, Callable[[Paper, Item, str | None], Grid]] = {
    "ablation": layout_ablation.layout,
    "acceptance": layout_acceptance.layout,
    "blocks": layout_blocks.layout,
    "heads": layout_heads.layout,
    "one_cache": layout_one_cache.layout,
    "search": layout_search.layout,
    "temperatures": layout_temperatures.layout,
}


def printed_grid(paper: Paper, item: Item, pair: str | None) -> Grid:
    """The paper's numbers, and what is wanted beside them.

    Args:
        paper: the table's.
        item: the table.
        pair: the one pair whose rows are wanted; None: the paper's own.
    """
    return _printed(paper.name, item.number, pair)


@functools.cache
def _printed(paper: str, number: int, pair: str | None) -> Grid:
    """As above, made once."""
    item = find_item("table", f"{paper}/{number}")
    return _LAYOUTS[item.settings["layout"]](load_paper(paper), item, pair)


def build_table(
    item: Item, measured: Measured, pair: str | None = None, results: Path | None = None
) -> Grid:
    """A table with everything that is known about it.

    Args:
        item: the table.
        measured: the rows there are.
        pair: the pair to show; None: the paper's own.
        results: the results folder for the commands; None where it is the default.

    Raises:
        ValueError: no such pair.
    """
    paper = load_paper(item.paper)
    if pair is not None:
        check_pair(item, pair, measured)
    grid = fill(printed_grid(paper, item, pair), measured, item.experiments)
    own = sorted({wanted.pair for wanted in printed_grid(paper, item, None).wanted()})
    notes = (*grid.notes, *notes_for(paper, item, grid, measured, pair, own))
    commands: list[str] = []
    if item.recipes:
        missing = missing_of(grid.wanted(), measured, item.experiments)
        commands = commands_for(item.recipes[0], missing, measured, results)
    return replace(grid, notes=notes, commands=tuple(commands))


def check_pair(item: Item, pair: str, measured: Measured) -> None:
    """Refuses a pair that neither has a config nor was measured.

    Raises:
        ValueError: naming the choices.
    """
    known = sorted({*pair_configs(), *measured.pairs()})
    if pair not in known:
        raise ValueError(f"unknown pair {pair!r}; known: {', '.join(known)}")
