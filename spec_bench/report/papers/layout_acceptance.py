"""MCSD's acceptance rates: drafts and targets down, tasks across, one candidate or one and four.

Paper: Multi-Candidate Speculative Decoding, arXiv:2401.06706, Tables 1 and 7. Alpha at k is the
acceptance rate of a tree of one level with k children.
"""

from __future__ import annotations

from dataclasses import replace

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, Wanted
from spec_bench.report.papers.index import Item, Paper
from spec_bench.report.papers.pairs import wanted_pair
from spec_bench.report.papers.reference import Row, reference_rows
from spec_bench.report.papers.titles import TASKS, titled

_TITLES = {
    "acceptance_rate_k1": "α, k=1",
    "acceptance_rate_k4": "α, k=4",
    "acceptance_rate_delta": "Δα, k=4 less k=1",
}
_TUNED = (
    "Fine-tuning the draft raised the paper's rates that are underlined and its gains from four "
    "candidates that are bold, by the numbers as printed. The paper's own marks are the same but "
    "for one: it does not underline 0.69 of Vicuna-68M with LLaMA-13B (WMT14 En-De, k=4, "
    "temperature 0), up from 0.68."
)
_KEYS = ("draft", "target", "temperature")


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """A table of printed numbers.

    Args:
        paper: MCSD.
        item: which table.
        pair: the one pair whose rows are wanted; None: all of the table's own. Another pair gets
            lines of its own.
    """
    rows = reference_rows(paper, item.number)
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    keys = list(dict.fromkeys(tuple(row[key] for key in _KEYS) for row in rows))
    by_place = {(*(row[key] for key in _KEYS), row["task"], row["metric"]): row for row in rows}
    lines, own = [], False
    for draft, target, temperature in keys:
        wanted = wanted_pair(target, draft, pair)
        own = own or (wanted is not None)
        cells = [
            _cell(by_place[draft, target, temperature, task, metric], wanted)
            for task in tasks
            for metric in metrics
        ]
        lines.append(Line((draft, target, temperature), tuple(cells)))
    if pair and not own:
        lines += _other_lines(pair, rows, tasks, metrics)
    tuned: dict[str, str] = item.settings.get("tuned_from", {})
    return Grid(
        name=item.name,
        title=item.title,
        heads=_KEYS,
        columns=tuple(
            Column(f"{task}_{metric}", _TITLES[metric], titled(TASKS, task), 2, best=False)
            for task in tasks
            for metric in metrics
        ),
        lines=_mark_tuned(lines, tuned, metrics),
        notes=(_TUNED,) if tuned else (),
    )


def _cell(row: Row, pair: str | None) -> Cell:
    """One rate, or the difference of two."""
    one, four = (_wanted(row, pair, k) if pair else None for k in (1, 4))
    if row["metric"] == "acceptance_rate_delta":
        return Cell(row["value"], wanted=four, column="acceptance_rate", minus=one)
    wanted = one if row["metric"] == "acceptance_rate_k1" else four
    return Cell(row["value"], wanted=wanted, column="acceptance_rate")


def _wanted(row: Row, pair: str, candidates: int) -> Wanted:
    temperature = float(row["temperature"])
    return Wanted(pair, row["task"], "mcsd_wor", str(candidates), temperature)


def _other_lines(pair: str, rows: list[Row], tasks: list[str], metrics: list[str]) -> list[Line]:
    """Lines without printed numbers for a pair that the paper does not have."""
    lines = []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        cells = [
            replace(
                _cell(
                    {"metric": metric, "value": "", "task": task, "temperature": temperature}, pair
                ),
                printed="",
            )
            for task in tasks
            for metric in metrics
        ]
        lines.append(Line(("", pair, temperature), tuple(cells)))
    return lines


def _mark_tuned(lines: list[Line], tuned: dict[str, str], metrics: list[str]) -> tuple[Line, ...]:
    """Marks rates and differences that are larger than those of the draft before fine-tuning."""
    by_labels = {line.labels: line for line in lines}
    marked = []
    for line in lines:
        draft, target, temperature = line.labels
        before = by_labels.get((tuned.get(draft, ""), target, temperature))
        if draft not in tuned or before is None:
            marked.append(line)
            continue
        cells = []
        for index, (cell, old) in enumerate(zip(line.cells, before.cells, strict=True)):
            larger = float(cell.printed) > float(old.printed)
            gain = index % len(metrics) == 2
            cells.append(replace(cell, best=larger and gain, underlined=larger and not gain))
        marked.append(replace(line, cells=tuple(cells)))
    return tuple(marked)
