"""Joins a paper's table with the measured rows: measured numbers next to the printed ones, the best
marked, and notes below about the sources, rows and marks.

The best measured number of a block and column is bold only if its 95% interval lies above those of
all other cells of the block and column. Only exact rows are ever bold.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd

from spec_bench.report.claims.contrast import compute_difference
from spec_bench.report.data.differences import describe_differences_from_papers
from spec_bench.report.data.rows import (
    Row,
    describe_intervals,
    get_empty_reason,
    get_failure_reason,
    get_number,
    get_number_and_ends,
    get_protocol,
    get_timing_doubt,
)
from spec_bench.report.data.seeds import POOLED, SEEDS
from spec_bench.report.papers.items import Item, PaperColumn
from spec_bench.report.papers.pairs import format_drafter_size, is_embedded, read_pair_configs
from spec_bench.report.papers.paper import Table, load_paper
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.report.tables.printed import (
    SAMPLING,
    Place,
    RequestedCell,
    TableSheet,
    format_tree_widths,
    get_printed_number,
    iter_signs_and_rival_places,
    lay_out_printed_table,
    list_requested_cells,
)
from spec_bench.report.tables.progress import NO_PAIR, build_training_and_run_commands
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.names import MEANINGS
from spec_bench.vocabulary.numbers import format_count
from spec_bench.vocabulary.published import Row as Number
from spec_bench.vocabulary.spec import parse_tree_spec

NOT_RUN = "not run"
NO_VALUE = "no value"
BEST = (
    "Bold: the paper's best of each block and column; ours only where its interval lies above all "
    "others of the block and column."
)
OURS_BEST = "Bold: where an interval lies above all others of the block and column."
_CONFIRMED = (
    "Ours: the fastest of the few that a search of {trees} trees confirmed, on prompts that the "
    "search had not seen. That it is the fastest of these is not part of the interval."
)
_CONTINUED = {
    "own": "later turns continue the decoder's own answers",
    "fixed": "later turns continue fixed answers, the same for every decoder",
    "none": "first turns only",
}
_ENDS = ("value", "low", "high")
_ALL_KEPT = {"top_k": [0], "top_p": [1]}
_NO_ROOM = {"prompts_skipped": "left out", "prompts_truncated": "cut in the middle"}


def build_tables_by_setting(
    item: Table, cells: MeasuredRows, pair: str | None = None
) -> list[TableSheet]:
    """Builds one table for each way in which its cells were run, so that rows of different settings
    are not mixed.

    The titles name the settings. Only the first table has the commands for missing cells. Raises
    UsageError if there is no such pair.
    """
    cells = cells.for_experiments_or_all(item.experiments)
    whole_sheet = build_table(item, cells, pair)
    parts = cells.split_by_run_settings(whole_sheet.wanted)
    if len(parts) == 1:
        return [whole_sheet]
    sheets: list[TableSheet] = []
    for text, part in parts:
        sheet = build_table(item, part, pair)
        commands = () if sheets else whole_sheet.commands
        title = f"{sheet.title} ({text})"
        sheets.append(replace(sheet, title=title, setting=text, commands=commands))
    return sheets


def build_table(item: Table, cells: MeasuredRows, pair: str | None = None) -> TableSheet:
    """Builds a table with its measured cells, notes and commands, for one pair or for the paper's
    pairs. Raises UsageError if there is no such pair.
    """
    cells = cells.for_experiments_or_all(item.experiments)
    if pair is not None:
        refuse_unknown_pair(item, pair, cells)
    sheet = fill_in_measured_values(lay_out_printed_table(item.name, pair), cells)
    paper = load_paper(item.paper)
    requests = lay_out_printed_table(item.name, None).wanted
    pairs = sorted({request.pair for request in requests})
    if sheet.is_measured:
        own_notes = _list_measured_notes(item, sheet, cells, pair, pairs)
    else:
        own_notes = _list_unmeasured_notes(item, sheet, cells, pair)
    missing = cells.list_missing(sheet.wanted)
    commands = (
        build_training_and_run_commands(item.recipes[0], missing, cells) if item.recipes else []
    )
    notes = (
        *sheet.notes,
        *_note_unreadable_printed_numbers(paper.get_numbers_or_places(item.number)),
        *own_notes,
    )
    return replace(sheet, notes=notes, commands=tuple(commands))


def refuse_unknown_pair(item: Item, pair: str, cells: MeasuredRows) -> None:
    """Raises UsageError, with the choices, if a pair neither has a config nor was measured."""
    measured_pairs = cells.list_pairs()
    if pair not in (*read_pair_configs(), *measured_pairs):
        raise UsageError(
            f"unknown pair {pair!r}; measured below {str(cells.results)!r}: "
            f"{', '.join(measured_pairs) or 'none'}; spec-bench ls pairs lists the papers', "
            f"and a pair of your own is what its run calls so: pair.name={pair}; "
            "of a job that failed there are no rows"
        )


def fill_in_measured_values(sheet: TableSheet, measured: MeasuredRows) -> TableSheet:
    """Fills in the measured values. Drops an extra line, which the paper does not have, if it was
    not measured or if a line of the paper shows one of its rows.
    """
    heads = {column.name: column for column in sheet.columns}
    places = []
    for place in sheet.places:
        rows = [measured.find_row(request) for request in place["requests"]]
        value = _find_value(place, heads[place["column"]], rows, measured)
        places.append(place | value | {"row": rows[0] if rows else None})
    printed_row_ids = {id(place["row"]) for place in places if place["row"] and not place["extra"]}
    new_lines = {place["line"] for place in places if place["ours"]}
    new_lines -= {place["line"] for place in places if id(place["row"]) in printed_row_ids}
    places = [place for place in places if not place["extra"] or place["line"] in new_lines]
    for sign, rivals in iter_signs_and_rival_places(places, sheet.columns):
        exact = [place for place in rivals if place["ours"] and not place["mark"]]
        ends = [sorted((sign * place["low"], sign * place["high"])) for place in exact]
        if len(exact) > 1 and not np.isnan(ends).any():
            best = max(range(len(ends)), key=lambda place: ends[place][0])
            next_high = max(high for place, (_, high) in enumerate(ends) if place != best)
            exact[best]["ours_best"] = ends[best][0] > next_high
    return replace(sheet, places=places)


def _find_value(
    place: Place, column: PaperColumn, rows: Sequence[Row | None], cells: MeasuredRows
) -> dict[str, Any]:
    """Returns the fields of a place's measured value, or the reason why there is none; an empty
    dict if the place requests no cells.
    """
    values = []
    for request, row in zip(place["requests"], rows, strict=True):
        if row is None:
            return {"state": _explain_absence(request, cells)}
        if row["status"] == "failed":
            return {"state": f"failed: {get_failure_reason(row)}"}
    known_rows = [row for row in rows if row]
    for row in known_rows:
        number = column.by_protocol.get(get_protocol(row), place["number"])
        value = _read_value(row, number, column.scale)
        if value is None:
            return {"state": get_empty_reason(row, place["number"]) or place["empty"] or NO_VALUE}
        values.append(value)
    if not values:
        return {}
    measured_value = values[0]
    if len(values) > 1:
        mark = values[0]["mark"] or values[1]["mark"]
        measured_value = {
            "mark": mark,
            **_compute_ratio_or_difference(place, column, known_rows, values, cells),
        }
    is_comparable = place["papers"] and not measured_value.get("doubted")
    printed = get_printed_number(place) if is_comparable else nan
    gap = measured_value.get("value", nan) - printed
    return {**measured_value, "number": number, "ours": True, "difference": gap}


def _compute_ratio_or_difference(
    place: Place,
    column: PaperColumn,
    rows: Sequence[Row],
    values: Sequence[Mapping[str, Any]],
    cells: MeasuredRows,
) -> dict[str, Any]:
    """Computes the ratio or difference of two cells and its interval, paired by prompt. Without
    records the interval is NaN.
    """
    is_ratio = place["compared"] == "over"
    if is_ratio and rows[0] is rows[1]:
        return dict.fromkeys(_ENDS, 1.0)
    gap = compute_difference([[(rows[:1], rows[1:])]], place["number"], cells.records, is_ratio)
    if gap is None or gap.ends_on_value_scale is None:
        first_value, second_value = (number["value"] for number in values)
        value = first_value / second_value if is_ratio else first_value - second_value
        return dict(zip(_ENDS, (value, nan, nan), strict=True))
    numbers = (gap.value, *gap.ends_on_value_scale)
    ends = [1 + number if is_ratio else number * column.scale for number in numbers]
    return dict(zip(_ENDS, ends, strict=True))


def _explain_absence(request: RequestedCell, cells: MeasuredRows) -> str:
    nearest = cells.find_row(request.any_sampling)
    if nearest is None:
        return NOT_RUN
    requested_sampling = {name: getattr(request, name) for name in SAMPLING}
    differing_texts = (
        f"{n} {nearest[n]:g}" for n, e in requested_sampling.items() if e not in (None, nearest[n])
    )
    return f"at {', '.join(differing_texts)} alone"


def _read_value(row: Row, column: str, scale: float) -> dict[str, Any] | None:
    """Reads a row's value of a column, with its mark; None if the value is empty."""
    lossless = str(row.get("lossless", "exact"))
    doubt = get_timing_doubt(row, column).partition(":")[0]
    mark = doubt if lossless in ("exact", "nan", "") else lossless
    if column == "tree":
        return {"text": format_tree_widths(str(row["decoder"]), str(row["spec"])), "mark": mark}
    if column == "setting":
        return {"text": str(row["spec"]), "mark": mark}
    if column == "size":
        text = format_drafter_size(row)
        return None if text is None else {"text": text, "mark": mark}
    ends = zip(_ENDS, get_number_and_ends(row, column), strict=True)
    numbers: dict[str, Any] = {name: each * scale for name, each in ends if each is not None}
    return {**numbers, "mark": mark, "doubted": bool(doubt)} if "value" in numbers else None


