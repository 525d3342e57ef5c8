"""A paper as data: ``experiments/PAPER/paper.yaml`` with its tables and figures, and its claims.

Its printed numbers lie beside it in ``reference.csv``. Knows nothing about measured numbers, nor
about how a table is written or a figure drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from spec_bench.report.papers.claim import Claim, code_of, read_claims
from spec_bench.report.papers.items import Column, Figure, Item, Kind, Lines, Table
from spec_bench.report.papers.recipes import (
    PAPER,
    paper_folders,
    read_recipe,
    recipe_cells,
    recipe_name,
)
from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import check
from spec_bench.vocabulary.decoders import DECODERS
from spec_bench.vocabulary.published import FILE, Row, read_published

__all__ = [
    "Axes",
    "Claim",
    "Column",
    "Figure",
    "Item",
    "Kind",
    "Lines",
    "Paper",
    "Table",
    "find_figure",
    "find_item",
    "find_table",
    "load_paper",
    "paper_names",
    "read_recipe",
    "recipe_cells",
    "recipe_name",
    "recipes_by_name",
]

FIGURES = "figures"
Axes = Mapping[str, Mapping[tuple[str, str], int]]
"""Axis that divides tables into blocks, such as the draft length -> (decoder, tree) -> value."""


@dataclass(frozen=True)
class Paper:
    """One paper's data."""

    name: str  # the folder below ``experiments``
    title: str  # short and full name
    arxiv: str
    machine: str  # on which its speeds were measured
    folder: Path  # of its files
    tables: tuple[Table, ...] = field(repr=False)  # in the paper's order
    figures: tuple[Figure, ...] = field(repr=False)  # likewise

    @functools.cached_property
    def claims(self) -> tuple[Claim, ...]:
        """What it says, and what we check beside it; read when asked for."""
        return read_claims(self.folder)

    def draws(self, figure: Figure) -> Callable[[Any], Iterable[Any]] | None:
        """The function that draws a figure, ``figure_4`` of ``figures.py``; None without one."""
        return getattr(code_of(self.folder, FIGURES), f"figure_{figure.number}", None)

    @property
    def items(self) -> tuple[Item, ...]:
        """Its tables, then its figures."""
        return (*self.tables, *self.figures)

    def of_kind(self, kind: Kind) -> list[Item]:
        """Its tables or its figures."""
        return [item for item in self.items if item.kind == kind]

    @property
    def numbers(self) -> tuple[Row, ...]:
        """All printed numbers as text, by column of ``spec_bench.vocabulary.published.COLUMNS``."""
        path = self.folder / FILE
        return read_published(path) if path.is_file() else ()

    @functools.cached_property
    def axes(self) -> Axes:
        """The axes of its tables.

        They come from the printed numbers and not from the trees: RSD's budgets are nominal.
        """
        axes: dict[str, dict[tuple[str, str], int]] = {}
        for number in self.numbers:
            if number["axis"] and number["decoder"] != "ar":
                places = axes.setdefault(number["axis"], {})
                places[number["decoder"], number["spec"]] = int(number["axis_value"])
        return axes

    def numbers_of(self, table: int) -> list[Row]:
        """A table's printed numbers; of one that nobody has printed its places."""
        return self._by_table.get(str(table), [])

    @functools.cached_property
    def _by_table(self) -> dict[str, list[Row]]:
        by_table: dict[str, list[Row]] = {}
        for number in self.numbers:
            by_table.setdefault(number["table"], []).append(number)
        for table in self.tables:
            if table.unprinted is not None:
                by_table[str(table.number)] = table.unprinted.rows(table.number)
        return by_table

    @functools.cached_property
    def reference(self) -> pd.DataFrame:
        """All printed numbers as a frame of text; shared, so not to be written to."""
        return pd.DataFrame(self.numbers, dtype=str)


def paper_names() -> list[str]:
    """The papers that have a data file, ours and those of other packages."""
    return sorted(paper_folders())


