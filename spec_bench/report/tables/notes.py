"""Notes for readers of a filled table: whose numbers, which rows, which marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from spec_bench.report.data.differences import differences
from spec_bench.report.data.rows import Row
from spec_bench.report.data.seeds import POOLED, SEEDS
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.papers.paper import Paper, Table
from spec_bench.report.tables.measured import NOWHERE, Measured
from spec_bench.report.tables.printed import Sheet, tree_text
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.names import MEANINGS
from spec_bench.vocabulary.published import Row as Number
from spec_bench.vocabulary.spec import parse

BEST = (
    "Bold: the paper's best of each block and column; ours only where its interval lies above all "
    "others of the block and column."
)

OURS_BEST = "Bold: where an interval lies above all others of the block and column."

_CONFIRMED = (
    "Ours: the fastest of the few that a search of {trees} trees confirmed, on prompts that the "
    "search had not seen. That it is the fastest of these is not part of the interval."
)


def notes_for(
    paper: Paper,
    item: Table,
    sheet: Sheet,
    measured: Measured,
    asked: str | None,
    paper_pairs: Sequence[str],
) -> list[str]:
    """The notes below a table, beside those of its layout."""
    if not sheet.measured:
        return _not_measured(item, sheet, measured, asked)
    found = (measured.listed[place] for place in measured.find(sheet.wanted) if place != NOWHERE)
    rows = [row for row in found if row["status"] != "failed"]
    whose = f"Paper: measured on {paper.machine}."
    if item.unprinted is not None:
        whose = "Nobody has printed this table."
    notes = [
        f"{whose} Ours: {_origin(rows)}. In brackets: 95% intervals, "
        "bootstrap over prompts. Speeds of two machines differ for more than one reason.",
        *([POOLED] if any("," in str(row.get(SEEDS, "")) for row in rows) else []),
    ]
    if any(column.best for column in sheet.columns):
        notes.append(BEST if item.unprinted is None else OURS_BEST)
    notes += _stand_ins(sorted({*sheet.wanted.pair}))
    if asked is not None and asked not in paper_pairs:
        config = pair_configs().get(asked)
        small = config is not None and config.target.startswith("embedded:")
        what = ", small models on invented text" if small else ""
        printed = "not the paper's: a difference is one between models, too."
        if item.unprinted is not None:
            printed = f"where {_some(paper_pairs)} is meant."
        notes.append(f"Ours is pair {asked}{what}, {printed}")
    notes += _others(item, rows)
    notes += _stops(rows)
    notes += _turns(rows)
    notes += _overlong(rows)
    notes += differences(rows, {*sheet.cells.number[sheet.cells.ours]})
    notes += _marks(sheet)
    notes += _searches(item, sheet, measured)
    return [*notes, *_compared(sheet)]


def _compared(sheet: Sheet) -> list[str]:
    """Notes on the intervals of values that compare two cells, or on their absence."""
    two = sheet.asked[sheet.asked.role != "ours"].set_index(["line", "column"]).role
    cells = sheet.cells.set_index(["line", "column"])
    cells = cells[cells.index.isin(two.index) & cells.ours]
    cells = cells[cells.low.isna() | (cells.low != cells.high)]  # 1 is no estimate
    if cells.empty:
        return []
    what = "ratio" if (two == "over").any() else "difference"
    paired = cells.low.notna()
    notes = [f"Our {what} of two rates: paired by prompt."] if paired.any() else []
    if not paired.all():
        why = "the records by prompt that would pair its two cells are not beside the results"
        notes.append(f"Our {what} of two rates has no interval where {why}.")
    return notes


def _not_measured(item: Table, sheet: Sheet, measured: Measured, asked: str | None) -> list[str]:
    """The notes of an unmeasured table, with the pairs that have measured cells."""
    wanted = sheet.wanted
    bold = item.unprinted is None and any(column.best for column in sheet.columns)
    notes = [f"{BEST.split(';')[0]}."] if bold else []
    if not item.recipes:
        return notes
    pairs = sorted({*wanted.pair})
    whose = "Paper's numbers only: no" if item.unprinted is None else "Nobody has printed it: no"
    notes.append(f"{whose} cell of this table was run on {_some(pairs)}.")
    others = [
        pair
        for pair in measured.pairs(wanted.task)
        if pair not in pairs and {*measured.find(wanted.assign(pair=pair))} - {NOWHERE}
    ]
    if others and asked is None:
        notes.append(
            f"Some of it was measured on {', '.join(others)}: add --pair {others[0]} to see it."
        )
    notes += _stand_ins(pairs)
    return notes


def _origin(rows: Sequence[Row]) -> str:
    """Pairs, prompts and seeds of the rows shown."""
    pairs = sorted({str(row["pair"]) for row in rows})
    prompts = sorted({int(row["prompts"]) for row in rows if not pd.isna(row.get("prompts"))})
    seeds = sorted({int(s) for row in rows for s in str(row.get(SEEDS, row["seed"])).split(",")})
    count = f"{prompts[0]}" if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
    files = sorted({str(row["file"]) for row in rows})
    return (
        f"pair {_some(pairs)}, {count} prompts a cell, seed {_some([str(s) for s in seeds])}, "
        f"from {_some(files)}"
    )


def _stand_ins(pairs: Sequence[str]) -> list[str]:
    """Notes on drafts that stand in for drafts that were never published."""
    notes = []
    for pair in pairs:
        config = pair_configs().get(pair)
        if config is not None and config.stand_in:
            notes.append(
                f"Pair {pair} drafts with {', '.join(config.drafts)} in place of the paper's draft "
                f"({config.stand_in})."
            )
    return notes


def _others(item: Table, rows: Sequence[Row]) -> list[str]:
    """Cells that another experiment than the recipe's measured."""
    other = [row for row in rows if row["experiment"] not in item.experiments]
    if not other:
        return []
    names = sorted({str(row["experiment"]) for row in other})
    return [
        f"{len(other)} of {len(rows)} cells come from other experiments ({', '.join(names)}): "
        "their speeds were not measured side by side with the rest."
    ]


