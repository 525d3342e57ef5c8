"""Notes on printed numbers that the copy of a paper has lost."""

from __future__ import annotations

from collections.abc import Iterable

from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.published import Row as Number


def lost_notes(numbers: Iterable[Number]) -> list[str]:
    """Notes on lost numbers, with the reasons and the candidates."""
    lost: dict[str, list[str]] = {}
    uncertain: dict[str, list[str]] = {}
    for row in (number for number in numbers if number["reason"]):
        tree = f"{names.decoder(row['decoder']).title} {row['spec']}"
        metric = _title_of(row["metric"])
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


def _title_of(metric: str) -> str:
    column = columns.column(metric)
    return "accuracy" if column.kind == "score" else column.title
