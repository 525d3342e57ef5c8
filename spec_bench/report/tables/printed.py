"""A paper's table laid out as a frame: a row for each place with the paper's number in it, and the
measured cells that the place asks for.

A table is described by data (``papers.items.Table``): lines, values across and columns, which are
joined with the numbers of ``reference.csv``. A line is known by the columns of the reference that
its labels come from.

Words: **printed** is the paper's number, **ours** the measured one; a **block** is a set of lines
within which a column has one best value; **lost** is a number that the paper prints and that could
not be read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from spec_bench.report.papers.items import Lines
from spec_bench.report.papers.pairs import pair_of
from spec_bench.report.papers.paper import Column, Table, find_table, load_paper, recipe_cells
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.published import COLUMNS, FILE, KEYS, Row, printed_tree
from spec_bench.vocabulary.spec import parse

UNNAMED = "paper's"  # a target that the table does not name
_OF_PAIR = ("target", "draft", "task")

# What a place asks for. ``temperature``: nan takes any, the lowest first. ``pick``: ``spec`` that
# tree; ``preferred`` that one, or where it was not measured the first one that was; ``fastest`` the
# tree with the highest speed-up; ``same depth`` a chain as deep as the fastest tree of another
# decoder, ``among``'s first; ``common`` the tree of an ablation, which ``among`` share.
ASKED = [
    *("pair", "task", "decoder", "spec", "temperature", "top_k", "top_p", "tree_attention"),
    *("pick", "among"),
]


@dataclass(frozen=True)
class Sheet:
    """A table: its places, one row each, and what stands around them."""

    name: str  # such as rsd/7
    title: str
    heads: tuple[str, ...]  # over the labels
    columns: tuple[Column, ...]
    # By line: ``labels``, as many as heads; ``block``, "" where it competes with none; ``extra``,
    # whether the paper has no such line, which then is shown only where it was measured.
    lines: pd.DataFrame
    # By place, in order: ``line``; ``column``, its number; ``printed`` and ``plus_minus`` as the
    # paper prints them; ``lost``; ``best`` and ``underlined`` by the paper; ``number``, the column
    # of the results, or what else the column shows; ``empty``, the text for a cell without a
    # number. ``build`` adds ``value``, ``low`` and ``high``; ``text`` of trees and sizes; ``mark``
    # of a row that is not exact; ``ours``, whether there is one, ``ours_best``, and else ``state``.
    cells: pd.DataFrame
    # Columns ASKED with ``line``, ``column`` and ``role``: ours, minus or over.
    asked: pd.DataFrame
    wanted: pd.DataFrame  # ASKED of the paper's own lines, each cell once, in order
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()  # that would measure the missing cells
    measured: bool = False
    setting: str = ""  # of its measured cells, where other parts of the table lack it


def tree_text(decoder: str, spec: str) -> str:
    """A tree as MCSD writes it: factors with an x; a chain of three is 1x1x1."""
    numbers = parse(spec).numbers if spec else ()
    return "x".join(["1"] * numbers[0] if decoder == "sd" else map(str, numbers))


def falls(column: Column) -> bool:
    """Whether less is better in a column."""
    name = column.measured or column.metrics[0]
    return any(each.name == name and each.better == "down" for each in columns.columns_in([name]))


def asked_frame(rows: Sequence[Mapping[str, Any]], *more: str) -> pd.DataFrame:
    """Asked cells as a frame; what a row does not say has its usual value."""
    usual = {"temperature": None, "top_k": 0, "top_p": 1.0, "tree_attention": True}
    full = [{**usual, "spec": "", "pick": "spec", "among": (), **row} for row in rows]
    frame = pd.DataFrame(full, columns=[*more, *ASKED])
    return frame.astype({"temperature": float, "top_k": float, "top_p": float})


@functools.cache
def printed_sheet(name: str, pair: str | None) -> Sheet:
    """A table of printed numbers (``rsd/7``); its asked cells of one pair, or of the table's.

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
    numbers = paper.numbers_of(table.number)
    places = _Places(table, numbers, pair, paper.numbers)
    lines = places.lines()
    across = places.across()
    heads = tuple(column for value in across for column in places.columns_under(value))
    cells, asked = places.cells(lines, across)
    frame = pd.DataFrame(
        {
            "labels": [
                tuple(places.label(line, s) for s in table.heads.values()) for line in lines
            ],
            "block": ["/".join(places.label(line, s) for s in table.block) for line in lines],
            "extra": [line["extra"] for line in lines],
        }
    )
    _mark_best(cells, frame, heads)
    _mark_tuned(cells, frame, heads, table.tuned_from)
    wanted = asked[asked.line.isin(frame.index[~frame.extra])][ASKED]
    wanted = wanted.drop_duplicates(ignore_index=True)
    title, labels = places.title(), tuple(table.heads)
    return Sheet(name, title, labels, heads, frame, cells, asked, wanted, table.notes)