@functools.cache
def load_paper(name: str) -> Paper:
    """Reads a paper's data file.

    Raises:
        ValueError: no such paper, with the known ones; or an invalid entry of the file, with its
            path and the key.
    """
    if name not in paper_folders():
        raise ValueError(f"unknown paper {name!r}; known: {', '.join(paper_names())}")
    folder = paper_folders()[name]
    try:
        return _paper(name, folder)
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder / PAPER}: {one_line(what)}") from error


def find_item(kind: Kind, name: str) -> Item:
    """A table or figure by its name.

    Raises:
        ValueError: it does not exist; the message lists the choices.
    """
    paper, slash, number = name.partition("/")
    known = load_paper(paper).of_kind(kind)
    for item in known:
        if slash and str(item.number) == number:
            return item
    choices = _ranges(item.number for item in known)
    raise ValueError(f"{paper} has no {kind} {number!r}; its {kind}s: {paper}/ {choices}")


def find_table(name: str) -> Table:
    """A table by its name, such as ``rsd/7``."""
    table = find_item("table", name)
    assert isinstance(table, Table)
    return table


def find_figure(name: str) -> Figure:
    """A figure by its name, such as ``rsd/4``."""
    figure = find_item("figure", name)
    assert isinstance(figure, Figure)
    return figure


def recipes_by_name() -> dict[str, str]:
    """Results folder -> recipe, for every recipe that some item names."""
    items = [item for paper in paper_names() for item in load_paper(paper).items]
    return {recipe_name(recipe): recipe for item in items for recipe in item.recipes}


def _paper(name: str, folder: Path) -> Paper:
    """Reads and checks one data file."""
    data = yaml.safe_load((folder / PAPER).read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError("a paper is a mapping with the keys paper, arxiv, machine")
    tables = [
        _table(name, number, entry)
        for entry in _entries(data, "tables")
        for number in _numbers(entry["numbers"])
    ]
    recipe_of = {table.number: table.recipes[0] for table in tables if table.recipes}
    figures = [_figure(name, entry, recipe_of) for entry in _entries(data, "figures")]
    if "claims" in data:
        raise ValueError("claims are functions in claims.py beside it now: see docs/extending.md")
    unknown = sorted(data.keys() - {"paper", "arxiv", "machine", DECODERS})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    return Paper(
        name=name,
        title=str(data.pop("paper")),
        arxiv=str(data.pop("arxiv")),
        machine=str(data.pop("machine")),
        folder=folder,
        tables=tuple(sorted(tables, key=lambda table: table.number)),
        figures=tuple(figures),
    )


def _entries(data: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """A section's entries; none where the file has no such section."""
    entries = data.pop(section, None) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{section} must be a list of mappings")
    return [dict(entry) for entry in entries]


def _table(paper: str, number: int, entry: Mapping[str, Any]) -> Table:
    data = {key: value for key, value in entry.items() if key != "numbers"}
    recipes = _recipes(data)
    data = {"paper": paper, "number": number, "recipes": recipes, **data}
    return check(Table, data, of=f"table {number}")


def _figure(paper: str, entry: Mapping[str, Any], recipe_of: Mapping[int, str]) -> Figure:
    """A figure; one that shows tables' numbers is measured by the tables' recipe."""
    shown = [recipe_of[number] for number in entry.get("tables", ())[:1]]
    raw = {**({"recipe": shown[0]} if shown else {}), **entry}
    if "drawing" in raw:
        what = "drawings are functions in figures.py beside it now: see docs/extending.md"
        raise ValueError(f"figure {raw['number']}: {what}")
    recipes = _recipes(raw)
    return check(Figure, {"paper": paper, "recipes": recipes, **raw}, of=f"figure {raw['number']}")


def _recipes(entry: dict[str, Any]) -> tuple[str, ...]:
    """Takes the recipes out of an entry, the usual one first."""
    first = entry.pop("recipe", None)
    return ((str(first),) if first else ()) + tuple(map(str, entry.pop("other_recipes", ())))


def _numbers(written: str | Sequence[int]) -> list[int]:
    """``1-27`` or a list."""
    if not isinstance(written, str):
        return [int(number) for number in written]
    first, _, last = written.partition("-")
    return list(range(int(first), int(last) + 1))


def _ranges(numbers: Iterable[int]) -> str:
    """``1-7, 9``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts) or "none"
