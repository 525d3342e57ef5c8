"""The lines of a paper's table: those that it prints, another pair's, and those that it lacks.

A line is known by the columns of the reference that its labels come from. Knows nothing about the
cells of a line (``layout``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spec_bench.report.papers.paper import Lines, Table
from spec_bench.vocabulary.published import Row

_OF_PAIR = ("target", "draft", "task")
_PLAIN = Lines()


@dataclass(frozen=True)
class TableLine:
    """A line before it has cells.

    Attributes:
        row: a printed number of it, whose keys are the line's.
        entry: the table's ``lines`` entry for it.
        extra: the paper has no such line.
    """

    row: Row
    entry: Lines
    extra: bool = False


def table_lines(
    table: Table, numbers: Sequence[Row], keys: Sequence[str], moved: str | None
) -> list[TableLine]:
    """The printed lines in their order, another pair's, which has them again below, and those that
    the paper has not; lines are known by the columns of ``keys``.
    """
    lines = [TableLine(row, _entry(table, row)) for row in _first_of_each(numbers, keys)]
    if moved is not None:
        others = [{**row, "target": moved, "draft": ""} for row in numbers]
        lines += [TableLine(row, _entry(table, row)) for row in _first_of_each(others, keys)]
    if not table.extra:
        return lines
    groups: dict[tuple[str, ...], list[TableLine]] = {}
    for line in lines:
        key = values_of(line.row, [key for key in keys if key in _OF_PAIR])
        groups.setdefault(key, []).append(line)
    return [line for group in groups.values() for line in _with_extra(table, group)]


def values_of(row: Row, keys: Iterable[str]) -> tuple[str, ...]:
    """A row's values of these columns."""
    return tuple(row[key] for key in keys)


def _with_extra(table: Table, group: Sequence[TableLine]) -> list[TableLine]:
    """A pair's lines with those that the paper does not have, each at its place."""
    lines = list(group)
    for entry in table.extra:
        row = {**group[0].row, "decoder": entry.decoder, "method": entry.method, "spec": entry.spec}
        usual = _entry(table, row)
        labels, spec = {**usual.labels, **entry.labels}, entry.spec or usual.spec
        warm = usual.temperature if entry.temperature is None else entry.temperature
        entry = replace(entry, labels=labels, spec=spec, temperature=warm)
        row["temperature"] = "" if entry.temperature is None else f"{entry.temperature:g}"
        row["tree_attention"] = entry.tree_attention or row["tree_attention"]
        places = [i for i, line in enumerate(lines) if line.row["decoder"] == entry.after]
        lines.insert(places[-1] + 1 if places else len(lines), TableLine(row, entry, extra=True))
    return lines


def _entry(table: Table, row: Row) -> Lines:
    """The table's ``lines`` entry for a line."""
    for entry in table.lines:
        if entry.decoder in ("", row["decoder"]) and entry.method == row["method"]:
            return entry
    return _PLAIN


def _first_of_each(rows: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """The first row of each line, in order."""
    first: dict[tuple[str, ...], Row] = {}
    for row in rows:
        first.setdefault(values_of(row, keys), row)
    return list(first.values())