def _list_measured_notes(
    item: Table,
    sheet: TableSheet,
    cells: MeasuredRows,
    pair: str | None,
    paper_pairs: Sequence[str],
) -> list[str]:
    requests = list_requested_cells(sheet.places)
    measured_places = [place for place in sheet.places if place["ours"]]
    measured_rows = filter(None, map(cells.find_row, requests))
    rows = [row for row in measured_rows if row["status"] != "failed"]
    source = f"Paper: measured on {load_paper(item.paper).machine}."
    if item.unprinted is not None:
        source = "Nobody has printed this table."
    notes = [
        f"{source} Ours: {_describe_shown_rows(rows)}. {describe_intervals(rows)} Speeds of two "
        "machines differ for more than one reason.",
        *([POOLED] if any("," in str(row.get(SEEDS, "")) for row in rows) else []),
    ]
    if any(column.best for column in sheet.columns):
        notes.append(BEST if item.unprinted is None else OURS_BEST)
    notes += _note_stand_in_drafts(sheet)
    if pair is not None and pair not in paper_pairs:
        config = read_pair_configs().get(pair)
        small_note = ", small models on invented text" if config and is_embedded(config) else ""
        pair_text = (
            "not the paper's: nothing is subtracted. Ratios to plain decoding (tokens a call, "
            "MBSU, speed-up) stand side by side."
        )
        if item.unprinted is not None:
            pair_text = f"where {_join_and_shorten_names(paper_pairs)} is meant."
        notes.append(f"Ours is pair {pair}{small_note}, {pair_text}")
    protocols = load_paper(item.paper).protocols
    for protocol in dict.fromkeys(map(get_protocol, rows)):
        notes += [f"Protocol {protocol}: {text}" for text in getattr(protocols, protocol, ())]
    if foreign_rows := [row for row in rows if row["experiment"] not in item.experiments]:
        experiments = ", ".join(sorted({str(row["experiment"]) for row in foreign_rows}))
        notes.append(
            f"{len(foreign_rows)} of {len(rows)} cells come from other experiments "
            f"({experiments}): their speeds were not measured side by side with the rest."
        )
    notes += cells.unsplit.describe_other_sampling(requests)
    notes += _note_stop_rules(rows)
    notes += dict.fromkeys([*_note_turn_rules(rows), *_note_overlong_prompts(rows)])
    notes += describe_differences_from_papers(rows, {place["number"] for place in measured_places})
    marks = {place["mark"] for place in measured_places}
    never_best = "Such rows never stand out as best."
    notes += [f"Ours, {doubt}." for doubt in names.summarise_doubts(rows)]
    notes += [f"{text} {never_best}" for mark, text in MEANINGS.items() if mark in marks]
    return [
        *notes,
        *_note_tree_search(item, sheet, cells),
        *_note_intervals_of_two_cells(measured_places),
    ]


