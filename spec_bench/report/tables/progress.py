"""What of tables and figures was measured, pair by pair, and the commands for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd

from spec_bench.report.papers.pairs import pair_of
from spec_bench.report.papers.paper import Figure, Item, Paper, recipe_cells
from spec_bench.report.tables.commands import commands_for
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.printed import ASKED, asked_frame, printed_sheet


@dataclass(frozen=True)
class Progress:
    """One pair's share of a table or figure."""

    pair: str
    in_paper: bool  # whether the paper has this pair here
    wanted: pd.DataFrame  # the cells
    missing: pd.DataFrame  # those without numbers

    @property
    def needed(self) -> int:
        """How many cells there are."""
        return len(self.wanted)

    @property
    def measured(self) -> int:
        """Cells that have numbers."""
        return self.needed - len(self.missing)


def wanted_of(paper: Paper, item: Item) -> pd.DataFrame:
    """The measured cells that a table or figure needs of the paper's pairs."""
    if not isinstance(item, Figure):
        return printed_sheet(item.name, None).wanted
    if item.tables:
        tables = [printed_sheet(f"{paper.name}/{number}", None).wanted for number in item.tables]
        return pd.concat(tables).drop_duplicates(ignore_index=True)
    sampling = item.sampling
    limits = {"top_k": sampling.get("top_k", 0), "top_p": sampling.get("top_p", 1.0)}
    temperatures = item.temperatures or (sampling.get("temperature", 1.0),)
    cells = []
    for (target, draft), task, temperature in product(item.pairs, item.tasks, temperatures):
        pair = pair_of(target, draft)
        for cell in (item.cells or recipe_cells(item.recipes[0])) if pair else ():
            decoder, _, spec = cell.partition(":")
            own = {"pair": pair, "task": task, "decoder": decoder, "spec": spec, **limits}
            cells.append({**own, "temperature": temperature})
    return asked_frame(cells).drop_duplicates(ignore_index=True)


def progress_of(
    paper: Paper, item: Item, measured: Measured, pair: str | None = None
) -> list[Progress]:
    """Each of the paper's pairs, then other pairs of which something is measured; or this pair
    only.
    """
    measured = measured.of(item.experiments)
    wanted = wanted_of(paper, item)
    pairs = list(dict.fromkeys(wanted.pair))

    def share(name: str) -> Progress:
        own = wanted[wanted.pair == name] if name in pairs else wanted.assign(pair=name)
        own = own.drop_duplicates(ignore_index=True)
        return Progress(name, name in pairs, own, measured.missing(own))

    if pair is not None:
        return [share(pair)]
    others = [share(name) for name in measured.pairs(wanted.task) if name not in pairs]
    return [*map(share, pairs), *(each for each in others if each.measured)]


def list_paper(
    paper: Paper, measured: Measured, pair: str | None = None, results: Path | None = None
) -> str:
    """A paper's items, one line each, then the commands for missing cells."""
    lines = [f"{paper.title} (arXiv:{paper.arxiv})"]
    missing: dict[str, list[pd.DataFrame]] = {}
    before: dict[str, list[str]] = {}
    words: dict[str, tuple[str, ...]] = {}
    for item in paper.items:
        shares = progress_of(paper, item, measured, pair) if item.recipes else []
        title = printed_sheet(item.name, None).title if item.kind == "table" else item.title
        lines.append(f"  {f'{item.kind} {item.name}':<20}{title}")
        lines.append(f"  {'':<20}  {_state(item, shares)}")
        if item.recipes:
            asked = [p for p in shares if p.in_paper or pair is not None]
            cells = missing.setdefault(item.recipes[0], [])
            cells += [progress.missing for progress in asked]
            if isinstance(item, Figure) and any(len(progress.missing) for progress in asked):
                before.setdefault(item.recipes[0], []).extend(item.before)
                words[item.recipes[0]] = words.get(item.recipes[0]) or item.words
    commands: list[str] = []
    for recipe, parts in missing.items():
        wanted = pd.concat(parts)[ASKED].drop_duplicates() if parts else asked_frame([])
        more = commands_for(recipe, wanted, measured, results, words.get(recipe, ()))
        commands += [*before.get(recipe, ()), *more]
    if commands:
        once = dict.fromkeys(commands)  # several recipes want the same heads
        lines += ["  what is missing is run by:", *(f"    {command}" for command in once)]
    return "\n".join(lines) + "\n"


def _state(item: Item, shares: Sequence[Progress]) -> str:
    """Cells measured of cells needed, pairs with equal counts together."""
    if isinstance(item, Figure) and item.command:
        return f"{item.how}: {item.command}"
    counts: dict[str, list[str]] = {}
    for progress in shares:
        name = progress.pair if progress.in_paper else f"{progress.pair} (not the paper's)"
        counts.setdefault(f"{progress.measured}/{progress.needed}", []).append(name)
    return "; ".join(f"{count} cells: {', '.join(names)}" for count, names in counts.items())
