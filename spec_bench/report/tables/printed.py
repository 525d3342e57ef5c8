"""Lays out a paper's table: its places as records, with the paper's numbers in them and the
measured cells that each place requests.

A table is described by data (``papers.items.Table``): lines, values across and columns, which are
joined with the numbers of ``reference.csv``. A line is identified by the columns of the reference
that its labels come from.

Words: **printed** is the paper's number, **ours** the measured one; the lines of a **block**
compete for the best value of each column; **lost** is a number that the paper prints and that could
not be read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any, NamedTuple

from spec_bench.report.claims.contrast import is_lower_better
from spec_bench.report.papers.items import PaperColumn, Pick, TableLines, list_recipe_cells
from spec_bench.report.papers.pairs import find_pair_config
from spec_bench.report.papers.paper import Table, get_table, load_paper
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.published import KEYS, Row, find_tree_of_published_speedup
from spec_bench.vocabulary.spec import parse_tree_spec

SAMPLING = ("temperature", "top_k", "top_p")
UNNAMED = "paper's"  # a target that the table does not name
_OF_PAIR = ("target", "draft", "task")
_OVER_PLAIN = PaperColumn(metric="speedup", title="speed-up over AR", digits=2)
Line = Mapping[str, Any]
"""A line: its columns of the reference, its settings ``entry``, and whether it is ``extra``."""
Place = dict[str, Any]
"""One place of a table, with the fields of ``PLACE``."""


class RequestedCell(NamedTuple):
    """A measured cell that a place of a table, or a figure, requests."""

    pair: str
    task: str
    decoder: str
    spec: str
    # None: any value; rows of the lowest temperature and the least truncation are preferred
    temperature: float | None = None
    top_k: float | None = None
    top_p: float | None = None
    tree_attention: bool = True
    # ``spec``: the tree ``spec``; ``preferred``: that tree or, if it was not measured, the first
    # measured one; ``fastest``: the tree with the highest speed-up; ``same depth``: a chain as deep
    # as the fastest tree of ``among[0]``; ``common``: the tree that an ablation's decoders share
    pick: Pick = "spec"
    among: tuple[str, ...] = ()  # decoders

    @property
    def any_sampling(self) -> RequestedCell:
        """The same cell with any sampling."""
        return self._replace(temperature=None, top_k=None, top_p=None)


PLACE: dict[str, Any] = {
    "line": 0,
    "labels": (),  # the line's labels, one for each of the table's heads
    "block": "",  # the line's block; "" if it competes with no other line
    "extra": False,  # whether the paper has no such line; shown only if it was measured
    "column": "",  # name of the column
    "number": "",  # the results' column; or ``setting``, ``tree`` or ``size``
    "printed": "",  # the number as the paper prints it
    "plus_minus": "",  # the number after ± as the paper prints it
    "lost": False,
    "best": False,  # whether the printed number is bold
    "underlined": False,  # whether the printed number is underlined
    "empty": "",  # the text for a measured cell without a number
    "requests": (),  # measured cells: ours, then the one that it is compared with
    "papers": False,  # whether the first request is for the pair of the printed number
    "compared": "",  # ``minus`` or ``over``; "" if nothing is compared
    # the fields from here on are about the measured value, filled in by ``build``
    "row": None,  # row of the first requested cell
    "value": nan,
    "low": nan,
    "high": nan,
    "difference": nan,  # value minus printed number, if both are of the same pair
    "text": "",  # a tree or a size, shown in place of a value
    "mark": "",  # mark of a row that is not exact, or has doubtful times
    "doubted": False,  # whether the row's times are doubtful
    "ours": False,  # whether there is a value or text
    "ours_best": False,
    "state": "",  # why there is none, if the place requests cells
}
"""The fields of a place, with the values of an empty one."""


@dataclass(frozen=True)
class TableSheet:
    """A table: its places, headings, notes and commands."""

    name: str  # such as rsd/7
    title: str
    heads: tuple[str, ...]  # headings over the labels
    columns: tuple[PaperColumn, ...]
    places: Sequence[Place]  # line by line
    wanted: tuple[RequestedCell, ...] = ()  # cells that the paper's own lines request, each once
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()  # commands that measure the missing cells
    setting: str = ""  # settings of its measured cells that other parts of the table do not have
    other_pair: str = ""  # pair of its measured cells, if that is not the paper's

    @property
    def metrics(self) -> list[str]:
        """The metrics that its columns show, each once."""
        return list(dict.fromkeys(column.metrics[0] for column in self.columns))

    def select_metrics(self, metrics: Sequence[str]) -> TableSheet:
        """Returns the table with only the columns of these metrics. Raises UsageError if it does
        not have one of them.
        """
        if unknown := [name for name in metrics if name not in self.metrics]:
            has = f"{self.name} has {', '.join(self.metrics)}"
            raise UsageError(f"--columns {unknown[0]}: {has}")
        chosen = tuple(column for column in self.columns if column.metrics[0] in metrics)
        chosen_names = {column.name for column in chosen}
        places = [place for place in self.places if place["column"] in chosen_names]
        return replace(self, columns=chosen, places=places)

    @property
    def is_measured(self) -> bool:
        """Whether at least one place has a measured value."""
        return any(place["ours"] for place in self.places)


def format_tree_widths(decoder: str, spec: str) -> str:
    """Formats a tree as MCSD writes it: widths joined by an x; a chain of three is 1x1x1."""
    numbers = parse_tree_spec(spec).numbers if spec else ()
    return "x".join(["1"] * numbers[0] if decoder == "sd" else map(str, numbers))


def list_requested_cells(places: Iterable[Place]) -> tuple[RequestedCell, ...]:
    """Lists the cells that places request, each once."""
    return tuple(dict.fromkeys(request for place in places for request in place["requests"]))


@functools.cache
def lay_out_printed_table(name: str, pair: str | None) -> TableSheet:
    """Lays out a table of printed numbers such as ``rsd/7``. Its places request cells of ``pair``,
    or of the paper's pairs if that is None.
    """
    table = get_table(name)
    paper = load_paper(table.paper)
    numbers = paper.get_numbers_or_places(table.number)
    drafts = {row["target"]: row["draft"] for row in reversed(numbers) if row["draft"]}
    find_printed = functools.partial(_find_printed_pair, table, drafts)
    # Another pair's cells are next to the paper's numbers, in lines of their own, or in columns.
    other_pair = pair if pair not in map(find_printed, numbers) else None
    shown = table.columns
    shows_speedups = any("speedup" in (*each.metrics, each.measured) for each in shown)
    shows_speedups |= any(row["metric"] == "speedup" for row in numbers)
    if other_pair and table.other_pair == "beside" and not shows_speedups:
        numbers = [*numbers, *_iter_printed_speedups(numbers)]
        shown = (*shown, _OVER_PLAIN)
    resolved = [
        each
        for column in shown
        if (each := _resolve_column_unless_elsewhere(column, numbers, paper.numbers))
    ]
    values = list(dict.fromkeys(row.get(table.across, "") for row in numbers))
    values += [other_pair] if other_pair and table.other_pair == "columns" else []
    spread = [
        (value, _make_column_across(table.across, value, each))
        for value in values
        for each in resolved
    ]
    heads = tuple(head for _, head in spread)
    lines = _list_lines(table, numbers, other_pair if table.other_pair == "lines" else None)
    request = functools.partial(_request_cells, table, numbers, paper.numbers, pair)
    places: list[Place] = []
    for row, line, head, printed in _iter_places(table, numbers, lines, spread):
        printed_pair = find_printed(row)
        is_own = pair and (table.other_pair == "beside" or row["target"] == pair)
        place_requests = request(row, pair if is_own else printed_pair, head)
        papers = bool(place_requests) and place_requests[0].pair == printed_pair
        block = "/".join(_format_line_label(line, source, other_pair) for source in table.block)
        labels = tuple(
            _format_line_label(line, source, other_pair) for source in table.heads.values()
        )
        own_fields = {
            "block": block,
            "labels": labels,
            "requests": place_requests,
            "papers": papers,
        }
        places.append(
            {**PLACE, **printed, **own_fields, "empty": head.empty if place_requests else ""}
        )
    _mark_best_printed(places, heads)
    _mark_numbers_above_untuned(places, heads, table.tuned_from)
    requests = list_requested_cells(place for place in places if not place["extra"])
    title = _fill_title(table, numbers, drafts)
    return TableSheet(name, title, tuple(table.heads), heads, places, requests, table.notes)


def _find_printed_pair(table: Table, drafts: Mapping[str, str], row: Line) -> str | None:
    """Returns the name of the config for the model pair that the paper's number at a place belongs
    to; None if there is no such config.
    """
    draft = row["draft"] or drafts.get(row["target"], "")
    return find_pair_config(row["target"] or table.target, draft)


def _list_line_keys(table: Table) -> list[str]:
    """Lists the columns of the reference that identify a line."""
    sources = {*table.heads.values(), *table.block, "decoder", "method"}
    return [key for key in KEYS if key in sources and key != table.across]


def _list_lines(table: Table, numbers: Sequence[Row], other_pair: str | None) -> list[Line]:
    """Lists the lines in order: the printed ones, another pair's, and those that the paper does not
    have.
    """
    other_pair_rows = (
        [{**row, "target": other_pair, "draft": ""} for row in numbers] if other_pair else []
    )
    keys = _list_line_keys(table)
    groups: dict[tuple[str, ...], list[Line]] = {}
    keys_before = set()
    for row in (*numbers, *other_pair_rows):
        if (key := tuple(row[name] for name in keys)) not in keys_before:
            keys_before.add(key)
            pair = tuple(row[name] for name in keys if name in _OF_PAIR and table.extra)
            line = {**row, "entry": _find_line_settings(table, row), "extra": False}
            groups.setdefault(pair, []).append(line)
    for lines in groups.values():
        for entry in table.extra:
            places = [i for i, line in enumerate(lines) if line["decoder"] == entry.after]
            index = places[-1] + 1 if places else len(lines)
            lines.insert(index, _make_line_beyond_paper(table, lines[0], entry))
    all_lines = [line for lines in groups.values() for line in lines]
    if "axis_value" not in table.block:  # no sorting by block is needed
        return all_lines
    blocks = group_by_key((tuple(line.get(key) for key in table.block), line) for line in all_lines)
    return [line for lines in blocks.values() for line in lines]


def _make_line_beyond_paper(table: Table, first_line: Line, entry: TableLines) -> Line:
    """Makes a line that the paper does not have, of the pair and task of ``first_line``."""
    own_columns = {"decoder": entry.decoder, "method": entry.method, "spec": entry.spec}
    usual_settings = _find_line_settings(table, own_columns)
    temperature = usual_settings.temperature if entry.temperature is None else entry.temperature
    labels = {**usual_settings.labels, **entry.labels}
    spec = entry.spec or usual_settings.spec
    merged = entry.tree_attention or first_line["tree_attention"]
    own_columns |= {
        "temperature": "" if temperature is None else f"{temperature:g}",
        "tree_attention": merged,
    }
    full_entry = replace(entry, labels=labels, spec=spec, temperature=temperature)
    return {**first_line, **own_columns, "entry": full_entry, "extra": True}


def _find_line_settings(table: Table, row: Line) -> TableLines:
    """Returns the settings of a decoder's line; if they have no tree, the recipe's tree is filled
    in.
    """
    entries = (e for e in table.lines if e.decoder in ("", row["decoder"]))
    entry = next((e for e in entries if e.method == row["method"]), TableLines())
    cells = [cell.partition(":") for r in table.recipes[:1] for cell in list_recipe_cells(r)]
    # Recipes do not list the baseline.
    usual_trees = {name: tree for name, _, tree in cells if tree} | {"ar": "-"}
    return replace(entry, spec=entry.spec or usual_trees.get(row["decoder"], ""))


def _iter_places(
    table: Table,
    numbers: Sequence[Row],
    lines: Sequence[Line],
    spread: Sequence[tuple[str, PaperColumn]],
) -> Iterator[tuple[Line, Line, PaperColumn, dict[str, Any]]]:
    """Yields, for each place of the table, its reference row, its line, its column, and its fields
    such as the printed number.
    """
    key_names = [*_list_line_keys(table), *filter(None, [table.across])]
    metrics = {(row["task"], row["metric"]) for row in numbers}
    # Numbers are found by their tree; the first number of a line is also found without a tree.
    index: dict[tuple[str, ...], Row] = {}
    for number, spec in ((row, spec) for row in numbers for spec in (row["spec"], "")):
        key = tuple(number[name] for name in key_names)
        index.setdefault((*key, number["metric"], spec), number)
        index.setdefault(key, number)  # the first of any metric
    for line_number, line in enumerate(lines):
        for value, column in spread:
            row = {**line, table.across: value}
            printed_metrics = (name for name in column.metrics if (row["task"], name) in metrics)
            metric = next(printed_metrics, column.metrics[0])
            key = tuple(row[name] for name in key_names)
            printed = {} if line["extra"] else index.get((*key, metric, column.spec), {})
            if not line["extra"] and key in index:
                row |= {name: index[key][name] for name in SAMPLING}
            row |= printed
            text = "" if column.shows == "setting" else row["value"]
            text = (
                format_tree_widths(row["decoder"], row["spec"]) if column.shows == "tree" else text
            )
            measured_name = column.measured or metric
            yield row, line, column, {
                "line": line_number,
                "extra": line["extra"],
                "column": column.name,
                "number": measured_name if column.shows == "number" else column.shows,
                "printed": text if printed else "",
                "plus_minus": printed.get("plus_minus", ""),
                "lost": bool(printed.get("reason")),
                "compared": "over" if column.over else "minus" if column.minus else "",
            }  # fmt: skip


def _request_cells(
    table: Table,
    numbers: Sequence[Row],
    other_numbers: Sequence[Row],
    asked_pair: str | None,
    row: Line,
    pair: str | None,
    column: PaperColumn,
) -> tuple[RequestedCell, ...]:
    """Returns the measured cells that a place requests: ours, then the one that it is compared
    with. Returns none if the place has no pair, or if only another pair's cells were asked for.
    """
    if pair is None or asked_pair not in (None, pair):
        return ()
    entry = row["entry"]
    task = row["task"]
    pick = entry.pick or ("spec" if row["extra"] and table.pick == "preferred" else table.pick)
    temperature = float(row["temperature"]) if row["temperature"] else entry.temperature
    spec = column.spec
    among = entry.among
    if pick == "common":
        among = among or tuple(dict.fromkeys(number["decoder"] for number in numbers))
        pairs = {(row["target"], row["draft"])}
        spec = (
            find_tree_of_published_speedup(other_numbers, pairs, task, temperature or 0.0, among[0])
            or ""
        )
    elif pick in ("spec", "preferred"):
        spec = spec or row["spec"] or entry.spec
    own_request = RequestedCell(
        pair,
        task,
        row["decoder"],
        spec,
        table.temperature if temperature is None else temperature,
        float(row["top_k"]) if row["top_k"] else None,
        float(row["top_p"]) if row["top_p"] else None,
        row["tree_attention"] != "false",
        pick,
        among,
    )
    if column.minus:
        return own_request, own_request._replace(spec=column.minus)
    if column.over:
        rival, rival_temperature = column.over["decoder"], column.over["temperature"]
        return own_request, RequestedCell(pair, task, str(rival), "-", float(rival_temperature))
    return (own_request,)


def _make_column_across(across: str, value: str, column: PaperColumn) -> PaperColumn:
    """Returns a copy of the column for one value of ``across``, with that value in its name and
    group.
    """
    if not across:
        return column
    group = names.get_task_title(value) if across == "task" else value
    group = f"temperature {value}" if across == "temperature" else group
    return replace(column, name=f"{value}_{column.name}".replace(" ", "_"), group=group)


def _resolve_column_unless_elsewhere(
    column: PaperColumn, numbers: Sequence[Row], other_numbers: Sequence[Row]
) -> PaperColumn | None:
    """Fills in a column's name and title; None if another table prints its metric. If the paper
    prints the metric nowhere, the column shows only measured numbers.
    """
    present = [name for name in column.metrics if any(row["metric"] == name for row in numbers)]
    if column.metric and not present:
        if any(row["metric"] in column.metrics for row in other_numbers):
            return None
        column = replace(column, metric="", measured=column.metrics[0])
    metric = present[0] if present else column.measured
    title = column.title or "{metric}"
    metric_title = columns.get_column(metric).title if "{metric}" in title else ""
    return replace(
        column, name=column.name or metric, title=title.replace("{metric}", metric_title)
    )


def _format_line_label(line: Line, label_key: str, other_pair: str | None) -> str:
    text = str(line.get(label_key, ""))
    if label_key in line["entry"].labels:
        return str(line["entry"].labels[label_key])
    if label_key == "method" and other_pair and line["target"] == other_pair:
        return "measured here"
    if label_key == "task":
        return names.get_task_title(text)
    if label_key == "decoder":
        return names.get_decoder_style(text).title
    if label_key == "tree_attention":
        return "no" if text == "false" else "yes"
    return text or (UNNAMED if label_key == "target" else "")


def _fill_title(table: Table, numbers: Sequence[Row], drafts: Mapping[str, str]) -> str:
    """Fills in the names in a table's caption."""
    first_number = numbers[0]
    return table.title.format(
        target=first_number["target"],
        targets=" and ".join(dict.fromkeys(row["target"] for row in numbers)),
        draft=next(iter(drafts.values()), ""),
        task=names.get_task_title(first_number["task"]),
        temperature=first_number["temperature"],
    )