class _Places:
    """The reference of one table, for one pair or for those of the paper."""

    def __init__(
        self, table: Table, numbers: Sequence[Row], asked: str | None, others: Sequence[Row]
    ) -> None:
        self.table, self.numbers, self.asked, self.others = table, numbers, asked, others
        self.reference = pd.DataFrame(numbers, columns=list(COLUMNS), dtype=object)
        sources = {*table.heads.values(), *table.block, "decoder", "method"}
        self.keys = [key for key in KEYS if key in sources and key != table.across]
        self.drafts = {row["target"]: row["draft"] for row in reversed(numbers) if row["draft"]}
        self.metrics = {(row["task"], row["metric"]) for row in numbers}
        self.shown = [shown for column in table.columns if (shown := self._shown(column))]
        paired = {self._pair(row) for row in numbers}
        self.is_other = asked is not None and asked not in paired and table.other_pair != "beside"

    def lines(self) -> list[dict[str, Any]]:
        """A row for each line: the printed ones, another pair's below, and those of ours that the
        paper has not, each behind the decoder that it follows.
        """
        reference = self.reference
        parts = [reference.drop_duplicates(self.keys)]
        if self.is_other and self.table.other_pair == "lines":
            moved = reference.assign(target=str(self.asked), draft="")
            parts.append(moved.drop_duplicates(self.keys))
        lines: list[dict[str, Any]] = [
            {**row, "entry": self._entry(row), "extra": False}
            for row in pd.concat(parts).to_dict("records")
        ]
        if not self.table.extra:
            return lines
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for line in lines:
            key = tuple(line[key] for key in self.keys if key in _OF_PAIR)
            groups.setdefault(key, []).append(line)
        return [line for group in groups.values() for line in self._with_extra(group)]

    def _with_extra(self, group: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        lines = list(group)
        for entry in self.table.extra:
            own = {"decoder": entry.decoder, "method": entry.method, "spec": entry.spec}
            row = {**group[0], **own, "extra": True}
            usual = self._entry(row)
            warm = usual.temperature if entry.temperature is None else entry.temperature
            row["entry"] = replace(
                entry,
                labels={**usual.labels, **entry.labels},
                spec=entry.spec or usual.spec,
                temperature=warm,
            )
            row["temperature"] = "" if warm is None else f"{warm:g}"
            row["tree_attention"] = entry.tree_attention or row["tree_attention"]
            places = [i for i, line in enumerate(lines) if line["decoder"] == entry.after]
            lines.insert(places[-1] + 1 if places else len(lines), row)
        return lines

    def _entry(self, row: Mapping[str, Any]) -> Lines:
        """The table's ``lines`` entry for a line."""
        for entry in self.table.lines:
            if entry.decoder in ("", row["decoder"]) and entry.method == row["method"]:
                return entry
        return Lines()

    def cells(
        self, lines: Sequence[dict[str, Any]], across: Sequence[str]
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Every line, value across and column, joined with the printed numbers; what each asks."""
        side = [self.table.across] if self.table.across else []
        at = [*self.keys, *side]
        # A number has its tree's place, and the first of a line the one of any tree.
        numbers: dict[tuple[str, ...], Row] = {}
        for number, tree in ((each, tree) for each in self.numbers for tree in (each["spec"], "")):
            key = (*(number[name] for name in at), number["metric"], tree)
            numbers.setdefault(key, number)
        cells, asked = [], []
        width = len(across) * len(self.shown)
        for place, (line, value, column) in enumerate(product(lines, across, self.shown)):
            row = {**line, **dict.fromkeys(side, value)}
            metric = self._metric(column, row["task"])
            key = (*(row[name] for name in at), metric, column.spec)
            there = key in numbers and not row["extra"]
            row |= numbers[key] if there else {}
            own = {"line": place // width, "column": place % width}
            wants = [{**own, **each} for each in self._wanted(row, column)]
            asked += wants
            printed = "" if column.shows == "setting" else row["value"]
            if column.shows == "tree":
                printed = tree_text(row["decoder"], row["spec"])
            measured = column.measured or self._metric(column, row["task"])
            cells.append(
                {
                    **own,
                    "printed": printed if there else "",
                    "plus_minus": row["plus_minus"] if there else "",
                    "lost": bool(there and row["reason"]),
                    "underlined": False,
                    "number": measured if column.shows == "number" else column.shows,
                    "empty": column.empty if wants else "",
                }
            )
        return pd.DataFrame(cells), asked_frame(asked, "line", "column", "role")

    def _wanted(self, row: Mapping[str, Any], column: Column) -> list[dict[str, Any]]:
        """The measured cells that a place asks for; none where no pair is wanted there."""
        pair = self._pair(row)
        if pair is None or self.asked not in (None, pair):
            return []
        own = {"pair": pair, "task": row["task"]}
        asked = [{**own, "role": "ours", **self._asked(row, column.spec)}]
        if column.minus:
            asked.append({**own, "role": "minus", **self._asked(row, column.minus)})
        if column.over:
            over = {"decoder": str(column.over["decoder"]), "spec": "-"}
            warm = float(column.over["temperature"])
            asked.append({**own, "role": "over", **over, "temperature": warm})
        return asked

    def _asked(self, row: Mapping[str, Any], spec: str) -> dict[str, Any]:
        """Decoder, tree and sampling of a place."""
        entry, table = row["entry"], self.table
        pick = entry.pick
        if not pick:
            pick = "spec" if row["extra"] and table.pick == "preferred" else table.pick
        if pick in ("spec", "preferred") and not spec:
            spec = row["spec"] or entry.spec or self._usual(row["decoder"])
        temperature = float(row["temperature"]) if row["temperature"] else entry.temperature
        among = entry.among
        if pick == "common":
            among = among or tuple(dict.fromkeys(number["decoder"] for number in self.numbers))
            pairs, warm = {(row["target"], row["draft"])}, temperature or 0.0
            spec = printed_tree(self.others, pairs, row["task"], warm, among[0]) or ""
        return {
            "decoder": row["decoder"],
            "spec": spec,
            "temperature": table.temperature if temperature is None else temperature,
            "top_k": int(row["top_k"] or 0),
            "top_p": float(row["top_p"] or 1.0),
            "tree_attention": row["tree_attention"] != "false",
            "pick": pick,
            "among": among,
        }

    def _pair(self, row: Mapping[str, Any]) -> str | None:
        """The pair of a place; None where no config is that pair."""
        if self.asked is not None and self.table.other_pair == "beside":
            return self.asked
        if row["target"] == self.asked:
            return self.asked
        draft = row["draft"] or self.drafts.get(row["target"], "")
        return pair_of(row["target"] or self.table.target, draft)

    def _usual(self, decoder: str) -> str:
        """A decoder's tree in the recipe; the baseline is no cell of it."""
        cells = [cell for recipe in self.table.recipes[:1] for cell in recipe_cells(recipe)]
        specs = {name: spec for name, _, spec in (c.partition(":") for c in cells) if spec}
        return "-" if decoder == "ar" else specs.get(decoder, "")

    def across(self) -> list[str]:
        """The values side by side; one nameless value if there are none."""
        if not self.table.across:
            return [""]
        values = list(dict.fromkeys(row[self.table.across] for row in self.numbers))
        other = self.is_other and self.table.other_pair == "columns"
        return [*values, *([str(self.asked)] if other else [])]

    def columns_under(self, value: str) -> list[Column]:
        """The columns under one value across."""
        if not self.table.across:
            return self.shown
        group = names.task(value) if self.table.across == "task" else value
        group = f"temperature {value}" if self.table.across == "temperature" else group
        return [
            replace(column, name=f"{value}_{column.name}".replace(" ", "_"), group=group)
            for column in self.shown
        ]

    def _shown(self, column: Column) -> Column | None:
        """A column with its names filled in; None where the table prints no such metric."""
        there = [metric for metric in column.metrics if any(m == metric for _, m in self.metrics)]
        if column.metric and not there:
            return None
        metric = there[0] if there else column.measured
        title = column.title or "{metric}"
        shown = columns.column(metric).title if "{metric}" in title else ""
        return replace(column, name=column.name or metric, title=title.replace("{metric}", shown))

    def _metric(self, column: Column, task: str) -> str:
        """A column's metric on a task."""
        printed = (metric for metric in column.metrics if (task, metric) in self.metrics)
        return next(printed, column.metrics[0])

    def label(self, line: Mapping[str, Any], source: str) -> str:
        """A line's label under a heading."""
        text = str(line.get(source, ""))
        if source in line["entry"].labels:
            return str(line["entry"].labels[source])
        if source == "method" and self.is_other and line["target"] == self.asked:
            return "measured here"
        if source == "task":
            return names.task(text)
        if source == "decoder":
            return names.decoder(text).title
        if source == "tree_attention":
            return "no" if text == "false" else "yes"
        return text or (UNNAMED if source == "target" else "")

    def title(self) -> str:
        """The caption with the names that it leaves open."""
        first = self.numbers[0]
        return self.table.title.format(
            target=first["target"],
            targets=" and ".join(dict.fromkeys(row["target"] for row in self.numbers)),
            draft=next(iter(self.drafts.values()), ""),
            task=names.task(first["task"]),
            temperature=first["temperature"],
        )


def _mark_best(cells: pd.DataFrame, lines: pd.DataFrame, heads: Sequence[Column]) -> None:
    """Marks the best printed values of every column and block of several lines, equal ones too."""
    value = pd.to_numeric(cells.printed, errors="coerce")
    less = cells.column.map([falls(column) for column in heads].__getitem__).astype(bool)
    size = lines.block.map(lines.block.value_counts()).where(lines.block != "", 0)
    ranked = value.where(~less, -value)
    competes = cells.column.map([column.best for column in heads].__getitem__).astype(bool)
    competes &= cells.line.map(size) > 1
    ranked = ranked.where(competes)
    best = ranked.groupby([cells.line.map(lines.block), cells.column]).transform("max")
    cells["best"] = ranked.notna() & (ranked == best)


def _mark_tuned(
    cells: pd.DataFrame, lines: pd.DataFrame, heads: Sequence[Column], tuned_from: Mapping[str, str]
) -> None:
    """Marks numbers that are larger than those of the draft before fine-tuning."""
    if not tuned_from:
        return
    by_labels = {labels: line for line, labels in lines.labels.items()}
    before = {
        line: by_labels.get((tuned_from[labels[0]], *labels[1:]))
        for line, labels in lines.labels.items()
        if labels[0] in tuned_from
    }
    value = pd.to_numeric(cells.printed, errors="coerce")
    by_place = dict(zip(zip(cells.line, cells.column, strict=True), value, strict=True))
    theirs = [
        by_place.get((before.get(line), column))
        for line, column in zip(cells.line, cells.column, strict=True)
    ]
    larger = value > pd.Series(theirs, cells.index, dtype=float)
    how = cells.column.map([column.tuned for column in heads].__getitem__)
    cells["best"] = cells.best.where(~larger | (how == ""), how == "bold")
    cells["underlined"] = larger & (how == "underlined")
