"""MCSD's ablation: verification rules with and without tree attention, four targets across.

Paper: Multi-Candidate Speculative Decoding, arXiv:2401.06706, Table 4.
"""

from __future__ import annotations

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, Wanted
from spec_bench.report.papers.index import Item, Paper
from spec_bench.report.papers.pairs import wanted_pair
from spec_bench.report.papers.reference import reference_rows

_METHODS = {
    "mcss_without_replacement": ("without replacement", "mcsd_wor"),
    "mcss_with_replacement": ("with replacement", "mcsd"),
    "mcns": ("naive (MCNS)", "mcns"),
}
_COLUMNS = (("speedup", "speedup (×)"), ("block_efficiency", "τ"))


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """A table of printed numbers; rules that the paper has with tree attention only are extra.

    Args:
        paper: MCSD.
        item: the table.
        pair: the one pair whose rows are wanted; None: all of the table's own. Another pair gets
            columns of its own.
    """
    rows = reference_rows(paper, item.number)
    draft, task, temperature = (rows[0][key] for key in ("draft", "task", "temperature"))
    targets = list(dict.fromkeys(row["target"] for row in rows))
    pairs = {target: wanted_pair(target, draft, pair) for target in targets}
    if pair and not any(pairs.values()):
        targets.append(pair)
        pairs[pair] = pair
    printed = {
        (row["method"], row["tree_attention"], row["target"], row["metric"]): row["value"]
        for row in rows
    }
    lines = []
    for attention in ("true", "false"):
        for method, (title, decoder) in _METHODS.items():
            cells = []
            for target in targets:
                own = pairs[target]
                wanted = own and Wanted(
                    pair=own,
                    task=task,
                    decoder=decoder,
                    temperature=float(temperature),
                    tree_attention=attention == "true",
                    pick="common",
                )
                cells += [
                    Cell(
                        printed.get((method, attention, target, column), ""),
                        wanted=wanted or None,
                        column=column,
                    )
                    for column, _ in _COLUMNS
                ]
            labels = (title, "yes" if attention == "true" else "no")
            extra = not any(cell.printed for cell in cells)
            lines.append(Line(labels, tuple(cells), f"tree attention {attention}", extra))
    return Grid(
        name=item.name,
        title=f"{item.title}; draft {draft}, Alpaca, temperature {temperature}",
        heads=("algorithm", "tree attention"),
        columns=tuple(
            Column(f"{target}_{name}", title, target, 2, best=False)
            for target in targets
            for name, title in _COLUMNS
        ),
        lines=tuple(lines),
    )
