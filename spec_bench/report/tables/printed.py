"""A paper's table laid out: lines of cells with the paper's numbers in them, and the measured cells
that each place asks for.

A table is described by data (``papers.items.Table``): lines, values across and columns, which are
joined with the numbers of ``reference.csv``. A line is known by the columns of the reference that
its labels come from.

Words: **printed** is the paper's number, **ours** the measured one; a **block** is a set of lines
within which a column has one best value; **lost** is a number that the paper prints and that could
not be read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product
from typing import Any, NamedTuple

from spec_bench.report.claims.contrast import is_lower_better
from spec_bench.report.papers.items import PaperColumn, Pick, TableLines, recipe_cells
from spec_bench.report.papers.pairs import find_pair
from spec_bench.report.papers.paper import Table, find_table, load_paper
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.published import KEYS, Row, find_published_tree
from spec_bench.vocabulary.spec import parse

SAMPLING = ("temperature", "top_k", "top_p")
UNNAMED = "paper's"  # a target that the table does not name
_OF_PAIR = ("target", "draft", "task")
_OVER_PLAIN = PaperColumn(metric="speedup", title="speed-up over AR", digits=2)


class RequestedCell(NamedTuple):
    """A measured cell that a place of a table, or a figure, asks for."""

    pair: str
    task: str
    decoder: str
    spec: str
    # of the sampling None takes any, the lowest temperature and the least truncation first
    temperature: float | None = None
    top_k: float | None = None
    top_p: float | None = None
    tree_attention: bool = True
    # ``spec``: that tree; ``preferred``: that one, or where it was not measured the first one that
    # was; ``fastest``: the tree with the highest speed-up; ``same depth``: a chain as deep as the
    # fastest tree of the first of ``among``; ``common``: an ablation's tree, which ``among`` share
    pick: Pick = "spec"
    among: tuple[str, ...] = ()  # decoders

    @property
    def any_sampling(self) -> RequestedCell:
        """The cell with any sampling."""
        return self._replace(temperature=None, top_k=None, top_p=None)


@dataclass
class TableCell:
    """A place of a table; from ``value`` on ``build`` fills a copy in."""

    number: str  # the column of the results, or what else the column shows
    printed: str = ""  # as the paper prints it
    plus_minus: str = ""  # likewise
    lost: bool = False
    best: bool = False  # by the paper
    underlined: bool = False  # likewise
    empty: str = ""  # the text for a measured cell without a number
    asked: tuple[RequestedCell, ...] = ()  # ours, then the one that it is compared with
    papers: bool = False  # whether the first of these is of the pair that is printed there
    compared: str = ""  # minus or over
    value: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""  # a tree or a size
    mark: str = ""  # of a row that is not exact
    doubted: bool = False  # whether ours decides nothing
    ours: bool = False  # whether there is a value or text
    ours_best: bool = False
    state: str = ""  # why not, where it asks for a cell

    @property
    def printed_value(self) -> float | None:
        """The printed number; None where the paper prints none."""
        try:
            return float(self.printed)
        except ValueError:
            return None


class TableLine(NamedTuple):
    """A line of a table."""

    labels: tuple[str, ...]  # as many as heads
    block: str  # "" where it competes with none
    extra: bool  # whether the paper has no such line: shown only where it was measured
    cells: tuple[TableCell, ...]  # one for each column


@dataclass(frozen=True)
class TableSheet:
    """A table: its lines, and what stands around them."""

    name: str  # such as rsd/7
    title: str
    heads: tuple[str, ...]  # over the labels
    columns: tuple[PaperColumn, ...]
    lines: tuple[TableLine, ...]
    wanted: tuple[RequestedCell, ...] = ()  # of the paper's own lines, each cell once, in order
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()  # that would measure the missing cells
    setting: str = ""  # of its measured cells, where other parts of the table lack it

    @property
    def cells(self) -> list[TableCell]:
        """All places, line by line."""
        return [cell for line in self.lines for cell in line.cells]

    @property
    def metrics(self) -> list[str]:
        """What its columns show, each once."""
        return list(dict.fromkeys(column.metrics[0] for column in self.columns))

    def only(self, metrics: Sequence[str]) -> TableSheet:
        """Returns it with the columns of some metrics. Raises ValueError: it has none of one."""
        if unknown := [name for name in metrics if name not in self.metrics]:
            has = f"{self.name} has {', '.join(self.metrics)}"
            raise UsageError(f"--columns {unknown[0]}: {has}")
        is_chosen = [column.metrics[0] in metrics for column in self.columns]
        cut = (line._replace(cells=tuple(compress(line.cells, is_chosen))) for line in self.lines)
        return replace(self, columns=tuple(compress(self.columns, is_chosen)), lines=tuple(cut))

    @functools.cached_property
    def measured(self) -> bool:
        """Whether some place has a measured number."""
        return any(cell.ours for cell in self.cells)


def format_tree(decoder: str, spec: str) -> str:
    """Returns a tree as MCSD writes it: factors with an x; a chain of three is 1x1x1."""
    numbers = parse(spec).numbers if spec else ()
    return "x".join(["1"] * numbers[0] if decoder == "sd" else map(str, numbers))


@functools.cache
def lay_out_table(name: str, pair: str | None) -> TableSheet:
    """A table of printed numbers (``rsd/7``); its asked cells of one pair, or of the table's."""
    table = find_table(name)
    paper = load_paper(table.paper)
    layout = TableLayout(table, paper.get_numbers(table.number), pair, paper.numbers)
    column_values = layout.across()
    heads = tuple(column for value in column_values for column in layout.expand_columns(value))
    lines = layout.lines(column_values)
    _mark_best(lines, heads)
    _mark_tuned(lines, heads, table.tuned_from)
    cells = (cell for line in lines if not line.extra for cell in line.cells)
    requests = tuple(dict.fromkeys(request for cell in cells for request in cell.asked))
    return TableSheet(name, layout.title(), tuple(table.heads), heads, lines, requests, table.notes)


