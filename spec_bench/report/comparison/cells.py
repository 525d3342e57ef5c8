"""Matches the cells of two results folders, and lists the settings in which they differ.

Knows rows; nothing about numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Row, groups_of, read_rows, rows_of
from spec_bench.report.data.seeds import SEEDS, pooled
from spec_bench.report.page.gather import origins_of
from spec_bench.system import files
from spec_bench.vocabulary.columns import columns_in

_ALWAYS = ("pair", "task", "decoder", "spec")
_SETTINGS = ("identity", "setting")
_NEVER = ("run_id", "seed", "prompts_digest", "engine", SEEDS)
_UNSTATED = "not stated"
Key = tuple[str, ...]
"""The values that identify a cell, in the order of their columns."""


@dataclass(frozen=True)
class Cell:
    """One cell with its baselines."""

    row: Row  # the cell's
    # plain decoding of the same group, of which one may have been timed in turn with it
    bases: tuple[Row, ...]

    @property
    def failed(self) -> bool:
        """Whether it has no numbers."""
        return str(self.row["status"]) == "failed"


@dataclass(frozen=True)
class Side:
    """A results folder."""

    name: str  # as it was given
    rows: pd.DataFrame  # its cells, those that differ in the seed alone as one
    records: Records  # their counts by prompt
    origins: tuple[dict[str, str], ...]  # machines and versions they were measured with


@dataclass(frozen=True)
class Match:
    """The same cell on both sides."""

    name: str  # distinct among the cells, for people
    before: Cell  # the first side's
    after: Cell  # the second side's


@dataclass(frozen=True)
class Matches:
    """The cells on both sides and on one only."""

    both: tuple[Match, ...]  # in the first side's order
    gone: tuple[str, ...]  # names of cells of the first side alone
    new: tuple[str, ...]  # names of cells of the second side alone


@dataclass(frozen=True)
class Differing:
    """A setting or a fact about the machine that is not the same on both sides."""

    name: str  # of the column, for people
    before: str  # its values on the first side
    after: str  # its values on the second side
    cells: int  # in how many cells


def read_side(path: Path) -> Side:
    """A side from its folder or table.

    Args:
        path: a ``results.csv``, the folder that holds one, or a results folder with several.

    Raises:
        ValueError: there are no rows there.
    """
    if path.is_file():
        tables = [path]
    elif (path / files.RESULTS).is_file():
        tables = [path / files.RESULTS]
    else:
        tables = files.results_files(path)
    rows = read_rows(tables)
    if rows.empty:
        raise ValueError(f"no {files.RESULTS} in {str(path)!r} or in the folders below it")
    records = Records(tables[0])
    origins = [each for table in tables for each, _ in origins_of(table, rows[_of(rows, table)])]
    return Side(str(path), pooled(rows, records), records, tuple(origins))


def _of(rows: pd.DataFrame, table: Path) -> pd.Series:
    return rows.file == str(table)


def matches(before: Side, after: Side) -> Matches:
    """The cells that both sides have.

    Two cells are the same where they agree in pair, task, decoder and tree, and in as many other
    settings as it takes to tell the cells of each side apart. They may differ in other settings,
    which ``differing`` lists.

    Raises:
        ValueError: no cell is on both sides.
    """
    keys = _keys(before.rows, after.rows)
    first, second = _by_key(before.rows, keys), _by_key(after.rows, keys)
    names = _names([*first, *second], keys)
    both = tuple(
        Match(names[key], cell, second[key]) for key, cell in first.items() if key in second
    )
    if not both:
        one, other = names[next(iter(first))], names[next(iter(second))]
        raise ValueError(
            f"no cell of {before.name!r} is in {after.name!r}; the first ones are "
            f"{one!r} and {other!r}"
        )
    return Matches(
        both,
        tuple(names[key] for key in first if key not in second),
        tuple(names[key] for key in second if key not in first),
    )


def _keys(*sides: pd.DataFrame) -> list[str]:
    """As few columns as distinguish the cells."""
    there = [each.name for each in columns_in(sides[0].columns) if each.kind in _SETTINGS]
    names = [name for name in (*there, "experiment") if all(name in rows for rows in sides)]
    keys = list(_ALWAYS)
    for name in names:
        if name not in (*keys, *_NEVER) and any(_helps(rows, keys, name) for rows in sides):
            keys.append(name)
    return keys


def _helps(rows: pd.DataFrame, keys: Sequence[str], name: str) -> bool:
    return bool(
        (rows.groupby(list(keys), dropna=False)[name].nunique(dropna=False) > 1).any()
        and rows.duplicated(list(keys)).any()
    )


def _by_key(rows: pd.DataFrame, keys: Sequence[str]) -> dict[Key, Cell]:
    """The cells by their keys; of several with one key the last."""
    cells = {}
    for group in groups_of(rows):
        members = rows_of(group.rows)
        bases = tuple(r for r in members if r["decoder"] == "ar" and r["status"] != "failed")
        for row in members:
            cells[tuple(_text(row.get(key)) for key in keys)] = Cell(row, bases)
    return cells


def _names(every: Sequence[Key], keys: Sequence[str]) -> dict[Key, str]:
    """A cell's name for people: decoder, tree, task, pair, and the settings that others lack."""
    shared: dict[Key, list[set[str]]] = {}
    for key in every:
        values = shared.setdefault(key[:4], [set() for _ in keys])
        for seen, value in zip(values, key, strict=True):
            seen.add(value)
    names = {}
    for key in every:
        pair, task, decoder, spec, *_ = key
        rest = zip(keys[4:], key[4:], shared[key[:4]][4:], strict=True)
        more = [f"{name} {value}" for name, value, seen in rest if len(seen) > 1]
        names[key] = ", ".join([f"{decoder} {spec}", task, pair, *more])
    return names


def differing(both: Sequence[Match], before: Side, after: Side) -> list[Differing]:
    """Settings, machines and versions that are not the same, the most cells first."""
    counts: dict[tuple[str, str, str], int] = {}
    for match in both:
        one, other = match.before.row, match.after.row
        for column in columns_in({**one, **other}):
            if column.kind in _SETTINGS and column.name not in ("run_id", *_ALWAYS):
                values = _text(one.get(column.name)), _text(other.get(column.name))
                if values[0] != values[1]:
                    key = (column.title, *values)
                    counts[key] = counts.get(key, 0) + 1
    for fact in dict.fromkeys(name for side in (before, after) for o in side.origins for name in o):
        values = _facts(before, fact), _facts(after, fact)
        if values[0] != values[1] and fact != "day":
            counts.setdefault((fact, *values), len(both))
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [Differing(*key, cells) for key, cells in ordered]


def _facts(side: Side, name: str) -> str:
    values = dict.fromkeys(origin[name] for origin in side.origins if origin.get(name))
    return ", ".join(values) or _UNSTATED


def _text(value: object) -> str:
    """A setting as a text that does not depend on how its file was read."""
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return _UNSTATED
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:g}"
