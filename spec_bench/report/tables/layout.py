"""A paper's table laid out: its printed numbers, and the measured cell that belongs beside each.

Tables are described by data (``Table``): the sources of the labels, the columns, the key of columns
side by side, the pick of trees. A line is known by the columns of the reference that its labels
come from; a place is a line, a value across and a column.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spec_bench.report.papers.pairs import pair_of
from spec_bench.report.papers.paper import Column, Table, find_table, load_paper, recipe_cells
from spec_bench.report.tables.grid import (
    Cell,
    Grid,
    Line,
    Wanted,
    mark_best,
    mark_tuned,
    tree_text,
)
from spec_bench.report.tables.table_lines import TableLine, table_lines, values_of
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.published import FILE, KEYS, Row, printed_tree

UNNAMED = "paper's"  # a target that the table does not name


@functools.cache
def printed_grid(name: str, pair: str | None = None) -> Grid:
    """A table of printed numbers (``rsd/7``), each with the measured cell that is wanted beside it;
    of one pair, or of the table's.

    Raises:
        ValueError: the paper has no printed numbers of a column.
    """
    table = find_table(name)
    paper = load_paper(table.paper)
    metrics = {number["metric"] for number in paper.numbers}
    for column in table.columns:
        if column.metric and not metrics & {*column.metrics}:
            raise ValueError(
                f"table {name}: {' or '.join(column.metrics)} is not in {paper.folder / FILE}; "
                f"there: {', '.join(sorted(metrics)) or 'nothing'}"
            )
    return _Layout(table, paper.numbers_of(table.number), pair, paper.numbers).grid()


class _Layout:
    """One table, for one pair or for those of the paper."""

    def __init__(
        self, table: Table, numbers: Sequence[Row], asked: str | None, others: Sequence[Row]
    ) -> None:
        self.table, self.numbers, self.asked, self.others = table, numbers, asked, others
        sources = {*table.heads.values(), *table.block, "decoder", "method"}
        self.keys = [key for key in KEYS if key in sources and key != table.across]
        self.places = [*self.keys, *([table.across] if table.across else [])]
        self.drafts = {row["target"]: row["draft"] for row in reversed(numbers) if row["draft"]}
        self.printed: dict[tuple[str, ...], Row] = {}
        for row in numbers:
            at = (*values_of(row, self.places), row["metric"])
            self.printed.setdefault((*at, row["spec"]), row)
            self.printed.setdefault((*at, ""), row)
        self.metrics = {(row["task"], row["metric"]) for row in numbers}
        self.shown = [shown for column in table.columns if (shown := self._shown(column))]
        paired = {self._pair(row) for row in numbers}
        self.is_other = asked is not None and asked not in paired and table.other_pair != "beside"

    def grid(self) -> Grid:
        """The table."""
        across = self._across()
        heads = tuple(column for value in across for column in self._columns(value))
        lines = []
        moved = str(self.asked) if self.is_other and self.table.other_pair == "lines" else None
        for line in table_lines(self.table, self.numbers, self.keys, moved):
            cells = [self._cell(line, value, column) for value in across for column in self.shown]
            labels = tuple(self._label(line, source) for source in self.table.heads.values())
            block = "/".join(self._label(line, source) for source in self.table.block)
            lines.append(Line(labels, tuple(cells), block, line.extra))
        return Grid(
            name=self.table.name,
            title=self._title(),
            heads=tuple(self.table.heads),
            columns=heads,
            lines=mark_tuned(mark_best(lines, heads), heads, self.table.tuned_from),
            notes=self.table.notes,
        )

    def _cell(self, line: TableLine, value: str, column: Column) -> Cell:
        """One place."""
        row = dict(line.row)
        if self.table.across:
            row[self.table.across] = value
        metric = self._metric(column, row["task"])
        place = (*values_of(row, self.places), metric, column.spec)
        number = None if line.extra else self.printed.get(place)
        row = number or row
        wanted = self._wanted(line, row, column.spec)
        measured = column.measured or metric
        return Cell(
            printed=_printed(number, column),
            plus_minus=number["plus_minus"] if number else "",
            lost=bool(number and number["reason"]),
            wanted=wanted,
            column=measured if column.shows == "number" else column.shows,
            scale=column.scale,
            minus=self._wanted(line, row, column.minus) if column.minus else None,
            over=_baseline(wanted, column.over) if column.over and wanted else None,
            state=column.empty if wanted else "",
        )

    def _wanted(self, line: TableLine, row: Row, spec: str) -> Wanted | None:
        """The measured cell that belongs in a place; None where no pair is wanted there."""
        pair = self._pair(row)
        if pair is None or self.asked not in (None, pair):
            return None
        entry, table = line.entry, self.table
        pick = entry.pick or ("spec" if line.extra and table.pick == "preferred" else table.pick)
        if pick in ("spec", "preferred") and not spec:
            spec = row["spec"] or entry.spec or self._usual(row["decoder"])
        temperature = float(row["temperature"]) if row["temperature"] else entry.temperature
        among = entry.among or (self._decoders() if pick == "common" else ())
        if pick == "common":
            pairs, warm = {(row["target"], row["draft"])}, temperature or 0.0
            spec = printed_tree(self.others, pairs, row["task"], warm, among[0]) or ""
        return Wanted(
            pair=pair,
            task=row["task"],
            decoder=row["decoder"],
            spec=spec,
            temperature=table.temperature if temperature is None else temperature,
            top_k=int(row["top_k"] or 0),
            top_p=float(row["top_p"] or 1.0),
            tree_attention=row["tree_attention"] != "false",
            pick=pick,
            among=among,
        )

    def _pair(self, row: Row) -> str | None:
        """The pair of a place; None where no config is that pair."""
        if self.asked is not None and self.table.other_pair == "beside":
            return self.asked
        if row["target"] == self.asked:
            return self.asked
        draft = row["draft"] or self.drafts.get(row["target"], "")
        return pair_of(row["target"] or self.table.target, draft)

    def _across(self) -> list[str]:
        """The values side by side; one nameless value if there are none."""
        if not self.table.across:
            return [""]
        values = list(dict.fromkeys(row[self.table.across] for row in self.numbers))
        other = self.is_other and self.table.other_pair == "columns"
        return [*values, *([str(self.asked)] if other else [])]

    def _shown(self, column: Column) -> Column | None:
        """A column with its names filled in; None where the table prints no such metric."""
        there = [metric for metric in column.metrics if any(m == metric for _, m in self.metrics)]
        if column.metric and not there:
            return None
        metric = there[0] if there else column.measured
        title = column.title or "{metric}"
        shown = columns.column(metric).title if "{metric}" in title else ""
        return replace(column, name=column.name or metric, title=title.replace("{metric}", shown))

    def _columns(self, value: str) -> list[Column]:
        """The columns under one value across."""
        if not self.table.across:
            return self.shown
        group = names.task(value) if self.table.across == "task" else value
        group = f"temperature {value}" if self.table.across == "temperature" else group
        return [
            replace(column, name=f"{value}_{column.name}".replace(" ", "_"), group=group)
            for column in self.shown
        ]

    def _metric(self, column: Column, task: str) -> str:
        """A column's metric on a task."""
        printed = (metric for metric in column.metrics if (task, metric) in self.metrics)
        return next(printed, column.metrics[0])

    def _label(self, line: TableLine, source: str) -> str:
        """A line's label under a heading."""
        text = line.row.get(source, "")
        if source in line.entry.labels:
            return line.entry.labels[source]
        if source == "method" and self.is_other and line.row["target"] == self.asked:
            return "measured here"
        if source == "task":
            return names.task(text)
        if source == "decoder":
            return names.decoder(text).title
        if source == "tree_attention":
            return "no" if text == "false" else "yes"
        return text or (UNNAMED if source == "target" else "")

    def _title(self) -> str:
        """The caption with the names that it leaves open."""
        first = self.numbers[0]
        targets = dict.fromkeys(row["target"] for row in self.numbers)
        return self.table.title.format(
            target=first["target"],
            targets=" and ".join(targets),
            draft=next(iter(self.drafts.values()), ""),
            task=names.task(first["task"]),
            temperature=first["temperature"],
        )

    def _usual(self, decoder: str) -> str:
        """A decoder's tree in the recipe; the baseline is no cell of it."""
        recipes = self.table.recipes[:1]
        cells = (cell.partition(":") for each in recipes for cell in recipe_cells(each))
        specs = {name: spec for name, _, spec in cells if spec}
        return "-" if decoder == "ar" else specs.get(decoder, "")

    def _decoders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row["decoder"] for row in self.numbers))


def _printed(number: Row | None, column: Column) -> str:
    """The paper's text in a place."""
    if number is None or column.shows == "setting":
        return ""
    if column.shows == "tree":
        return tree_text(number["decoder"], number["spec"])
    return number["value"]


def _baseline(wanted: Wanted, over: Mapping[str, str | float]) -> Wanted:
    """The cell that a ratio is over."""
    decoder, temperature = str(over["decoder"]), float(over["temperature"])
    return Wanted(wanted.pair, wanted.task, decoder, "-", temperature)
