"""Which lines a paper's table has: those that it prints, another pair's, and those that it lacks.

A line is known by the columns of the reference that its labels come from. Knows nothing about what
stands in a line's places (``layout``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spec_bench.report.papers.paper import Lines, Table
from spec_bench.vocabulary.published import Row

_OF_PAIR = ("target", "draft", "task")
_OWN = Lines()


@dataclass(frozen=True)
class TableLine:
    """A line before it has cells.

    Attributes:
        row: a printed number of it, whose keys are the line's.
        own: what is special about it.
        extra: the paper has no such line.
    """

    row: Row
    own: Lines
    extra: bool = False


def table_lines(
    table: Table, numbers: Sequence[Row], keys: Sequence[str], moved: str | None
) -> list[TableLine]:
    """The printed lines in their order, another pair's, which has them again below, and those that
    the paper has not; lines are known by the columns of ``keys``.
    """
    found = [TableLine(row, _own(table, row)) for row in _first_of_each(numbers, keys)]
    if moved is not None:
        others = [{**row, "target": moved, "draft": ""} for row in numbers]
        found += [TableLine(row, _own(table, row)) for row in _first_of_each(others, keys)]
    if not table.extra:
        return found
    groups: dict[tuple[str, ...], list[TableLine]] = {}
    for line in found:
        key = values_of(line.row, [key for key in keys if key in _OF_PAIR])
        groups.setdefault(key, []).append(line)
    return [line for group in groups.values() for line in _with_extra(table, group)]


def values_of(row: Row, keys: Iterable[str]) -> tuple[str, ...]:
    """What a row has in these columns."""
    return tuple(row[key] for key in keys)


def _with_extra(table: Table, group: Sequence[TableLine]) -> list[TableLine]:
    """A pair's lines with those that the paper does not have, each at its place."""
    found = list(group)
    for own in table.extra:
        row = {**group[0].row, "decoder": own.decoder, "method": own.method, "spec": own.spec}
        usual = _own(table, row)
        own = replace(own, labels={**usual.labels, **own.labels}, spec=own.spec or usual.spec)
        if own.temperature is None:
            own = replace(own, temperature=usual.temperature)
        row["temperature"] = "" if own.temperature is None else f"{own.temperature:g}"
        row["tree_attention"] = own.tree_attention or row["tree_attention"]
        places = [i for i, line in enumerate(found) if line.row["decoder"] == own.after]
        found.insert(places[-1] + 1 if places else len(found), TableLine(row, own, extra=True))
    return found


def _own(table: Table, row: Row) -> Lines:
    """What the table says of a line."""
    for own in table.lines:
        if own.decoder in ("", row["decoder"]) and own.method == row["method"]:
            return own
    return _OWN


def _first_of_each(rows: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """The first row of each line, in order."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        found.setdefault(values_of(row, keys), row)
    return list(found.values())
