"""Every number of ``results.csv``, once: its name, title, definition, unit and digits.

They stand as lines of ``columns.csv`` beside this file. No other file lists columns: what needs
some of them asks by kind, or for one by name. The order is that of the results file. A column with
an interval is followed by ``NAME_low`` and ``NAME_high``, the ends of its 95% interval over
prompts. Knows nothing about how a number is computed.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from spec_bench.records.parquet import FIELDS
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError

# What each is, ``results.md.j2`` says.
Kind = Literal[
    "identity", "setting", "state", "count", "efficiency", "time", "energy", "likelihood", "score",
    "memory", "note",
]  # fmt: skip
Holds = Literal["number", "text", "flag"]
Apart = Literal["", "run", "task", "pair"]
ENDS = ("_low", "_high")
CLEAN = "clean"  # the protocol of a row that names none


@dataclass(frozen=True)
class Column:
    """One number of a cell."""

    name: str  # in the file; a contract with tables, figures and users' scripts
    title: str  # for tables and pages
    definition: str  # one line
    kind: Kind  # what it says about a cell
    unit: str = ""  # of the number; "" where it is a plain number or text
    digits: int = 2  # after the point, where it is printed
    interval: bool = False  # whether its 95% interval is known too
    range: str = ""  # What it can be, `0..1` or `1..`; "": anything. No interval reaches beyond.
    better: Literal["up", "down"] | None = None  # which way is better; None where neither is
    short: str = ""  # in narrow tables, such as the terminal's; "": not shown there
    holds: Holds = "number"  # what its cells are
    # Whether it tells runs apart, so that cells that differ in it are never compared, nor stand in
    # one table. `run`: all cells of a table agree in it; `task`: it belongs to the task, and tables
    # of several tasks may have several; `pair`: likewise to the pair of models. "": it does not, as
    # the decoder and the seed do not.
    apart: Apart = ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name and, where there is an interval, those of its ends."""
        return (self.name, *(f"{self.name}{end}" for end in ENDS if self.interval))

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The smallest and the largest number that it can be; None where there is none."""
        least, _, most = self.range.partition("..")
        return float(least) if least else None, float(most) if most else None


def _read() -> list[Column]:
    """Returns the lines of ``columns.csv``; an empty cell there is the field's default."""
    with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as stream:
        lines = [{k: v for k, v in line.items() if v} for line in csv.DictReader(stream)]
    typed: dict[str, Any] = {"digits": int, "interval": lambda text: text == "yes"}
    return [
        Column(**{name: typed.get(name, str)(text) for name, text in line.items()})
        for line in lines
    ]


COLUMNS: list[Column] = _read()
OURS = frozenset(COLUMNS)  # without those that others register


@cache
def _load_others() -> None:
    """Imports the modules in which other packages have metrics, which register their columns."""
    list(Registry("metric", "spec_bench.metrics"))


def register(column: Column) -> Column:
    """Adds a column of another package, after all others. Raises ValueError: another column has one
    of its names.
    """
    taken = {name: registered for registered in COLUMNS for name in registered.names}
    for name in column.names:
        if taken.get(name, column) != column:
            raise UsageError(f"column {column.name!r}: {name!r} is a name of another column")
    if column.name not in taken:
        COLUMNS.append(column)
    return column


def column(name: str) -> Column:
    """Returns the column of that name, ours or another package's."""
    if find_column(name) is None:
        _load_others()
    if (found := find_column(name)) is None:
        known = ", ".join(each.name for each in COLUMNS)
        raise UsageError(f"no column {name!r}; columns: {known}")
    return found


def find_column(name: str) -> Column | None:
    """Returns the column of that name; None of one that is not registered, as a module's score."""
    return next((each for each in COLUMNS if each.name == name), None)


def columns_of_kind(*kinds: Kind) -> list[Column]:
    """Returns the columns of these kinds, in the file's order."""
    return [each for each in COLUMNS if each.kind in kinds]


def column_names(*kinds: Kind) -> list[str]:
    """Their names."""
    return [each.name for each in columns_of_kind(*kinds)]


def run_columns(names: Iterable[str]) -> list[Column]:
    """Returns the columns among a file's names that tell runs apart, in the file's order."""
    there = set(names)
    return [each for each in COLUMNS if each.apart and each.name in there]


def header() -> dict[str, str]:
    """Every name that a file may have, ends of intervals too, with its one-line definition."""
    definitions: dict[str, str] = {}
    for each in COLUMNS:
        ends = [
            f"{which} end of the 95% interval of {each.name} (over prompts)"
            for which in ("lower", "upper")
        ]
        definitions.update(zip(each.names, [each.definition, *ends], strict=False))
    return definitions


def order_names(names: Iterable[str]) -> list[str]:
    """Names as a file orders them, each once; those of no column come last, as they came."""
    there = dict.fromkeys(names)
    known = [name for each in COLUMNS for name in each.names if name in there]
    return list(dict.fromkeys([*known, *there]))


def find_columns(names: Iterable[str]) -> list[Column]:
    """Returns the columns of a file with these names, in its order.

    Scores of metric modules have no line here; they are known by their intervals, are named after
    the module, and come last.
    """
    there = dict.fromkeys(names)
    mine = header()
    if not mine.keys() >= there.keys():
        _load_others()
        mine = header()
    known = [each for each in COLUMNS if each.name in there]
    modules = [name for name in there if name not in mine and f"{name}_low" in there]
    more: dict[str, Any] = {"kind": "score", "digits": 3, "interval": True, "better": "up"}
    return known + [
        Column(name, name.replace("_", " "), "score of a metric module", **more) for name in modules
    ]


def score_names(names: Iterable[str]) -> list[str]:
    """The names of the quality scores among a file's names: ours, then those of metric modules."""
    return [each.name for each in find_columns(names) if each.kind == "score"]


def markdown() -> str:
    """What ``results/README.md`` says: our columns by kind, each with unit and definition."""
    import jinja2

    text = Path(__file__).with_name("results.md.j2").read_text(encoding="utf-8")
    template = jinja2.Template(
        text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return template.render(columns=_read(), fields=FIELDS)


if __name__ == "__main__":
    print(markdown(), end="")