class TableLayout:
    """The reference of one table, for one pair or for those of the paper."""

    def __init__(
        self, table: Table, numbers: Sequence[Row], pair: str | None, other_columns: Sequence[Row]
    ) -> None:
        self.table = table
        self.asked = pair
        self.others = other_columns
        self.drafts = {row["target"]: row["draft"] for row in reversed(numbers) if row["draft"]}
        is_other = pair is not None and pair not in map(self._find_printed_pair, numbers)
        self.is_other = is_other and table.other_pair != "beside"
        columns = table.columns
        if (
            is_other
            and not self.is_other
            and not any(row["metric"] == "speedup" for row in numbers)
        ):
            numbers = [*numbers, *_iter_speedups(numbers)]
            columns = (*columns, _OVER_PLAIN)
        self.numbers = numbers
        sources = {*table.heads.values(), *table.block, "decoder", "method"}
        self.keys = [key for key in KEYS if key in sources and key != table.across]
        self.metrics = {(row["task"], row["metric"]) for row in self.numbers}
        self.shown = [
            columns_shown for column in columns if (columns_shown := self._resolve_column(column))
        ]

    def lines(self, values: Sequence[str]) -> tuple[TableLine, ...]:
        """Returns every line with a cell for each value across and column."""
        key_names = [*self.keys, *([self.table.across] if self.table.across else [])]
        # A number has its tree's place, and the first of a line the one of any tree.
        numbers: dict[tuple[str, ...], Row] = {}
        for number, tree in product(self.numbers, (True, False)):
            key = (
                *(number[name] for name in key_names),
                number["metric"],
                number["spec"] if tree else "",
            )
            numbers.setdefault(key, number)
            numbers.setdefault(key[:-2], number)  # any of the place
        lines = []
        for row in self._rows():
            cells = []
            for value, column in product(values, self.shown):
                place = {**row, self.table.across: value} if self.table.across else row
                metric = self._metric(column, place["task"])
                key_values = tuple(place[name] for name in key_names)
                printed_row = place if row["extra"] else numbers.get(key_values, place)
                place = place | {name: printed_row[name] for name in SAMPLING}
                key = (*key_values, metric, column.spec)
                cells.append(self._cell(place, column, None if row["extra"] else numbers.get(key)))
            labels = tuple(self._label(row, source) for source in self.table.heads.values())
            block = "/".join(self._label(row, source) for source in self.table.block)
            lines.append(TableLine(labels, block, row["extra"], tuple(cells)))
        return tuple(lines)

    def _rows(self) -> list[dict[str, Any]]:
        """What each line is known by: the printed ones, another pair's and ours, in their order."""
        parts = [self.numbers]
        if self.is_other and self.table.other_pair == "lines":
            parts.append([{**row, "target": str(self.asked), "draft": ""} for row in self.numbers])
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        keys_before = set()
        for row in (row for part in parts for row in part):
            if (key := tuple(row[name] for name in self.keys)) not in keys_before:
                keys_before.add(key)
                pair = [row[name] for name in self.keys if name in _OF_PAIR and self.table.extra]
                line = {**row, "entry": self._entry(row), "extra": False}
                groups.setdefault(tuple(pair), []).append(line)
        for lines in groups.values():
            for entry in self.table.extra:
                places = [i for i, line in enumerate(lines) if line["decoder"] == entry.after]
                index = places[-1] + 1 if places else len(lines)
                lines.insert(index, self._extra(lines[0], entry))
        return [line for lines in groups.values() for line in lines]

    def _extra(self, first_line: Mapping[str, Any], entry: TableLines) -> dict[str, Any]:
        """Returns a line that the paper has not, of the pair and task of another."""
        entry_values = {"decoder": entry.decoder, "method": entry.method, "spec": entry.spec}
        row = {**first_line, **entry_values, "extra": True}
        usual = self._entry(row)
        warm = usual.temperature if entry.temperature is None else entry.temperature
        labels = {**usual.labels, **entry.labels}
        spec = entry.spec or usual.spec
        row["entry"] = replace(entry, labels=labels, spec=spec, temperature=warm)
        row["temperature"] = "" if warm is None else f"{warm:g}"
        row["tree_attention"] = entry.tree_attention or row["tree_attention"]
        return row

    def _entry(self, row: Mapping[str, Any]) -> TableLines:
        for entry in self.table.lines:
            if entry.decoder in ("", row["decoder"]) and entry.method == row["method"]:
                return entry
        return TableLines()

    def _cell(self, row: dict[str, Any], column: PaperColumn, number: Row | None) -> TableCell:
        """Returns a place, with the number that the paper prints there."""
        row = {**row, **(number or {})}
        requests = self._find_requested_cells(row, column)
        text = "" if column.shows == "setting" else row["value"]
        if column.shows == "tree":
            text = format_tree(row["decoder"], row["spec"])
        metric = column.measured or self._metric(column, row["task"])
        return TableCell(
            number=metric if column.shows == "number" else column.shows,
            printed=text if number else "",
            plus_minus=row["plus_minus"] if number else "",
            lost=bool(number and row["reason"]),
            empty=column.empty if requests else "",
            asked=requests,
            papers=bool(requests) and requests[0].pair == self._find_printed_pair(row),
            compared="over" if column.over else "minus" if column.minus else "",
        )

    def _find_requested_cells(
        self, row: Mapping[str, Any], column: PaperColumn
    ) -> tuple[RequestedCell, ...]:
        """Returns the measured cells that a place asks for; none where no pair is wanted there."""
        pair = self._pair(row)
        if pair is None or self.asked not in (None, pair):
            return ()
        ours = self._asked(pair, row, column.spec)
        if column.minus:
            return ours, self._asked(pair, row, column.minus)
        if column.over:
            decoder = str(column.over["decoder"])
            warm = float(column.over["temperature"])
            return ours, RequestedCell(pair, row["task"], decoder, "-", warm)
        return (ours,)

    def _asked(self, pair: str, row: Mapping[str, Any], spec: str) -> RequestedCell:
        """Returns the measured cell of a place, or of another tree there."""
        entry = row["entry"]
        table = self.table
        pick = entry.pick
        if not pick:
            pick = "spec" if row["extra"] and table.pick == "preferred" else table.pick
        if pick in ("spec", "preferred") and not spec:
            # A decoder's tree in the recipe; the baseline is no cell of it.
            cells = [cell.partition(":") for r in table.recipes[:1] for cell in recipe_cells(r)]
            usual = {name: tree for name, _, tree in cells if tree} | {"ar": "-"}
            spec = row["spec"] or entry.spec or usual.get(row["decoder"], "")
        warm = float(row["temperature"]) if row["temperature"] else entry.temperature
        among = entry.among
        if pick == "common":
            among = among or tuple(dict.fromkeys(number["decoder"] for number in self.numbers))
            pairs = {(row["target"], row["draft"])}
            spec = find_published_tree(self.others, pairs, row["task"], warm or 0.0, among[0]) or ""
        return RequestedCell(
            pair,
            row["task"],
            row["decoder"],
            spec,
            table.temperature if warm is None else warm,
            float(row["top_k"]) if row["top_k"] else None,
            float(row["top_p"]) if row["top_p"] else None,
            row["tree_attention"] != "false",
            pick,
            among,
        )

    def _pair(self, row: Mapping[str, Any]) -> str | None:
        """Returns the pair of a place; None where no config is that pair."""
        if self.asked is not None and self.table.other_pair == "beside":
            return self.asked
        if row["target"] == self.asked:
            return self.asked
        return self._find_printed_pair(row)

    def _find_printed_pair(self, row: Mapping[str, Any]) -> str | None:
        """Returns the paper's pair of a place; None where no config is that pair."""
        draft = row["draft"] or self.drafts.get(row["target"], "")
        return find_pair(row["target"] or self.table.target, draft)

    def across(self) -> list[str]:
        """Returns the values side by side; one nameless value if there are none."""
        if not self.table.across:
            return [""]
        values = list(dict.fromkeys(row[self.table.across] for row in self.numbers))
        has_other_pair = self.is_other and self.table.other_pair == "columns"
        return [*values, *([str(self.asked)] if has_other_pair else [])]

    def expand_columns(self, value: str) -> list[PaperColumn]:
        """Returns the columns under one value across."""
        if not self.table.across:
            return self.shown
        group = names.task_title(value) if self.table.across == "task" else value
        group = f"temperature {value}" if self.table.across == "temperature" else group
        return [
            replace(column, name=f"{value}_{column.name}".replace(" ", "_"), group=group)
            for column in self.shown
        ]

    def _resolve_column(self, column: PaperColumn) -> PaperColumn | None:
        """Returns a column with its names filled in; None where another table prints its metric.
        Of a metric that the paper does not print the measured numbers are shown alone.
        """
        present = [metric for metric in column.metrics if any(m == metric for _, m in self.metrics)]
        if column.metric and not present:
            if any(row["metric"] in column.metrics for row in self.others):
                return None
            column = replace(column, metric="", measured=column.metrics[0])
        metric = present[0] if present else column.measured
        title = column.title or "{metric}"
        metric_title = columns.column(metric).title if "{metric}" in title else ""
        return replace(
            column, name=column.name or metric, title=title.replace("{metric}", metric_title)
        )

    def _metric(self, column: PaperColumn, task: str) -> str:
        matches = (metric for metric in column.metrics if (task, metric) in self.metrics)
        return next(matches, column.metrics[0])

    def _label(self, line: Mapping[str, Any], source: str) -> str:
        text = str(line.get(source, ""))
        if source in line["entry"].labels:
            return str(line["entry"].labels[source])
        if source == "method" and self.is_other and line["target"] == self.asked:
            return "measured here"
        if source == "task":
            return names.task_title(text)
        if source == "decoder":
            return names.decoder_style(text).title
        if source == "tree_attention":
            return "no" if text == "false" else "yes"
        return text or (UNNAMED if source == "target" else "")

    def title(self) -> str:
        """Returns the caption with the names that it leaves open."""
        first_number = self.numbers[0]
        return self.table.title.format(
            target=first_number["target"],
            targets=" and ".join(dict.fromkeys(row["target"] for row in self.numbers)),
            draft=next(iter(self.drafts.values()), ""),
            task=names.task_title(first_number["task"]),
            temperature=first_number["temperature"],
        )