def _list_unmeasured_notes(
    item: Table, sheet: TableSheet, cells: MeasuredRows, asked_pair: str | None
) -> list[str]:
    """Lists the notes of an unmeasured table, with other pairs that have measured cells."""
    bold = item.unprinted is None and any(column.best for column in sheet.columns)
    notes = [f"{BEST.split(';')[0]}."] if bold else []
    if not item.recipes:
        return notes
    pairs = sorted({request.pair for request in sheet.wanted})
    source = "Paper's numbers only: no" if item.unprinted is None else "Nobody has printed it: no"
    place = f"cell of this table was run on {_join_and_shorten_names(pairs)}" if pairs else NO_PAIR
    notes += [f"{source} {place}.", *cells.unsplit.describe_other_sampling(sheet.wanted)]
    other_pairs = [
        pair
        for pair in cells.list_pairs({request.task for request in sheet.wanted})
        if pair not in pairs
        and any(cells.find_row(request._replace(pair=pair)) for request in sheet.wanted)
    ]
    if other_pairs and asked_pair is None:
        notes.append(
            f"Some of it was measured on {', '.join(other_pairs)}: "
            f"add --pair {other_pairs[0]} to see it."
        )
    return [*notes, *_note_stand_in_drafts(sheet)]


def _describe_shown_rows(rows: Sequence[Row]) -> str:
    """Describes the rows shown: pairs, prompts, machines, settings, seeds and files."""
    pairs = sorted({str(row["pair"]) for row in rows})
    prompts = sorted({int(row["prompts"]) for row in rows if not pd.isna(row.get("prompts"))})
    seeds = sorted({int(s) for row in rows for s in str(row.get(SEEDS, row["seed"])).split(",")})
    count = f"{prompts[0]}" if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
    files = sorted({str(row["file"]) for row in rows})
    return (
        f"pair {_join_and_shorten_names(pairs)}, {count} prompts a cell, "
        f"{_describe_machines_and_settings(rows)}, "
        f"seed {_join_and_shorten_names([str(s) for s in seeds])}, "
        f"from {_join_and_shorten_names(files)}"
    )


