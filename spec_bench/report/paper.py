"""A paper as data: ``experiments/PAPER/paper.yaml`` with its tables, figures and claims.

Its printed numbers lie beside it in ``reference.csv``. Papers of other packages are found through
the entry points ``spec_bench.configs``. Knows nothing about measured numbers, nor about how a table
is written or a figure drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
import yaml

from spec_bench.published import FILE, Row, read_published
from spec_bench.registry import config_folders
from spec_bench.report.claim import Claim, read_claim
from spec_bench.report.papers.folders import experiments_dir

PAPER = "paper.yaml"
Kind = Literal["table", "figure"]
Axes = Mapping[str, Mapping[tuple[str, str], int]]
"""Of what divides tables into blocks, such as the draft length: (decoder, tree) -> value."""


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes:
        paper: the paper's name.
        number: as the paper counts.
        title: a caption; a table's may have names of the reference's columns in braces.
        recipes: what measures it, the usual one first, e.g. ``rsd=exp1``; none: a command does.
        settings: all else that the data file says.
    """

    kind: ClassVar[Kind]
    paper: str
    number: int
    title: str
    recipes: tuple[str, ...]
    settings: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """What a user types, e.g. ``rsd/7``."""
        return f"{self.paper}/{self.number}"

    @property
    def experiments(self) -> tuple[str, ...]:
        """The results folders' names that the recipes write to."""
        return tuple(recipe_name(recipe) for recipe in self.recipes)


@dataclass(frozen=True)
class Table(Item):
    """A table."""

    kind: ClassVar[Kind] = "table"


@dataclass(frozen=True)
class Figure(Item):
    """A figure."""

    kind: ClassVar[Kind] = "figure"


@dataclass(frozen=True)
class Paper:
    """One paper's data.

    Attributes:
        name: the folder below ``experiments``.
        title: short and full name.
        arxiv: identifier.
        machine: what its speeds were measured on.
        folder: where its files lie.
        tables: in the paper's order.
        figures: likewise.
        claims: likewise.
        settings: the data file's other keys.
    """

    name: str
    title: str
    arxiv: str
    machine: str
    folder: Path
    tables: tuple[Table, ...] = field(repr=False)
    figures: tuple[Figure, ...] = field(repr=False)
    claims: tuple[Claim, ...] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)

    @property
    def items(self) -> tuple[Item, ...]:
        """Its tables, then its figures."""
        return (*self.tables, *self.figures)

    def of_kind(self, kind: Kind) -> list[Item]:
        """Its tables or its figures."""
        return [item for item in self.items if item.kind == kind]

    @property
    def numbers(self) -> tuple[Row, ...]:
        """All printed numbers as text, by column of ``spec_bench.published.COLUMNS``."""
        path = self.folder / FILE
        return read_published(path) if path.is_file() else ()

    @property
    def axes(self) -> Axes:
        """The axes of its tables.

        They come from what is printed and not from the trees: RSD's budgets are nominal.
        """
        found: dict[str, dict[tuple[str, str], int]] = {}
        for number in self.numbers:
            if number["axis"] and number["decoder"] != "ar":
                places = found.setdefault(number["axis"], {})
                places[number["decoder"], number["spec"]] = int(number["axis_value"])
        return found

    def numbers_of(self, table: int) -> list[Row]:
        """A table's printed numbers."""
        return [number for number in self.numbers if number["table"] == str(table)]

    @functools.cached_property
    def reference(self) -> pd.DataFrame:
        """All printed numbers as a frame of text; shared, so not to be written to."""
        return pd.DataFrame(self.numbers, dtype=str)


def paper_names() -> list[str]:
    """The papers that have a data file, ours and those of other packages."""
    return sorted(_folders())


@functools.cache
def load_paper(name: str) -> Paper:
    """Reads a paper's data file.

    Raises:
        ValueError: no such paper, with those there are; or the file says something that cannot be
            right, with its path and the key.
    """
    if name not in _folders():
        raise ValueError(f"unknown paper {name!r}; known: {', '.join(paper_names())}")
    folder = _folders()[name]
    try:
        return _paper(name, folder)
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder / PAPER}: {' '.join(what.split())}") from error


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