def _iter_speedups(numbers: Sequence[Row]) -> Iterator[Row]:
    """Yields printed token rates over plain decoding's."""
    rates = [row for row in numbers if row["metric"] == "token_rate"]
    plain = {(row["target"], row["task"]): row["value"] for row in rates if row["decoder"] == "ar"}
    for row in rates:
        base = plain.get((row["target"], row["task"]))
        value = f"{float(row['value']) / float(base):.2f}" if base and row["value"] else ""
        yield {**row, "metric": "speedup", "value": value, "plus_minus": ""}


def rivals(
    lines: Sequence[TableLine], heads: Sequence[PaperColumn]
) -> Iterator[tuple[int, list[TableCell]]]:
    """Yields -1 where less is better, else 1, and the cells that compete in it."""
    blocks = group_by_key((line.block, line) for line in lines)
    for name, block in blocks.items():
        for column, head in enumerate(heads if name and len(block) > 1 else ()):
            if head.best:
                falls = is_lower_better(head.measured or head.metrics[0])
                yield -1 if falls else 1, [line.cells[column] for line in block]


def _mark_best(lines: Sequence[TableLine], heads: Sequence[PaperColumn]) -> None:
    """Marks the best printed values of every column and block, equal ones, too; none where one of
    them is lost, which may be the best.
    """
    for sign, cells in rivals(lines, heads):
        valid_cells = () if any(cell.lost for cell in cells) else cells
        worth = [sign * each for cell in valid_cells if (each := cell.printed_value) is not None]
        for cell in cells if worth else ():
            value = cell.printed_value
            cell.best = value is not None and sign * value == max(worth)


def _mark_tuned(
    lines: Sequence[TableLine], heads: Sequence[PaperColumn], tuned_from: Mapping[str, str]
) -> None:
    """Marks numbers that are larger than those of the draft before fine-tuning."""
    by_labels = {line.labels: line for line in lines}
    for line in lines:
        line_before = by_labels.get((tuned_from.get(line.labels[0], ""), *line.labels[1:]), line)
        for cell, cell_before, head in zip(line.cells, line_before.cells, heads, strict=True):
            value = cell.printed_value
            value_before = cell_before.printed_value
            if (
                head.tuned
                and value is not None
                and value_before is not None
                and value > value_before
            ):
                cell.best = head.tuned == "bold"
                cell.underlined = head.tuned == "underlined"
