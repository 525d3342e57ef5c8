"""The schema of ``tables:`` and ``figures:`` in a paper's ``paper.yaml``, and the recipes beside it
that they name. Knows nothing about printed numbers or rows.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, Literal

from spec_bench.settings.configs import (
    get_experiments_dir,
    list_experiments_dirs,
    read_composed_config,
)
from spec_bench.settings.fields import format_suggestion, warn_once
from spec_bench.settings.validation import settings
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.names import combine_names
from spec_bench.vocabulary.published import COLUMNS, KEYS, Row

PAPER = "paper.yaml"

Kind = Literal["table", "figure"]
Pick = Literal["spec", "preferred", "fastest", "same depth", "common"]
"""The choice of a measured tree for a place, see ``tables.printed.RequestedCell``."""
IN_TITLES = ("target", "targets", "draft", "task", "temperature")
"""The names that a table's title may have in braces."""


def find_paper_folders() -> dict[str, Path]:
    """Paper -> ``experiments/PAPER``, ours or of the entry points ``spec_bench.configs``; of two
    that have one name the first, with a warning.
    """
    folders: dict[str, Path] = {}
    for path in (
        path for top in list_experiments_dirs() for path in sorted(top.glob(f"*/{PAPER}"))
    ):
        folder = path.parent
        if folders.setdefault(folder.name, folder) != folder:
            warn_once(f"two papers are called {folder.name}; not read: {folder}")
    return folders


@functools.cache
def read_recipe(recipe: str) -> Mapping[str, Any]:
    """A recipe over the one that it begins with, not to write to. Raises ValueError: no file."""
    paper, _, stem = recipe.partition("=")
    path = find_paper_folders().get(paper, get_experiments_dir() / paper) / f"{stem}.yaml"
    if not path.is_file():
        raise UsageError(f"recipe {recipe} has no file {path}")
    return read_composed_config(path)


def read_recipe_folder(recipe: str) -> str:
    """Returns the results folder that a recipe names, ``rsd=exp1`` -> ``rsd-exp1``."""
    return str(read_recipe(recipe)["name"])


def refuse_unknown_experiments(experiments: Iterable[str], measured: Iterable[str]) -> None:
    """Refuses the name of a results folder that no paper's recipe writes, and that has no rows."""
    measured_names = {*measured}
    for name in (name for name in experiments if name not in measured_names):
        paths = [path for folder in find_paper_folders().values() for path in folder.glob("*.yaml")]
        recipes = [f"{path.parent.name}={path.stem}" for path in paths if path.name != PAPER]
        if name not in (recipe_names := sorted(map(read_recipe_folder, recipes))):
            hint = format_suggestion(name, recipe_names)
            raise UsageError(f"no recipe writes results of the name {name!r}{hint}")


def list_recipe_cells(recipe: str) -> tuple[str, ...]:
    """The cells that a recipe lists, as ``decoder:tree`` without other settings; none of a grid."""
    cells = []
    for entry in read_recipe(recipe).get("cells") or ():
        if isinstance(entry, str):
            cells.append(entry)
        elif "decoder" in entry:
            spec = str(entry.get("spec", ""))  # one that each pair has another of is left open
            decoder = combine_names(entry["decoder"], entry.get("drafter"), entry.get("verifier"))
            cells.append(f"{decoder}:{'' if '${' in spec else spec}")
    return tuple(cells)


@settings
class Item:
    """A table or figure of a paper."""

    kind: ClassVar[Kind]
    paper: str  # the paper's name
    number: int  # as the paper counts
    title: str  # a caption; a table's may have names of ``IN_TITLES`` in braces
    recipe: str  # that measures it, e.g. ``rsd=exp1``; "": a command does
    other_recipes: tuple[str, ...]  # that measure it, too

    @property
    def recipes(self) -> tuple[str, ...]:
        """Those that measure it, the usual one first."""
        return (*filter(None, [self.recipe]), *self.other_recipes)

    @property
    def name(self) -> str:
        """The name on the command line, e.g. ``rsd/7``."""
        return f"{self.paper}/{self.number}"

    @property
    def experiments(self) -> tuple[str, ...]:
        """The results folders' names that the recipes write to."""
        return tuple(read_recipe_folder(recipe) for recipe in self.recipes)


@settings
class PaperColumn:
    """A column of a table: the printed numbers of one metric, and their measured counterparts."""

    # under which the reference has its numbers; of several the one printed for a task; "" for a
    # column that the paper does not have
    metric: str | tuple[str, ...] = ""
    name: str = ""  # for files, unique in its table; by default the metric
    title: str = ""  # for people; by default that of the results' column
    group: str = ""  # a heading over several columns
    digits: int = 3  # after the point, of measured values
    best: bool = True  # whether its best values stand out
    # ``setting``: a measured cell's tree in our shorthand; ``tree``: as MCSD writes it; ``size``:
    # how many parameters drafted
    shows: Literal["number", "setting", "tree", "size"] = "number"
    measured: str = ""  # the results' column, where it is not called as the metric
    # the same by protocol, where one has another number there
    by_protocol: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0  # factor of a measured value: 100 beside a percentage
    spec: str = ""  # the tree whose number this is; "" for that of the line
    minus: str = ""  # the tree whose number is subtracted from it
    # decoder and temperature of the cell whose number it is divided by
    over: Mapping[str, str | float] = field(default_factory=dict)
    empty: str = ""  # the text for a measured cell without such a number or a reason
    # how a number larger than that of the untuned draft is marked
    tuned: Literal["", "bold", "underlined"] = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Its metrics, of which the first that a task has counts."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric


