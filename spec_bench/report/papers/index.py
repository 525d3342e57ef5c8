"""What each paper prints: ``experiments/<paper>/tables.yml`` as items with a name such as rsd/7.

Knows the data files; nothing about measured numbers or how a table is printed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from spec_bench.report.papers.folders import experiments_dir

Kind = Literal["table", "figure"]


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes:
        paper: the folder below ``experiments``.
        kind: ``table`` or ``figure``.
        number: as the paper counts.
        title: a caption; tables may have names in braces that their layout fills in.
        recipes: what measures it, the usual one first, e.g. ``rsd=exp1``; none: a command does.
        settings: all else that the data file says.
    """

    paper: str
    kind: Kind
    number: int
    title: str
    recipes: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What a user types."""
        return f"{self.paper}/{self.number}"

    @property
    def experiments(self) -> tuple[str, ...]:
        """The results folders' names that the recipes write to."""
        return tuple(recipe_name(recipe) for recipe in self.recipes)


@dataclass(frozen=True)
class Paper:
    """One paper's data file.

    Attributes:
        name: the folder below ``experiments``.
        title: short and full name.
        arxiv: identifier.
        machine: what its speeds were measured on.
        folder: where its files lie.
        settings: the data file's other keys.
        items: tables, then figures, in the paper's order.
    """

    name: str
    title: str
    arxiv: str
    machine: str
    folder: Path
    settings: Mapping[str, Any] = field(repr=False)
    items: tuple[Item, ...] = field(repr=False)

    def of_kind(self, kind: Kind) -> list[Item]:
        """Its tables or its figures."""
        return [item for item in self.items if item.kind == kind]


def paper_names() -> list[str]:
    """The papers that have a data file."""
    return sorted(path.parent.name for path in experiments_dir().glob("*/tables.yml"))


@functools.cache
def load_paper(name: str) -> Paper:
    """Reads a paper's data file.

    Raises:
        ValueError: no such paper; the message lists those there are.
    """
    if name not in paper_names():
        raise ValueError(f"unknown paper {name!r}; known: {', '.join(paper_names())}")
    folder = experiments_dir() / name
    data: dict[str, Any] = yaml.safe_load((folder / "tables.yml").read_text(encoding="utf-8"))
    tables = [
        _item(name, "table", number, entry)
        for entry in data.pop("tables")
        for number in _numbers(entry["numbers"])
    ]
    figures = [_figure(name, entry, tables) for entry in data.pop("figures")]
    return Paper(
        name=name,
        title=data.pop("paper"),
        arxiv=data.pop("arxiv"),
        machine=data.pop("machine"),
        folder=folder,
        settings=data,
        items=(*sorted(tables, key=lambda item: item.number), *figures),
    )


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
def recipe_name(recipe: str) -> str:
    """The results folder that a recipe names, ``rsd=exp1`` -> ``rsd-exp1``.

    Raises:
        ValueError: the recipe's file is not there.
    """
    paper, _, stem = recipe.partition("=")
    path = experiments_dir() / paper / f"{stem}.yaml"
    if not path.is_file():
        raise ValueError(f"recipe {recipe} has no file {path}")
    return str(yaml.safe_load(path.read_text(encoding="utf-8"))["name"])


@functools.cache
def recipe_cells(recipe: str) -> tuple[str, ...]:
    """The cells that a recipe lists, as ``decoder:tree``; none where it has no list."""
    paper, _, stem = recipe.partition("=")
    text = (experiments_dir() / paper / f"{stem}.yaml").read_text(encoding="utf-8")
    return tuple(map(_cell, yaml.safe_load(text).get("cells") or ()))


def _cell(entry: str | Mapping[str, Any]) -> str:
    """A cell of a recipe as ``decoder:tree``; what else it sets is no part of that."""
    return entry if isinstance(entry, str) else f"{entry['decoder']}:{entry.get('spec', '')}"


def recipes_by_name() -> dict[str, str]:
    """Results folder -> recipe, for every recipe that some item names."""
    found: dict[str, str] = {}
    for paper in paper_names():
        for item in load_paper(paper).items:
            found.update({recipe_name(recipe): recipe for recipe in item.recipes})
    return found


def _item(paper: str, kind: Kind, number: int, entry: Mapping[str, Any]) -> Item:
    settings = dict(entry)
    recipe = settings.pop("recipe", None)
    recipes = ((recipe,) if recipe else ()) + tuple(settings.pop("other_recipes", ()))
    return Item(paper, kind, number, settings.pop("title"), recipes, settings)


def _figure(paper: str, entry: Mapping[str, Any], tables: Iterable[Item]) -> Item:
    """A figure that shows tables' numbers is measured by the tables' recipe."""
    shown = {table.number: table for table in tables}
    numbers = entry.get("tables", [])
    recipe = shown[numbers[0]].recipes[0] if numbers else None
    return _item(paper, "figure", entry["number"], {"recipe": recipe, **entry})


def _numbers(written: str | list[int]) -> list[int]:
    """``1-27`` or a list."""
    if isinstance(written, list):
        return written
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
