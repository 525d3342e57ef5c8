"""Schema of ``tables:`` and ``figures:`` in a paper's ``paper.yaml``, and the recipes in the same
folder that they name. Independent of printed numbers and of rows.
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
from spec_bench.vocabulary.names import compose_decoder_name
from spec_bench.vocabulary.published import COLUMNS, KEYS, Row

PAPER = "paper.yaml"

Kind = Literal["table", "figure"]
Pick = Literal["spec", "preferred", "fastest", "same depth", "common"]
"""How a place's measured tree is chosen, see ``tables.printed.RequestedCell``."""
IN_TITLES = ("target", "targets", "draft", "task", "temperature")
"""Names that a table's title may contain in braces."""


def find_paper_folders() -> dict[str, Path]:
    """Finds the folder of each paper, ours (``experiments/PAPER``) or of an entry point
    ``spec_bench.configs``. If two have the same name, the first counts, with a warning.
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
    """Reads a recipe, composed over its defaults; it is cached, so it must not be changed. Raises
    UsageError if there is no such file.
    """
    paper, _, stem = recipe.partition("=")
    path = find_paper_folders().get(paper, get_experiments_dir() / paper) / f"{stem}.yaml"
    if not path.is_file():
        raise UsageError(f"recipe {recipe} has no file {path}")
    return read_composed_config(path)


def read_recipe_folder(recipe: str) -> str:
    """Returns the results folder that a recipe names, ``rsd=exp1`` -> ``rsd-exp1``."""
    return str(read_recipe(recipe)["name"])


def refuse_unknown_experiments(experiments: Iterable[str], measured: Iterable[str]) -> None:
    """Raises UsageError for an experiment that has no rows and that no paper's recipe writes."""
    measured_names = {*measured}
    for name in (name for name in experiments if name not in measured_names):
        paths = [path for folder in find_paper_folders().values() for path in folder.glob("*.yaml")]
        recipes = [f"{path.parent.name}={path.stem}" for path in paths if path.name != PAPER]
        if name not in (recipe_names := sorted(map(read_recipe_folder, recipes))):
            hint = format_suggestion(name, recipe_names)
            raise UsageError(f"no recipe writes results of the name {name!r}{hint}")


def list_recipe_cells(recipe: str) -> tuple[str, ...]:
    """Lists a recipe's cells as ``decoder:tree``, without other settings; none if it is a grid."""
    cells = []
    for entry in read_recipe(recipe).get("cells") or ():
        if isinstance(entry, str):
            cells.append(entry)
        elif "decoder" in entry:
            spec = str(entry.get("spec", ""))  # left out below if it depends on the pair
            decoder = compose_decoder_name(
                entry["decoder"], entry.get("drafter"), entry.get("verifier")
            )
            cells.append(f"{decoder}:{'' if '${' in spec else spec}")
    return tuple(cells)


@settings
class Item:
    """A table or figure of a paper."""

    kind: ClassVar[Kind]
    paper: str  # the paper's name
    number: int  # in the paper
    title: str  # a caption; a table's may contain names of ``IN_TITLES`` in braces
    recipe: str  # the recipe that measures it, e.g. ``rsd=exp1``; "" if a command does
    other_recipes: tuple[str, ...]  # further recipes that measure it

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that measure it, the usual one first."""
        return (*filter(None, [self.recipe]), *self.other_recipes)

    @property
    def name(self) -> str:
        """Its name on the command line, e.g. ``rsd/7``."""
        return f"{self.paper}/{self.number}"

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the results folders that its recipes write."""
        return tuple(read_recipe_folder(recipe) for recipe in self.recipes)


@settings
class PaperColumn:
    """A column of a table: the printed numbers of one metric, and their measured counterparts."""

    # name of its numbers in the reference, of several names the first that the task has; "" for a
    # column that the paper does not have
    metric: str | tuple[str, ...] = ""
    name: str = ""  # for files, unique in its table; by default the metric
    title: str = ""  # for people; by default the title of the results' column
    group: str = ""  # a heading over several columns
    digits: int = 3  # decimals of measured values
    best: bool = True  # whether its best values are marked
    # ``setting``: a measured cell's tree in our shorthand; ``tree``: as MCSD writes it; ``size``:
    # how many parameters drafted
    shows: Literal["number", "setting", "tree", "size"] = "number"
    measured: str = ""  # the results' column, if its name is not the metric's
    # protocol -> the results' column, if it differs by protocol
    by_protocol: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0  # factor of measured values, 100 if the paper prints percentages
    spec: str = ""  # the tree that has the number; "" for the line's tree
    minus: str = ""  # the tree that has the number to subtract
    # decoder and temperature of the cell that has the number to divide by
    over: Mapping[str, str | float] = field(default_factory=dict)
    empty: str = ""  # the text for a measured cell with neither a number nor a reason
    # how a number larger than that of the untuned draft is marked
    tuned: Literal["", "bold", "underlined"] = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Its metrics; the first that a task has is shown."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric


@settings
class TableLines:
    """The labels and cells of one decoder's lines, or of a line that the paper lacks."""

    decoder: str = ""  # the decoder that has these lines; "" for any
    method: str = ""  # the paper's name of the line, if two lines share a decoder
    # source of a label, as in the table's ``heads`` -> the label
    labels: Mapping[str, str] = field(default_factory=dict)
    pick: Literal[""] | Pick = ""  # how a measured tree is chosen; "" as for the table
    among: tuple[str, ...] = ()  # the decoders that ``pick`` takes into account
    spec: str = ""  # the tree, if neither the paper nor the recipe has one
    temperature: float | None = None  # if the paper prints none
    tree_attention: str = ""  # ``true`` or ``false``
    after: str = ""  # the decoder after which an extra line comes; "" for the end


@settings
class NotesByProtocol:
    """Notes for readers on each protocol's rows: which settings are the authors', which ours."""

    clean: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()


@settings
class UnprintedTable:
    """A table that no paper has printed: its lines, and the cells measured for them."""

    target: str  # as papers print it
    task: str  # name of a task
    temperatures: tuple[float, ...]  # of the sampling, greedy first
    cells: Mapping[str, tuple[str, ...]]  # block -> its lines, as ``decoder:tree``
    draft: str = ""  # as papers print it; "" if heads draft

    def list_places(self, table: int) -> list[Row]:
        """Returns the table's places as rows of a reference, without numbers."""
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
    """A table: the layout of its printed numbers, and the cells measured to compare with them."""

    kind: ClassVar[Kind] = "table"
    # title -> source of each line's labels: a column of the reference, or a key of the labels in
    # ``lines``
    heads: Mapping[str, str]
    columns: tuple[PaperColumn, ...]  # the numbers of a line
    # a column of the reference; its values are side by side in the table, each with all columns
    across: Literal["", "target", "task", "temperature"] = ""
    # sources of labels; lines that agree in these labels compete for the best value
    block: tuple[str, ...] = ()
    lines: tuple[TableLines, ...] = ()  # special settings of some decoders' lines
    # lines that the paper does not have; shown if they were measured
    extra: tuple[TableLines, ...] = ()
    pick: Pick = "spec"  # how a measured cell is chosen, see ``tables.printed.RequestedCell``
    temperature: float | None = None  # of the measured cells, if the paper prints none
    target: str = ""  # as the paper's text names it, if the table does not
    # where a pair is shown that the paper's table does not have
    other_pair: Literal["beside", "lines", "columns"] = "beside"
    # fine-tuned draft -> the draft it was made from
    tuned_from: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # for readers
    # decoder -> a note, with the number of its ``{trees}``, that the fastest of them is shown
    searched: Mapping[str, str] = field(default_factory=dict)
    # the lines, if no paper has printed the table; its blocks are labels of the source
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
    """A figure: its cells, which a function of the paper's ``figures.py`` draws."""

    kind: ClassVar[Kind] = "figure"
    tables: tuple[int, ...] = ()  # tables with its numbers, from which all else follows
    pairs: tuple[tuple[str, str], ...] = ()  # (target, draft) as printed; heads have no draft
    tasks: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()  # if the figure has several
    # settings that all its cells share, if these are not the defaults
    sampling: Mapping[Literal["temperature", "top_k", "top_p"], float] = field(default_factory=dict)
    cells: tuple[str, ...] = ()  # as ``decoder:tree``; empty for the recipe's cells
    any_pair: bool = False  # drawn for pairs that the paper does not have, with all their tasks
    rows: str = ""  # a file with its rows, if no results file has them
    command: str = ""  # the command that makes that file
    how: str = "exact, no model"  # why that command is no recipe
    before: tuple[str, ...] = ()  # commands to run before the recipe's command
    words: tuple[str, ...] = ()  # arguments of the recipe's command besides a pair and tasks
    together: bool = False  # whether one file shows all pairs