def _describe_machines_and_settings(rows: Sequence[Row]) -> str:
    """Describes the machines, sampling settings, batch sizes and answer limits
    of the rows shown.
    """
    texts_by_setting = []
    for name in ("machine", *SAMPLING, "batch_size", "max_new_tokens"):
        values = sorted({row[name] for row in rows if not pd.isna(row.get(name))})
        if values == _ALL_KEPT.get(name):
            continue
        texts = [str(value).removesuffix(".0") for value in values]
        by_task = group_by_key((row["task"], row[name]) for row in rows if row.get(name) in values)
        has_one_value_per_task = all(len({*of_task}) == 1 for of_task in by_task.values())
        if name in SAMPLING and len(values) > 1 and has_one_value_per_task:
            tasks = group_by_key((of_task[0], task) for task, of_task in by_task.items())
            titles = [", ".join(map(names.get_task_title, tasks[value])) for value in values]
            texts = [f"{text} ({title})" for text, title in zip(texts, titles, strict=True)]
        texts_by_setting.append(
            f"{columns.get_column(name).title} {_join_and_shorten_names(texts) or 'not stated'}"
        )
    return ", ".join(texts_by_setting)


def _note_stand_in_drafts(sheet: TableSheet) -> list[str]:
    configs = map(read_pair_configs().get, sorted({request.pair for request in sheet.wanted}))
    return [
        f"Pair {config.name} drafts with {', '.join(config.drafts)} in place of the paper's draft "
        f"({config.stand_in})."
        for config in configs
        if config is not None and config.stand_in
    ]


def _note_stop_rules(rows: Sequence[Row]) -> list[str]:
    """Notes, by task, which stop rules end answers besides the end of sequence; papers let some of
    these answers run on.
    """
    task_and_rule = dict.fromkeys((row["task"], row.get("stop_rule")) for row in rows)
    rules = group_by_key((task, rule) for task, rule in task_and_rule if isinstance(rule, str))
    return [
        f"Ours, {names.get_task_title(task)}: an answer ends at "
        f"{' or '.join(ends).replace('+', ' or ')}, if not at its limit; task.stop=[] lets it run "
        "on."
        for task, task_rules in rules.items()
        if (ends := [rule for rule in task_rules if rule not in ("", "eos")])
    ]


def _note_turn_rules(rows: Sequence[Row]) -> Iterator[str]:
    """Yields notes on answer limits and on what later turns continue; a score under other rules is
    not comparable with the published one.
    """
    for row in rows:
        if (turns_kind := row.get("later_turns")) in _CONTINUED:
            limit = get_number(row, "max_new_tokens")
            limit_text = "" if limit is None else f"up to {limit:g} new tokens, "
            continued = _CONTINUED[str(turns_kind)]
            yield f"Ours, {names.get_task_title(row['task'])}: {limit_text}{continued}."