def _stops(rows: Sequence[Row]) -> list[str]:
    """Stops of answers beside the end of sequence, by task: papers let some of them run on."""
    rules: dict[str, list[str]] = {}
    for row in rows:
        rule = row.get("stop_rule")
        if isinstance(rule, str) and rule not in ("", "eos", *rules.get(row["task"], ())):
            rules.setdefault(row["task"], []).append(rule)
    return [
        f"Ours, {names.task(task)}: an answer ends at {' or '.join(ends).replace('+', ' or ')}, if "
        "not at its limit; task.stop=[] lets it run on."
        for task, ends in rules.items()
    ]


_CONTINUED = {
    "own": "later turns continue the decoder's own answers",
    "fixed": "later turns continue fixed answers, the same for every decoder",
    "none": "first turns only",
}


def _turns(rows: Sequence[Row]) -> list[str]:
    """Notes on the rules of conversations: a score by other rules is not the published one."""
    notes: dict[str, None] = {}
    for row in rows:
        if (held := row.get("later_turns")) in _CONTINUED:
            limit = row.get("max_new_tokens")
            limit = "" if limit is None or pd.isna(limit) else f"up to {limit:g} new tokens, "
            notes[f"Ours, {names.task(row['task'])}: {limit}{_CONTINUED[str(held)]}."] = None
    return list(notes)


_NO_ROOM = {"prompts_skipped": "left out", "prompts_truncated": "cut in the middle"}


