"""The list of tables and figures as text: cells needed, cells measured, commands for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spec_bench.report.papers.paper import Figure, Item, Paper
from spec_bench.report.tables.commands import commands_for
from spec_bench.report.tables.grid import Wanted
from spec_bench.report.tables.layout import printed_grid
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import Progress, progress_of


def list_paper(
    paper: Paper, measured: Measured, pair: str | None = None, results: Path | None = None
) -> str:
    """A paper's items, one line each, then the commands for missing cells."""
    lines = [f"{paper.title} (arXiv:{paper.arxiv})"]
    missing: dict[str, list[Wanted]] = {}
    before: dict[str, list[str]] = {}
    words: dict[str, tuple[str, ...]] = {}
    for item in paper.items:
        shares = progress_of(paper, item, measured, pair) if item.recipes else []
        lines.append(f"  {f'{item.kind} {item.name}':<20}{_title(paper, item)}")
        lines.append(f"  {'':<20}  {_state(paper, item, shares)}")
        if item.recipes:
            asked = [p for p in shares if p.in_paper or pair is not None]
            cells = missing.setdefault(item.recipes[0], [])
            cells += [each for progress in asked for each in progress.missing]
            if isinstance(item, Figure) and any(progress.missing for progress in asked):
                before.setdefault(item.recipes[0], []).extend(item.before)
                words[item.recipes[0]] = words.get(item.recipes[0]) or item.words
    commands = [
        command
        for recipe, wanted in missing.items()
        for command in (
            *before.get(recipe, ()),
            *commands_for(recipe, dict.fromkeys(wanted), measured, results, words.get(recipe, ())),
        )
    ]
    if commands:
        once = dict.fromkeys(commands)  # several recipes want the same heads
        lines += ["  what is missing is run by:", *(f"    {command}" for command in once)]
    return "\n".join(lines) + "\n"


def _title(paper: Paper, item: Item) -> str:
    """The item's caption, its names filled in."""
    return printed_grid(item.name).title if item.kind == "table" else item.title


def _state(paper: Paper, item: Item, shares: Sequence[Progress]) -> str:
    """Cells measured of cells needed, pairs with equal counts together."""
    if isinstance(item, Figure) and item.command:
        return f"{item.how}: {item.command}"
    counts: dict[str, list[str]] = {}
    for progress in shares:
        name = progress.pair if progress.in_paper else f"{progress.pair} (not the paper's)"
        counts.setdefault(f"{progress.measured}/{progress.needed}", []).append(name)
    return "; ".join(f"{count} cells: {', '.join(names)}" for count, names in counts.items())
