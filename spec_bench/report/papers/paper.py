"""A paper as data: ``experiments/PAPER/paper.yaml`` with its tables and figures, its printed
numbers in ``reference.csv``, and its code, which draws figures (``figures.py``) and checks claims
(``claims.py``).

Each function of ``claims.py`` is a claim, in the file's order, unless its name begins with an
underscore. Its docstring begins with the paper's statement and the statement's place, ``“RSD-S
always outperforms SD.” (Figure 4)``, or with ``reported, in a summary's words: 5% (Section 2)`` if
the paper's words are not at hand. A function with any other docstring is a check of ours.

Independent of measured numbers, and of how a table is written or a figure drawn.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from zlib import crc32

from spec_bench.report.papers.items import (
    PAPER,
    Figure,
    Item,
    NotesByProtocol,
    Table,
    find_paper_folders,
    read_recipe_folder,
)
from spec_bench.settings.configs import read_yaml
from spec_bench.settings.fields import describe_error, format_suggestion, to_one_line, warn_once
from spec_bench.settings.validation import read_settings
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.columns import define_all_column_names
from spec_bench.vocabulary.decoders import DECODERS
from spec_bench.vocabulary.published import FILE, Row, read_published_numbers

_STATED_SOURCE = re.compile(r"(“.+”|reported, in a summary's words: .+) \((.+)\)")
_Kind = TypeVar("_Kind", Table, Figure)
Axes = Mapping[str, Mapping[tuple[str, str], int]]
"""Axis that divides tables into blocks, such as the draft length -> (decoder, tree) -> value."""


@functools.cache
def import_paper_code(folder: Path, name: str) -> ModuleType | None:
    """Imports a file of a paper's folder by its name without the ending; None if there is no such
    file. Raises UsageError if Python cannot import it.

    The file is imported once, as a module of a package that is the folder, so that it may import
    other files of the paper: ``from .heads import best_heads``.
    """
    if not (folder / f"{name}.py").is_file():
        return None
    package = f"spec_bench_paper_{folder.name}_{crc32(str(folder).encode()):08x}"
    if package not in sys.modules:
        package_module = sys.modules[package] = ModuleType(package)
        package_module.__path__ = [str(folder)]
    try:
        return import_module(f"{package}.{name}")
    except Exception as error:
        raise UsageError(f"{folder / name}.py: {describe_error(error)}") from error


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, or a check of ours."""

    function: Callable[[Any], Iterable[Any]]  # yields the checks on a ``ClaimQuery``
    statement: str  # the paper's words as a quotation, or what it reported; "" if the check is ours
    section: str  # the statement's place in the paper; "" if the check is ours


def read_claims(folder: Path) -> tuple[Claim, ...]:
    """Reads the claims of a paper's folder; none if it has no ``claims.py``. Raises UsageError if a
    function's docstring does not say what it checks.
    """
    module = import_paper_code(folder, "claims")
    if module is None:
        return ()
    claims = []
    for name, function in vars(module).items():
        is_local = inspect.isfunction(function) and function.__module__ == module.__name__
        if not is_local or name.startswith("_"):
            continue
        sentence = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        match = _STATED_SOURCE.fullmatch(sentence)
        if not sentence or (match is None and sentence.startswith(("“", "reported,"))):
            raise UsageError(
                f"{folder / 'claims.py'}: {name}: its docstring begins with the statement and its "
                "place, “...” (Section 5), or says what is checked beside the paper"
            )
        claims.append(Claim(function, *(match.groups() if match else ("", ""))))
    return tuple(claims)