def _overlong(rows: Sequence[Row]) -> list[str]:
    """Prompts that the models had no room for: papers do not report on theirs."""
    notes: dict[str, None] = {}
    for row in rows:
        for column, done in _NO_ROOM.items():
            if (count := row.get(column)) and not pd.isna(count):
                where = f"Ours, {names.task(row['task'])} on {row['pair']}: {count:g}"
                notes[f"{where} prompts {done}, too long for the models (task.overlong)."] = None
    return list(notes)


def _marks(sheet: Sheet) -> list[str]:
    """The meanings of the marks that occur."""
    marks = {*sheet.cells.mark[sheet.cells.ours]}
    return [
        f"{text} Such rows never stand out as best."
        for mark, text in MEANINGS.items()
        if mark in marks
    ]


def _searches(item: Table, sheet: Sheet, measured: Measured) -> list[str]:
    """The number of trees that a fastest one was searched among; the tree of an ablation."""
    notes, wanted = [], sheet.wanted
    for decoder, note in item.searched.items():
        searched = wanted[(wanted.pick == "fastest") & (wanted.decoder == decoder)]
        among, found = measured, [place for place in measured.find(searched) if place != NOWHERE]
        if any(measured.listed[place].get("stage") == "confirm" for place in found):
            note, among = _CONFIRMED, measured.whole
        counts = {*among.trees(searched)} - {0}
        if counts:
            few, many = min(counts), max(counts)
            notes.append(note.replace("{trees}", f"{few}" if few == many else f"{few} to {many}"))
    notes += _chains(wanted, measured)
    trees = set()
    for each in wanted[wanted.pick == "common"].itertuples(index=False):
        if spec := measured.common_spec(each):
            trees.add(f"{each.pair} {spec.replace('-', 'x')}")
    if trees:
        notes.append(f"Ours, k-configuration: {', '.join(sorted(trees))}.")
    return notes


def _chains(wanted: pd.DataFrame, measured: Measured) -> list[str]:
    """Trees with one node a level that a decoder of trees was picked with."""
    chains: dict[str, dict[str, None]] = {}
    picked = wanted[(wanted.pick != "spec") & (wanted.decoder != "sd")]
    for decoder, place in zip(picked.decoder, measured.find(picked), strict=True):
        spec = "" if place == NOWHERE else str(measured.listed[place]["spec"])
        if spec and {*(parse(spec).widths or ())} == {1}:
            trees = chains.setdefault(names.decoder(decoder).title, {})
            trees[tree_text(decoder, spec)] = None
    return [
        f"Ours, {title}: {' and '.join(trees)}, where picked, is a plain chain, one candidate a "
        "level: no more than SD."
        for title, trees in chains.items()
    ]


def _some(names: Sequence[str]) -> str:
    """Up to four names."""
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


def lost_notes(numbers: Iterable[Number]) -> list[str]:
    """Notes on printed numbers that the copy of a paper has lost, with reasons and candidates."""
    lost: dict[str, list[str]] = {}
    uncertain: dict[str, list[str]] = {}
    for row in (number for number in numbers if number["reason"]):
        tree = f"{names.decoder(row['decoder']).title} {row['spec']}"
        column = columns.column(row["metric"])
        metric = "accuracy" if column.kind == "score" else column.title
        if row["reason"] == "row_lost":
            twin = f"{metric} {row['twin_value']} (Table {row['twin_table']})"
            lost.setdefault(tree, []).extend([twin] if row["twin_value"] else [])
        else:
            uncertain.setdefault(row["candidates"], []).append(f"{metric} of {tree}")
    notes = []
    for tree, known in lost.items():
        text = f"lost: the copy of the paper that was read has no line for {tree}."
        if known:
            text += f" Its twin table prints for the same tree: {', '.join(known)}."
        notes.append(text)
    for candidates, cells in uncertain.items():
        either = " and ".join(candidates.split("|"))
        notes.append(
            f"lost: {either} belong to {' and '.join(cells)}; which to which could not be read."
        )
    if notes:
        notes.append("The best of a block with lost cells is the best of those that could be read.")
    return notes
