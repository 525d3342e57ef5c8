"""The columns of ``results.csv``: name, title, definition, unit and digits.

``columns.csv`` next to this file has one line per column, in the order of the results file. No
other file lists columns: select them by kind or by name. A column with an interval is followed by
``NAME_low`` and ``NAME_high``, the ends of its 95% interval over prompts. This module does not know
how a number is computed.
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

# ``results.md.j2`` explains each kind.
Kind = Literal[
    "identity", "setting", "state", "count", "efficiency", "time", "energy", "likelihood", "score",
    "memory", "note",
]  # fmt: skip
Holds = Literal["number", "text", "flag"]
Apart = Literal["", "run", "task", "pair"]
ENDS = ("_low", "_high")
CLEAN = "clean"  # the default protocol


@dataclass(frozen=True)
class Column:
    """A column of the results file."""

    name: str  # in the file; a contract with tables, figures and users' scripts
    title: str  # for tables and pages
    definition: str  # one line
    kind: Kind
    unit: str = ""  # "" for plain numbers and texts
    digits: int = 2  # printed after the point
    interval: bool = False  # whether it has a 95% interval
    range: str = ""  # possible values, `0..1` or `1..`; "": any. Intervals are clipped to it.
    better: Literal["up", "down"] | None = None  # which direction is better, if any
    short: str = ""  # title in narrow tables, such as the terminal's; "": not shown there
    holds: Holds = "number"
    # Whether cells with different values of it must not be compared. `run`: all cells of a table
    # have the same value; `task`: the value belongs to the task, so a table of several tasks may
    # have several; `pair`: it belongs to the pair of models; "": cells that differ in it may be
    # compared, as with the decoder and the seed.
    apart: Apart = ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Returns the column's name, followed by those of its interval's ends if it has one."""
        return (self.name, *(f"{self.name}{end}" for end in ENDS if self.interval))

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """Returns the smallest and the largest possible value; None for an end without a bound."""
        lower, _, upper = self.range.partition("..")
        return float(lower) if lower else None, float(upper) if upper else None


def _read_columns() -> list[Column]:
    """Reads ``columns.csv``; an empty cell means the field's default."""
    with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as stream:
        lines = [{k: v for k, v in line.items() if v} for line in csv.DictReader(stream)]
    parser_by_field: dict[str, Any] = {"digits": int, "interval": lambda text: text == "yes"}
    return [
        Column(**{name: parser_by_field.get(name, str)(text) for name, text in line.items()})
        for line in lines
    ]


COLUMNS: list[Column] = _read_columns()
OURS = frozenset(COLUMNS)  # before other packages register theirs


@cache
def _import_other_metrics() -> None:
    """Imports other packages' metrics, which register their columns."""
    list(Registry("metric", "spec_bench.metrics"))


def register_column(column: Column) -> Column:
    """Appends another package's column. Raises UsageError if one of its names is taken."""
    column_by_name = {name: other_column for other_column in COLUMNS for name in other_column.names}
    for name in column.names:
        if column_by_name.get(name, column) != column:
            raise UsageError(f"column {column.name!r}: {name!r} is a name of another column")
    if column.name not in column_by_name:
        COLUMNS.append(column)
    return column


def get_column(name: str) -> Column:
    """Returns the column of a name, ours or another package's. Raises UsageError if none has it."""
    if find_column(name) is None:
        _import_other_metrics()
    if (found_column := find_column(name)) is None:
        names = ", ".join(column.name for column in COLUMNS)
        raise UsageError(f"no column {name!r}; columns: {names}")
    return found_column


def find_column(name: str) -> Column | None:
    """Returns the registered column of a name; None if it is not registered, like a metric
    module's.
    """
    return next((column for column in COLUMNS if column.name == name), None)


def list_columns_of_kind(*kinds: Kind) -> list[Column]:
    """Returns the columns of these kinds, in the file's order."""
    return [column for column in COLUMNS if column.kind in kinds]


def list_value_column_names(*kinds: Kind) -> list[str]:
    """Returns the names of the columns of these kinds without interval ends, in the file's
    order.
    """
    return [column.name for column in list_columns_of_kind(*kinds)]


def select_must_match_columns(names: Iterable[str]) -> list[Column]:
    """Selects the columns among ``names`` in which compared runs must match, in the file's
    order.
    """
    present_names = set(names)
    return [column for column in COLUMNS if column.apart and column.name in present_names]


def define_all_column_names() -> dict[str, str]:
    """Maps every possible column name, interval ends included, to its definition."""
    definitions: dict[str, str] = {}
    for column in COLUMNS:
        end_definitions = [
            f"{side} end of the 95% interval of {column.name} (over prompts)"
            for side in ("lower", "upper")
        ]
        definitions.update(zip(column.names, [column.definition, *end_definitions], strict=False))
    return definitions


def order_column_names(names: Iterable[str]) -> list[str]:
    """Returns the distinct names in the order of a results file; unknown names come last."""
    distinct_names = dict.fromkeys(names)
    registered_names = [
        name for column in COLUMNS for name in column.names if name in distinct_names
    ]
    return list(dict.fromkeys([*registered_names, *distinct_names]))


def get_columns(names: Iterable[str]) -> list[Column]:
    """Returns the columns of a file with these names, in the file's order.

    Scores of metric modules are not registered: each becomes a column with an interval, titled
    after its name, and comes last.
    """
    distinct_names = dict.fromkeys(names)
    own_names = define_all_column_names()
    if not own_names.keys() >= distinct_names.keys():
        _import_other_metrics()
        own_names = define_all_column_names()
    known_columns = [column for column in COLUMNS if column.name in distinct_names]
    for name in distinct_names:
        if name not in own_names and f"{name}_low" in distinct_names:
            title = name.replace("_", " ")
            known_columns.append(
                Column(
                    name, title, "score of a metric module", "score",
                    digits=3, interval=True, better="up",
                )
            )  # fmt: skip
    return known_columns


def select_score_names(names: Iterable[str]) -> list[str]:
    """Selects the names of quality scores: ours first, then those of metric modules."""
    return [column.name for column in get_columns(names) if column.kind == "score"]


def render_columns_markdown() -> str:
    """Renders ``results/README.md``: our columns by kind, with units and definitions."""
    import jinja2

    text = Path(__file__).with_name("results.md.j2").read_text(encoding="utf-8")
    template = jinja2.Template(
        text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return template.render(columns=_read_columns(), fields=FIELDS)


if __name__ == "__main__":
    print(render_columns_markdown(), end="")