@dataclass(frozen=True)
class Paper:
    """A paper's data."""

    name: str  # the folder below ``experiments``
    title: str  # short and full name
    arxiv: str
    machine: str  # on which its speeds were measured
    folder: Path  # the folder of its files
    tables: tuple[Table, ...] = field(repr=False)  # in the paper's order
    figures: tuple[Figure, ...] = field(repr=False)  # likewise
    protocols: NotesByProtocol = field(default_factory=NotesByProtocol, repr=False)

    @functools.cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Its claims, and our own checks on its rows; imported on first use."""
        return read_claims(self.folder)

    def find_drawing_function(self, figure: Figure) -> Callable[[Any], Iterable[Any]] | None:
        """Returns the function of ``figures.py`` for a figure, ``figure_4``; None without one."""
        return getattr(import_paper_code(self.folder, "figures"), f"figure_{figure.number}", None)

    @property
    def items(self) -> tuple[Item, ...]:
        """Its tables, then its figures."""
        return (*self.tables, *self.figures)

    @functools.cached_property
    def numbers(self) -> tuple[Row, ...]:
        """All printed numbers as rows of text, see ``spec_bench.vocabulary.published.COLUMNS``."""
        path = self.folder / FILE
        tables = tuple(str(table.number) for table in self.tables)
        return (
            read_published_numbers(path, tables, (*self.metrics, *define_all_column_names()))
            if path.is_file()
            else ()
        )

    @functools.cached_property
    def _numbers_by_table(self) -> dict[str, list[Row]]:
        return group_by_key((number["table"], number) for number in self.numbers)

    @property
    def metrics(self) -> dict[str, None]:
        """Names of its tables' metrics, without duplicates."""
        columns = [column for table in self.tables for column in table.columns]
        return dict.fromkeys(name for column in columns for name in column.metrics if name)

    @functools.cached_property
    def trees_by_axis(self) -> Axes:
        """Value of each tree on the axes that divide the paper's tables into blocks.

        The values come from the printed numbers, not from the trees, because RSD's budgets are
        nominal.
        """
        axes: dict[str, dict[tuple[str, str], int]] = {}
        for number in self.numbers:
            if number["axis"] and number["decoder"] != "ar":
                places = axes.setdefault(number["axis"], {})
                places[number["decoder"], number["spec"]] = int(number["axis_value"])
        return axes

    def get_numbers_or_places(self, table: int) -> list[Row]:
        """Returns a table's printed numbers; for a table that no paper has printed, its places."""
        for entry in self.tables:
            if entry.number == table and entry.unprinted is not None:
                return entry.unprinted.list_places(table)
        return self._numbers_by_table.get(str(table), [])


def list_paper_names() -> list[str]:
    """Lists the papers that have a data file, ours and those of other packages."""
    return sorted(find_paper_folders())


def load_readable_papers() -> list[Paper]:
    """Loads all papers that can be read; warns of each unreadable paper in one line."""
    papers = []
    for name in list_paper_names():
        try:
            paper = load_paper(name)
            paper.claims  # noqa: B018 - imports their file
            papers.append(paper)
        except UsageError as error:
            warn_once(str(error))
    return papers


def get_table(name: str) -> Table:
    """Returns a table by its name, such as ``rsd/7``. Raises UsageError, with the choices, for an
    unknown name.
    """
    return _get_item(load_paper(name.partition("/")[0]).tables, "table", name)


def get_figure(name: str) -> Figure:
    """Returns a figure by its name, such as ``rsd/4``. Raises UsageError, with the choices, for an
    unknown name.
    """
    return _get_item(load_paper(name.partition("/")[0]).figures, "figure", name)


def _get_item(items: Sequence[_Kind], kind: str, name: str) -> _Kind:
    for item in items:
        if item.name == name:
            return item
    paper, _, number = name.partition("/")
    parts: list[list[int]] = []
    for item_number in sorted(item.number for item in items):
        if parts and item_number == parts[-1][-1] + 1:
            parts[-1].append(item_number)
        else:
            parts.append([item_number])
    choices = ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts) or "none"
    message = f"{paper} has no {kind} {number!r}; its {kind}s: {paper}/ {choices}"
    if (find_paper_folders()[paper] / f"{number}.yaml").is_file():
        message += f"; {number} is a recipe: spec-bench run {paper}={number}"
    raise UsageError(message)