@functools.cache
def read_recipe(name: str) -> Mapping[str, Any]:
    """What a recipe such as ``rsd=exp1`` says, as its file has it; not to be written to.

    Raises:
        ValueError: the recipe's file is not there.
    """
    paper, _, stem = name.partition("=")
    path = _folders().get(paper, experiments_dir() / paper) / f"{stem}.yaml"
    if not path.is_file():
        raise ValueError(f"recipe {name} has no file {path}")
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def recipe_name(name: str) -> str:
    """The results folder that a recipe names, ``rsd=exp1`` -> ``rsd-exp1``."""
    return str(read_recipe(name)["name"])


def recipe_cells(name: str) -> tuple[str, ...]:
    """The cells that a recipe lists, as ``decoder:tree``; none where it has no list."""
    entries = read_recipe(name).get("cells") or ()
    return tuple(cell for cell in map(_cell, entries) if cell)


def recipes_by_name() -> dict[str, str]:
    """Results folder -> recipe, for every recipe that some item names."""
    items = [item for paper in paper_names() for item in load_paper(paper).items]
    return {recipe_name(recipe): recipe for item in items for recipe in item.recipes}


@functools.cache
def _folders() -> dict[str, Path]:
    """Paper -> folder.

    Raises:
        ValueError: two folders have one paper's name.
    """
    found: dict[str, Path] = {}
    tops = [experiments_dir(), *(folder / "experiments" for folder in config_folders())]
    for path in (path for top in tops for path in sorted(top.glob(f"*/{PAPER}"))):
        folder = path.parent
        if folder.name in found:
            raise ValueError(f"two papers are called {folder.name}: {found[folder.name]}, {folder}")
        found[folder.name] = folder
    return found


def _paper(name: str, folder: Path) -> Paper:
    """Reads and checks one data file."""
    data = yaml.safe_load((folder / PAPER).read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError("a paper is a mapping with the keys paper, arxiv, machine")
    tables = [
        Table(name, number, *_common(entry, "table"))
        for entry in _entries(data, "tables")
        for number in _numbers(entry.pop("numbers"))
    ]
    by_number = {table.number: table for table in tables}
    figures = []
    for entry in _entries(data, "figures"):
        shown = [by_number[number].recipes[0] for number in entry.get("tables", ())[:1]]
        entry = {**({"recipe": shown[0]} if shown else {}), **entry}
        figures.append(Figure(name, int(entry.pop("number")), *_common(entry, "figure")))
    claims = [read_claim(entry) for entry in _entries(data, "claims")]
    return Paper(
        name=name,
        title=str(data.pop("paper")),
        arxiv=str(data.pop("arxiv")),
        machine=str(data.pop("machine")),
        folder=folder,
        tables=tuple(sorted(tables, key=lambda table: table.number)),
        figures=tuple(figures),
        claims=tuple(claims),
        settings=data,
    )


def _entries(data: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """A section's entries; none where the file has no such section."""
    entries = data.pop(section, None) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{section} must be a list of mappings")
    return [dict(entry) for entry in entries]


def _common(entry: Mapping[str, Any], kind: Kind) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
    """Title, recipes, and the rest of a table's or figure's entry."""
    settings = {key: value for key, value in entry.items() if key not in ("numbers", "number")}
    title = settings.pop("title", None)
    if not isinstance(title, str):
        raise ValueError(f"a {kind} needs a title, got {title!r}")
    own = settings.pop("recipe", None)
    recipes = ((str(own),) if own else ()) + tuple(map(str, settings.pop("other_recipes", ())))
    return title, recipes, settings


def _numbers(written: str | Sequence[int]) -> list[int]:
    """``1-27`` or a list."""
    if not isinstance(written, str):
        return [int(number) for number in written]
    first, _, last = written.partition("-")
    return list(range(int(first), int(last) + 1))


def _cell(entry: str | Mapping[str, Any]) -> str:
    """A cell of a recipe as ``decoder:tree``, what else it sets left out; "" for a grid."""
    if isinstance(entry, str):
        return entry
    return f"{entry['decoder']}:{entry.get('spec', '')}" if "decoder" in entry else ""


def _ranges(numbers: Iterable[int]) -> str:
    """``1-7, 9``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts) or "none"
