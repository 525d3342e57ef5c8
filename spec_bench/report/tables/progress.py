"""Measured shares of tables and figures, for every pair that they need or that has rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from spec_bench.report.papers.pairs import pair_of
from spec_bench.report.papers.paper import Figure, Item, Paper, find_table, recipe_cells
from spec_bench.report.tables.fill import missing_of
from spec_bench.report.tables.grid import Wanted
from spec_bench.report.tables.layout import printed_grid
from spec_bench.report.tables.measured import Measured


@dataclass(frozen=True)
class Progress:
    """One pair's share of a table or figure.

    Attributes:
        pair: its name.
        in_paper: whether the paper has this pair here.
        needed: cells.
        missing: those without numbers.
    """

    pair: str
    in_paper: bool
    needed: int
    missing: tuple[Wanted, ...]

    @property
    def measured(self) -> int:
        """Cells that have numbers."""
        return self.needed - len(self.missing)


def wanted_of(paper: Paper, item: Item, pair: str | None = None) -> list[Wanted]:
    """The measured cells that a table or figure needs, of the paper's pairs or of this one."""
    if not isinstance(item, Figure):
        cells = printed_grid(item.name).wanted()
    elif item.tables:
        tables = [find_table(f"{paper.name}/{number}") for number in item.tables]
        cells = [each for table in tables for each in printed_grid(table.name).wanted()]
    else:
        cells = _listed(item)
    moved = cells if pair is None else [replace(each, pair=pair) for each in cells]
    return list(dict.fromkeys(moved))


def progress_of(
    paper: Paper, item: Item, measured: Measured, pair: str | None = None
) -> list[Progress]:
    """Each of the paper's pairs, then other pairs of which something is measured; or this pair
    only.
    """
    measured = measured.of(item.experiments)
    wanted = wanted_of(paper, item)
    pairs = list(dict.fromkeys(each.pair for each in wanted))
    if pair is not None:
        moved = [each for each in wanted if each.pair == pair] or wanted_of(paper, item, pair)
        return [_progress(pair, pair in pairs, moved, measured)]
    parts = [_progress(p, True, [w for w in wanted if w.pair == p], measured) for p in pairs]
    for name in measured.pairs({each.task for each in wanted}):
        if name not in pairs:
            moved = list(dict.fromkeys(replace(each, pair=name) for each in wanted))
            other = _progress(name, False, moved, measured)
            parts += [other] if other.measured else []
    return parts


def _progress(pair: str, in_paper: bool, wanted: Sequence[Wanted], measured: Measured) -> Progress:
    missing = missing_of(wanted, measured)
    return Progress(pair, in_paper, len(wanted), tuple(missing))


def _listed(item: Figure) -> list[Wanted]:
    """The cells of a figure's list; none without a list."""
    sampling = item.sampling
    top_k, top_p = int(sampling.get("top_k", 0)), sampling.get("top_p", 1.0)
    temperatures = item.temperatures or (sampling.get("temperature", 1.0),)
    cells = []
    for (target, draft), task, temperature in product(item.pairs, item.tasks, temperatures):
        pair = pair_of(target, draft)
        for cell in (item.cells or recipe_cells(item.recipes[0])) if pair else ():
            decoder, _, spec = cell.partition(":")
            cells.append(Wanted(str(pair), task, decoder, spec, temperature, top_k, top_p))
    return cells