@settings
class TableLines:
    """The labels and cells of one decoder's lines, or of a line that the paper lacks."""

    decoder: str = ""  # whose; "" for any
    method: str = ""  # the paper's name of the line, where two lines share a decoder
    # by the source of the label, as in the table's ``heads``
    labels: Mapping[str, str] = field(default_factory=dict)
    pick: Literal[""] | Pick = ""  # the choice of a measured tree; "" for the table's
    among: tuple[str, ...] = ()  # the decoders that a pick looks at
    spec: str = ""  # its tree, where the paper prints none and the recipe names none
    temperature: float | None = None  # where the paper prints none
    tree_attention: str = ""  # ``true`` or ``false``
    after: str = ""  # of an extra line: the decoder whose lines it follows; "" puts it last


@settings
class NotesByProtocol:
    """What readers must know of rows of each protocol: what is the authors' in it, what is ours."""

    clean: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()


@settings
class UnprintedTable:
    """A table that nobody has printed: its lines, and the cells measured there."""

    target: str  # as papers print it
    task: str  # name of a task
    temperatures: tuple[float, ...]  # of the sampling, greedy first
    cells: Mapping[str, tuple[str, ...]]  # block -> its lines, as ``decoder:tree``
    draft: str = ""  # as papers print it; "" where heads draft

    def list_places(self, table: int) -> list[Row]:
        """Returns the places as lines of a reference that have no number."""
        key = {
            "table": str(table),
            "target": self.target,
            "draft": self.draft,
            "task": self.task,
        }
        return [
            {**dict.fromkeys(COLUMNS, ""), **key, "axis_value": block, "decoder": decoder,
             "spec": spec, "temperature": f"{temperature:g}"}
            for block, cells in self.cells.items()
            for decoder, _, spec in (cell.partition(":") for cell in cells)
            for temperature in self.temperatures
        ]  # fmt: skip


@settings
class Table(Item):
    """A table: how its printed numbers are laid out, and which cells are measured beside them."""

    kind: ClassVar[Kind] = "table"
    # title -> source of each line's labels: a column of the reference, or a key of the labels in
    # ``lines``
    heads: Mapping[str, str]
    columns: tuple[PaperColumn, ...]  # the numbers of a line
    # a column of the reference whose values stand side by side, each with all columns
    across: Literal["", "target", "task", "temperature"] = ""
    # sources; lines with the same labels there compete for the best value
    block: tuple[str, ...] = ()
    lines: tuple[TableLines, ...] = ()  # special settings of some decoders' lines
    # lines that the paper does not have; shown where they were measured
    extra: tuple[TableLines, ...] = ()
    pick: Pick = (
        "spec"  # the choice of a measured cell for a place, see ``tables.printed.RequestedCell``
    )
    temperature: float | None = None  # of the measured cells, where the paper prints none
    target: str = ""  # as the paper's text names it, where the table names none
    # place of a pair that the table does not have
    other_pair: Literal["beside", "lines", "columns"] = "beside"
    # fine-tuned draft -> the draft it was made from
    tuned_from: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # for readers
    # decoder -> a note on the number of its ``{trees}``, of which the fastest is shown
    searched: Mapping[str, str] = field(default_factory=dict)
    # the lines of a table that nobody has printed; its blocks are labels of the source
    # ``axis_value``
    unprinted: UnprintedTable | None = None

    def __post_init__(self) -> None:
        sources = {source for lines in self.lines for source in lines.labels}
        for source in (*self.heads.values(), *self.block):
            if source not in {*KEYS, *sources}:
                choices = ", ".join((*KEYS, *sorted(sources - {*KEYS})))
                raise UsageError(f"no labels come from {source!r}; they come from {choices}")
        for _, name, _, _ in Formatter().parse(self.title):
            if name is not None and name not in IN_TITLES:
                raise UsageError(f"no {{{name}}} in titles; there are {', '.join(IN_TITLES)}")


@settings
class Figure(Item):
    """A figure: its cells. A function of the paper's ``figures.py`` draws them."""

    kind: ClassVar[Kind] = "figure"
    tables: tuple[int, ...] = ()  # whose numbers it shows; then the rest follows from them
    pairs: tuple[tuple[str, str], ...] = ()  # (target, draft) as printed; heads have no draft
    tasks: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()  # of a figure with several
    # As far as they are one and not the defaults.
    sampling: Mapping[Literal["temperature", "top_k", "top_p"], float] = field(default_factory=dict)
    cells: tuple[str, ...] = ()  # as ``decoder:tree``; none: those of the recipe
    any_pair: bool = False  # drawn for pairs that the paper does not have, with all their tasks
    rows: str = ""  # a file with its rows, where no results file has them
    command: str = ""  # the one that makes that file
    how: str = "exact, no model"  # why that command is no recipe
    before: tuple[str, ...] = ()  # commands that come before the recipe's
    words: tuple[str, ...] = ()  # arguments of its recipe's command beside a pair and tasks
    together: bool = False  # whether one file shows all pairs
