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
from typing import Any, ClassVar, Literal, TypeVar

import pandas as pd
import yaml
from pydantic import TypeAdapter, ValidationError

from spec_bench.files import package_folder
from spec_bench.published import FILE, Row, read_published
from spec_bench.registry import config_folders
from spec_bench.report.claim import Claim, read_claim

PAPER = "paper.yaml"
Kind = Literal["table", "figure"]
Axes = Mapping[str, Mapping[tuple[str, str], int]]
"""Of what divides tables into blocks, such as the draft length: (decoder, tree) -> value."""
_Checked = TypeVar("_Checked")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper.

    Attributes:
        paper: the paper's name.
        number: as the paper counts.
        title: a caption; a table's may have names of the reference's columns in braces.
        recipes: what measures it, the usual one first, e.g. ``rsd=exp1``; none: a command does.
        settings: of a figure, all else that the data file says.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    kind: ClassVar[Kind]
    paper: str
    number: int
    title: str
    recipes: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """What a user types, e.g. ``rsd/7``."""
        return f"{self.paper}/{self.number}"

    @property
    def experiments(self) -> tuple[str, ...]:
        """The results folders' names that the recipes write to."""
        return tuple(recipe_name(recipe) for recipe in self.recipes)


@dataclass(frozen=True)
class Column:
    """A column of a table: the printed numbers of one metric, and what stands beside them.

    Attributes:
        metric: under which the reference has its numbers; of several the one printed for a task.
            "" for a column that the paper does not have.
        name: for files, unique in its table; by default the metric.
        title: for people; by default that of the results' column.
        group: a heading over several columns; "" for none.
        digits: after the point, of measured values.
        best: whether its best values stand out.
        shows: ``number``; or ``setting``, a measured cell's tree in our shorthand; ``tree``, the
            tree as MCSD writes it; ``size``, how many parameters drafted.
        measured: the results' column, where it is not called as the metric.
        scale: what a measured value is multiplied by: 100 beside a percentage.
        spec: the tree whose number this is; "" for that of the line.
        minus: the tree whose number is subtracted from it.
        over: decoder and temperature of the cell whose number it is divided by.
        empty: what is said of a measured cell that has no such number and does not say why.
        tuned: how a number larger than that of the untuned draft is marked.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    metric: str | tuple[str, ...] = ""
    name: str = ""
    title: str = ""
    group: str = ""
    digits: int = 3
    best: bool = True
    shows: Literal["number", "setting", "tree", "size"] = "number"
    measured: str = ""
    scale: float = 1.0
    spec: str = ""
    minus: str = ""
    over: Mapping[str, str | float] = field(default_factory=dict)
    empty: str = ""
    tuned: Literal["", "bold", "underlined"] = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Its metrics, in the order in which a task's own is looked for."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric

    @property
    def is_text(self) -> bool:
        """Whether it holds trees or sizes and no numbers."""
        return self.shows != "number"


@dataclass(frozen=True)
class Lines:
    """How the lines of one decoder are labelled and measured, or a line that the paper has not.

    Attributes:
        decoder: whose; "" for any.
        method: the paper's name of the line, where two lines share a decoder.
        labels: by the source of the label, as in the table's ``heads``.
        pick: which measured tree stands there; "" for the table's own choice.
        among: the decoders that a pick looks at.
        spec: its tree, where the paper prints none and the recipe names none.
        temperature: where the paper prints none.
        tree_attention: ``true`` or ``false``.
        after: of an extra line: the decoder whose lines it follows; "" puts it last.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    decoder: str = ""
    method: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    pick: Literal["", "spec", "preferred", "fastest", "same depth", "common"] = ""
    among: tuple[str, ...] = ()
    spec: str = ""
    temperature: float | None = None
    tree_attention: str = ""
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class Table(Item):
    """A table: how its printed numbers are laid out, and which cells are measured beside them.

    Attributes:
        heads: title -> source of each line's labels: a column of the reference, or a key of the
            labels in ``lines``.
        columns: the numbers of a line.
        across: a column of the reference whose values stand side by side, each with all columns.
        block: sources; lines with the same labels there compete for the best value.
        lines: what is special about some decoders' lines.
        extra: lines that the paper does not have; shown where they were measured.
        pick: which measured cell stands in a place, see ``grid.Wanted``.
        temperature: of the measured cells, where the paper prints none.
        target: as the paper's text names it, where the table names none.
        other_pair: where a pair goes that the table does not have: ``beside`` the printed numbers,
            or on ``lines`` or in ``columns`` of its own.
        tuned_from: fine-tuned draft -> the draft it was made from.
        notes: what a reader must know.
        searched: decoder -> a note that says of how many of its ``{trees}`` the fastest is shown.
    """

    kind: ClassVar[Kind] = "table"
    heads: Mapping[str, str]
    columns: tuple[Column, ...]
    across: Literal["", "target", "task"] = ""
    block: tuple[str, ...] = ()
    lines: tuple[Lines, ...] = ()
    extra: tuple[Lines, ...] = ()
    pick: Literal["spec", "preferred", "common"] = "spec"
    temperature: float | None = None
    target: str = ""
    other_pair: Literal["beside", "lines", "columns"] = "beside"
    tuned_from: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    searched: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
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


def find_table(name: str) -> Table:
    """A table by its name, such as ``rsd/7``."""
    found = find_item("table", name)
    assert isinstance(found, Table)
    return found


@functools.cache
def read_recipe(name: str) -> Mapping[str, Any]:
    """What a recipe such as ``rsd=exp1`` says, as its file has it; not to be written to.

    Raises:
        ValueError: the recipe's file is not there.
    """
    paper, _, stem = name.partition("=")
    path = _folders().get(paper, package_folder("experiments") / paper) / f"{stem}.yaml"
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
    tops = [package_folder("experiments"), *(folder / "experiments" for folder in config_folders())]
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
        _table(name, number, entry)
        for entry in _entries(data, "tables")
        for number in _numbers(entry["numbers"])
    ]
    recipe_of = {table.number: table.recipes[0] for table in tables if table.recipes}
    figures = [_figure(name, entry, recipe_of) for entry in _entries(data, "figures")]
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


def _table(paper: str, number: int, entry: Mapping[str, Any]) -> Table:
    own = {key: value for key, value in entry.items() if key != "numbers"}
    recipes = _recipes(own)
    return checked(Table, {"paper": paper, "number": number, "recipes": recipes, **own})


def _figure(paper: str, entry: dict[str, Any], recipe_of: Mapping[int, str]) -> Figure:
    """A figure; one that shows tables' numbers is measured by the tables' recipe."""
    shown = [recipe_of[number] for number in entry.get("tables", ())[:1]]
    settings = {**({"recipe": shown[0]} if shown else {}), **entry}
    return Figure(
        paper=paper,
        recipes=_recipes(settings),
        title=str(settings.pop("title")),
        number=int(settings.pop("number")),
        settings=settings,
    )


def _recipes(entry: dict[str, Any]) -> tuple[str, ...]:
    """Takes the recipes out of an entry, the usual one first."""
    own = entry.pop("recipe", None)
    return ((str(own),) if own else ()) + tuple(map(str, entry.pop("other_recipes", ())))


def checked(kind: type[_Checked], data: Mapping[str, Any]) -> _Checked:
    """Data as a dataclass of that kind.

    Raises:
        ValueError: a key is unknown or missing, or a value cannot be right; in one line.
    """
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        name = f"{kind.__name__.lower()} {data.get('number', '')}".strip()
        raise ValueError(f"{name}: {key}: {first['msg']}, got {first['input']!r}") from None


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