def find_recipes_by_folder() -> dict[str, str]:
    """Maps the results folder of each recipe that a table or figure names to the recipe."""
    items = [item for paper in load_readable_papers() for item in paper.items]
    return {read_recipe_folder(recipe): recipe for item in items for recipe in item.recipes}


@functools.cache
def load_paper(name: str) -> Paper:
    """Loads a paper's data file. Raises UsageError, with the known papers, if the name is unknown,
    and with the path and key if an entry of the file is invalid.
    """
    if name not in find_paper_folders():
        raise UsageError(f"unknown paper {name!r}; known: {', '.join(list_paper_names())}")
    folder = find_paper_folders()[name]
    data = read_yaml(folder / PAPER)
    try:
        paper = _build_paper(name, folder, data)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{folder / PAPER}: {to_one_line(problem)}") from error
    for metric in (
        paper.metrics.keys() - define_all_column_names() - {row["metric"] for row in paper.numbers}
    ):
        hint = format_suggestion(metric, [*define_all_column_names()])
        raise UsageError(f"{folder / PAPER}: {metric!r}, of tables alone, is no metric{hint}")
    return paper


def _build_paper(name: str, folder: Path, data: Any) -> Paper:
    if not isinstance(data, dict):
        raise UsageError("a paper is a mapping with the keys paper, arxiv, machine")
    tables = [
        read_settings(
            Table, {**_complete_entry(name, entry), "number": number}, source=f"table {number}"
        )
        for entry in _pop_entries(data, "tables")
        for number in _parse_table_numbers(entry.pop("numbers"))
    ]
    recipe_of = {table.number: table.recipes[0] for table in tables if table.recipes}
    figures = []
    for entry in _pop_entries(data, "figures"):
        number = entry["number"]
        if "drawing" in entry:
            problem = "drawings are functions in figures.py beside it now: experiments/README.md"
            raise UsageError(f"figure {number}: {problem}")
        # A figure that shows the numbers of tables is measured by the recipe of the first.
        table_recipes = [recipe_of[table] for table in entry.get("tables", ())[:1]]
        figures.append(
            read_settings(
                Figure, _complete_entry(name, entry, *table_recipes), source=f"figure {number}"
            )
        )
    if "claims" in data:
        raise UsageError("claims are functions in claims.py beside it now: experiments/README.md")
    protocols = read_settings(NotesByProtocol, data.pop("protocols", {}), "protocols")
    unknown = sorted(data.keys() - {"paper", "arxiv", "machine", DECODERS})
    if unknown:
        raise UsageError(f"unknown key {unknown[0]!r}")
    title, arxiv, machine = (str(data[key]) for key in ("paper", "arxiv", "machine"))
    sorted_tables = tuple(sorted(tables, key=lambda table: table.number))
    paper = Paper(name, title, arxiv, machine, folder, sorted_tables, tuple(figures), protocols)
    for item in paper.items:
        item.experiments  # noqa: B018 - reads its recipes
    return paper


def _pop_entries(data: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """Removes a section from the data and returns its entries; [] if there is no such section."""
    entries = data.pop(section, None) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{section} must be a list of mappings")
    return [dict(entry) for entry in entries]


def _complete_entry(paper: str, entry: Mapping[str, Any], usual_recipe: str = "") -> dict[str, Any]:
    """Adds the paper's name and the usual recipe to an entry; the entry's own values win."""
    return {
        "paper": paper,
        "recipe": usual_recipe,
        "other_recipes": (),
        **entry,
    }


def _parse_table_numbers(text: str | Sequence[int]) -> list[int]:
    """Parses table numbers, a range such as ``1-27`` or a list."""
    if not isinstance(text, str):
        return [int(number) for number in text]
    start, _, end = text.partition("-")
    return list(range(int(start), int(end) + 1))
