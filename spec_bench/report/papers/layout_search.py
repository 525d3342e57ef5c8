"""MCSD's main tables: datasets and methods down, targets across, with the tree that was best.

Paper: Multi-Candidate Speculative Decoding, arXiv:2401.06706, Tables 2, 3, 5, 6. Its method's tree
is the fastest of those searched; SD stands beside it at the same depth and at its own best depth.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, Pick, Wanted, mark_best
from spec_bench.report.papers.index import Item, Paper
from spec_bench.report.papers.pairs import wanted_pair
from spec_bench.report.papers.reference import reference_rows
from spec_bench.report.papers.titles import TASKS, titled

_METHODS: dict[str, tuple[str, str, Pick]] = {
    "ar": ("AR", "ar", "spec"),
    "sd_same_gamma": ("SD (same γ)", "sd", "same depth"),
    "sd_best_gamma": ("SD (best γ)", "sd", "fastest"),
    "mcsd": ("MCSD", "mcsd_wor", "fastest"),
}
_COLUMNS = {
    "spec": Column("k_config", "k-configuration", best=False, text=True),
    "speedup": Column("speedup", "speedup (×)", digits=2),
    "block_efficiency": Column("block_efficiency", "τ", digits=2),
}


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """A table of printed numbers.

    Args:
        paper: MCSD.
        item: which table.
        pair: the one pair whose rows are wanted; None: all of the table's own. Another pair gets
            columns of its own.
    """
    rows = reference_rows(paper, item.number)
    draft = next(row["draft"] for row in rows if row["draft"])
    targets = list(dict.fromkeys(row["target"] for row in rows))
    pairs = {target: wanted_pair(target, draft, pair) for target in targets}
    if pair and not any(pairs.values()):
        targets.append(pair)
        pairs[pair] = pair
    by_place = {
        (row["task"], row["temperature"], row["method"], row["target"], row["metric"]): row
        for row in rows
    }
    lines = []
    for task, temperature, method in dict.fromkeys(place[:3] for place in by_place):
        title, decoder, pick = _METHODS[method]
        cells = []
        for target in targets:
            own = pairs[target]
            wanted = own and Wanted(
                pair=own,
                task=task,
                decoder=decoder,
                spec="-" if decoder == "ar" else "",
                temperature=float(temperature) if temperature else None,
                pick=pick,
            )
            speed = by_place.get((task, temperature, method, target, "speedup"), {})
            tau = by_place.get((task, temperature, method, target, "block_efficiency"), {})
            printed = (speed.get("k_config", ""), speed.get("value", ""), tau.get("value", ""))
            cells += [
                Cell(text, wanted=wanted or None, column=column)
                for text, column in zip(printed, _COLUMNS, strict=True)
            ]
        block = f"{task} {temperature}" if temperature else ""
        labels = (titled(TASKS, task), title, temperature)
        lines.append(Line(labels, tuple(cells), block))
    columns = _columns(targets)
    return Grid(
        name=item.name,
        title=item.title.format(
            draft=draft, targets=" and ".join(dict.fromkeys(row["target"] for row in rows))
        ),
        heads=("dataset", "method", "temperature"),
        columns=columns,
        lines=mark_best(lines, columns),
    )


def _columns(targets: Sequence[str]) -> tuple[Column, ...]:
    """The columns of every target, side by side."""
    return tuple(
        Column(
            f"{target}_{column.name}".replace(" ", "_"),
            column.title,
            target,
            column.digits,
            column.best,
            column.text,
        )
        for target in targets
        for column in _COLUMNS.values()
    )
