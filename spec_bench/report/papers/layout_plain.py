"""Tables whose reference has a row per number: labels on the left, metrics on top, as given.

For papers without a recipe: ReDrafter (arXiv:2403.09919).
"""

from __future__ import annotations

from typing import Any

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, mark_best
from spec_bench.report.papers.index import Item, Paper
from spec_bench.report.papers.reference import Row, reference_rows
from spec_bench.report.papers.titles import TASKS, titled

_NAMES = {
    **TASKS,
    "ar": "AR",
    "medusa": "Medusa",
    "redrafter": "ReDrafter",
}


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """A table of printed numbers; no pair can be asked for."""
    heads: dict[str, str] = item.settings["rows"]
    given: dict[str, dict[str, Any]] = item.settings["columns"]
    merged = list(dict.fromkeys(entry.get("merge", name) for name, entry in given.items()))
    titles = {
        name: " / ".join(
            entry["title"] for key, entry in given.items() if entry.get("merge", key) == name
        )
        for name in merged
    }
    best = {entry.get("merge", name): entry.get("best", False) for name, entry in given.items()}
    columns = tuple(Column(name, titles[name], best=best[name]) for name in merged)
    grouped: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in reference_rows(paper, item.number):
        column = given[row["metric"]].get("merge", row["metric"])
        grouped.setdefault(tuple(row[head] for head in heads), {})[column] = row
    lines = []
    for labels, values in grouped.items():
        some = next(iter(values.values()))
        cells = tuple(
            Cell(values[name]["value"], values[name].get("plus_minus", "")) for name in merged
        )
        block = "/".join(some[key] for key in item.settings["blocks"])
        lines.append(Line(tuple(_written(label) for label in labels), cells, block))
    notes = [f"Not measurable here: {paper.settings['unmeasured']}."]
    return Grid(
        name=item.name,
        title=item.title,
        heads=tuple(heads.values()),
        columns=columns,
        lines=mark_best(lines, columns),
        notes=tuple(notes),
    )


def _written(label: str) -> str:
    """A label for people; a count of parameters in billions."""
    if label.isdigit() and len(label) > 6:
        return f"{int(label) / 1e9:.2f}B"
    return titled(_NAMES, label)