def _note_overlong_prompts(rows: Sequence[Row]) -> Iterator[str]:
    """Yields notes on prompts that were too long for the models; papers do not report theirs."""
    for row in rows:
        for column, action in _NO_ROOM.items():
            if count := get_number(row, column):
                place = f"Ours, {names.get_task_title(row['task'])} on {row['pair']}"
                prompts = format_count(count, "prompt")
                yield f"{place}: {prompts} {action}, too long for the models (task.overlong)."


def _note_tree_search(item: Table, sheet: TableSheet, cells: MeasuredRows) -> list[str]:
    """Notes how many trees a fastest tree was selected from, which picked trees are plain chains,
    and which tree an ablation used.
    """
    notes = []
    for decoder, note in item.searched.items():
        requests = [e for e in sheet.wanted if e.pick == "fastest" and e.decoder == decoder]
        among = cells
        found_rows = filter(None, map(cells.find_row, requests))
        if any(row.get("stage") == "confirm" for row in found_rows):
            note = _CONFIRMED
            among = cells.unsplit
        if counts := {*map(among.count_trees, requests)} - {0}:
            fewest = min(counts)
            highest = max(counts)
            notes.append(
                note.replace(
                    "{trees}", f"{fewest}" if fewest == highest else f"{fewest} to {highest}"
                )
            )
    # Picked trees that have one node per level, by title of a decoder other than SD.
    chains: dict[str, dict[str, None]] = {}
    for request in sheet.wanted:
        row = (
            cells.find_row(request) if request.pick != "spec" and request.decoder != "sd" else None
        )
        if row is not None and {*(parse_tree_spec(str(row["spec"])).widths or ())} == {1}:
            trees = chains.setdefault(names.get_decoder_style(request.decoder).title, {})
            trees[format_tree_widths(request.decoder, str(row["spec"]))] = None
    notes += [
        f"Ours, {title}: {' and '.join(trees)}, where picked, is a plain chain, one candidate a "
        "level: no more than SD."
        for title, trees in chains.items()
    ]
    common = [
        (request.pair, cells.find_most_shared_spec(request))
        for request in sheet.wanted
        if request.pick == "common"
    ]
    if any(spec for _, spec in common):
        common_trees = sorted({f"{pair} {spec.replace('-', 'x')}" for pair, spec in common if spec})
        notes.append(f"Ours, k-configuration: {', '.join(common_trees)}.")
    return notes


def _note_intervals_of_two_cells(places: Sequence[Place]) -> list[str]:
    """Notes how the intervals of ratios or differences were computed, or why there are none."""
    quantity = "ratio" if any(place["compared"] == "over" for place in places) else "difference"
    # A cell divided by itself has both ends at 1, which is no estimate.
    compared = [p["low"] for p in places if p["compared"] and p["low"] != p["high"]]
    notes = []
    if not all(map(isnan, compared)):
        notes.append(f"Our {quantity} of two rates: paired by prompt.")
    if any(map(isnan, compared)):
        reason = "the records by prompt that would pair its two cells are not beside the results"
        notes.append(f"Our {quantity} of two rates has no interval where {reason}.")
    return notes


def _join_and_shorten_names(names: Sequence[str]) -> str:
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


def _note_unreadable_printed_numbers(numbers: Iterable[Number]) -> list[str]:
    """Notes which printed numbers could not be read from the copy of a paper, with candidates."""
    twins_by_tree: dict[str, list[str]] = {}
    uncertain: dict[str, list[str]] = {}
    for row in (number for number in numbers if number["reason"]):
        tree = f"{names.get_decoder_style(row['decoder']).title} {row['spec']}"
        column = columns.get_column(row["metric"])
        metric = "accuracy" if column.kind == "score" else column.title
        if row["reason"] == "row_lost":
            twin = f"{metric} {row['twin_value']} (Table {row['twin_table']})"
            twins_by_tree.setdefault(tree, []).extend([twin] if row["twin_value"] else [])
        else:
            uncertain.setdefault(row["candidates"], []).append(f"{metric} of {tree}")
    notes = []
    for tree, values in twins_by_tree.items():
        text = f"lost: the copy of the paper that was read has no line for {tree}."
        if values:
            text += f" Its twin table prints for the same tree: {', '.join(values)}."
        notes.append(text)
    for candidates, cells in uncertain.items():
        either = " and ".join(candidates.split("|"))
        notes.append(
            f"lost: {either} belong to {' and '.join(cells)}; which to which could not be read."
        )
    if notes:
        notes.append("No printed number is bold beside a lost one, which may be the best.")
    return notes