def _iter_printed_speedups(numbers: Sequence[Row]) -> Iterator[Row]:
    """Yields printed speed-ups: token rates divided by plain decoding's."""
    rates = [row for row in numbers if row["metric"] == "token_rate"]
    baseline_rates = {
        (row["target"], row["task"]): row["value"] for row in rates if row["decoder"] == "ar"
    }
    for row in rates:
        base = baseline_rates.get((row["target"], row["task"]))
        value = f"{float(row['value']) / float(base):.2f}" if base and row["value"] else ""
        yield {**row, "metric": "speedup", "value": value, "plus_minus": ""}


def iter_signs_and_rival_places(
    places: Iterable[Place], heads: Sequence[PaperColumn]
) -> Iterator[tuple[int, list[Place]]]:
    """Yields (sign, competing places) of each block and column; the sign is 1 if larger is better,
    else -1.
    """
    columns = {head.name: head for head in heads if head.best}
    competing = (place for place in places if place["block"] and place["column"] in columns)
    blocks = group_by_key(((place["block"], place["column"]), place) for place in competing)
    for (_, name), rivals in blocks.items():
        if len(rivals) > 1:
            metric = columns[name].measured or columns[name].metrics[0]
            yield -1 if is_lower_better(metric) else 1, rivals


def get_printed_number(place: Place) -> float:
    """Returns a place's printed number; NaN if the paper prints none."""
    try:
        return float(place["printed"])
    except ValueError:
        return nan


def _mark_best_printed(places: Sequence[Place], heads: Sequence[PaperColumn]) -> None:
    """Marks the best printed values of every column and block, all of them if several are equal;
    none if a value is lost, because that may be the best.
    """
    for sign, rivals in iter_signs_and_rival_places(places, heads):
        numbers = [sign * get_printed_number(place) for place in rivals]
        best = max((number for number in numbers if not isnan(number)), default=nan)
        for place, number in zip(rivals, numbers, strict=True):
            place["best"] = number == best and not any(rival["lost"] for rival in rivals)


def _mark_numbers_above_untuned(
    places: Sequence[Place], heads: Sequence[PaperColumn], tuned_from: Mapping[str, str]
) -> None:
    """Marks printed numbers that are larger than the same draft's before fine-tuning."""
    how = {head.name: head.tuned for head in heads}
    printed = {(p["labels"], p["column"]): get_printed_number(p) for p in places}
    for place in places:
        draft, *labels = place["labels"]
        before = (tuned_from.get(draft, ""), *labels), place["column"]
        if how[place["column"]] and get_printed_number(place) > printed.get(before, nan):
            place["best"] = how[place["column"]] == "bold"
            place["underlined"] = how[place["column"]] == "underlined"
