"""DSBD's table: four methods that keep the keys and values of one sequence, two pairs, two tasks.

Paper: Dynamic-Width Speculative Beam Decoding, arXiv:2409.16560, Table 1. It does not print the
trees of its methods, so ours are the recipe's and stand in a column of their own.
"""

from __future__ import annotations

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, Wanted
from spec_bench.report.papers.index import Item, Paper, recipe_cells
from spec_bench.report.papers.pairs import wanted_pair
from spec_bench.report.papers.reference import Row, reference_rows
from spec_bench.report.papers.titles import TASKS, titled

_METHODS = {
    "multinomial": ("multinomial", "ar"),
    "specdecode": ("SD", "sd"),
    "specinfer": ("SpecInfer", "specinfer"),
    "dsbd": ("DSBD", "dsbd_one_cache"),
}
_SCORES = {"squad": ("em", "exact_match"), "spider": ("ea", "execution_accuracy")}
_NUMBERS = (("ppl", "perplexity"), ("tokens_per_second", "token_rate"))
_ENERGY = ("joules_per_token", "energy_j_per_token")
_COLUMNS = (
    Column("setting", "setting (not printed)", best=False, text=True),
    Column("score", "EM / EA (%)", digits=1, best=False),
    Column("ppl", "perplexity", best=False),
    Column("tokens_per_second", "tokens/s", digits=2, best=False),
    Column("joules_per_token", "J/token", best=False),
)
_NOTES = (
    "EM: exact match (SQuAD), EA: execution accuracy (Spider), both in percent. Perplexity of the "
    "output under the target at temperature 1, nothing truncated; lower is better.",
    "The paper states neither the depth of SD, the tree of SpecInfer, nor W_S, γ and t of DSBD in "
    "this table. The settings are ours: those of the recipe, or where other cells were measured "
    "instead the first of them. DSBD's are written W_S x γ @ t.",
    "The paper's J/token are sums of one nvidia-smi sample a second. Ours need a meter: add "
    "energy=nvml, energy=nvidia_smi or energy=rapl to the command (energy=paper for its own way).",
)


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """The table of printed numbers.

    Args:
        paper: DSBD.
        item: the table.
        pair: the one pair whose rows are wanted; None: both of the table's own. Another pair gets
            lines of its own.
    """
    rows = reference_rows(paper, item.number)
    drafts = {row["target"]: row["draft"] for row in rows if row["draft"]}
    specs = _specs(item)
    printed: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        own = printed.setdefault((row["task"], row["target"], row["method"]), {})
        own[row["metric"]] = row["value"]
    lines, found = [], False
    for (task, target, method), values in printed.items():
        wanted = wanted_pair(target, drafts[target], pair)
        found = found or wanted is not None
        lines.append(_line(paper, task, target, method, values, wanted, specs))
    if pair and not found:
        lines += _other_lines(paper, pair, rows, specs)
    return Grid(
        name=item.name,
        title=item.title,
        heads=("task", "target", "method"),
        columns=_COLUMNS,
        lines=tuple(lines),
        notes=_NOTES,
    )


def _specs(item: Item) -> dict[str, str]:
    """Decoder -> its tree in the recipe; the baseline is no cell of it."""
    cells = (cell.partition(":") for cell in recipe_cells(item.recipes[0]))
    return {"ar": "-"} | {decoder: spec for decoder, _, spec in cells}


def _other_lines(paper: Paper, pair: str, rows: list[Row], specs: dict[str, str]) -> list[Line]:
    """Lines without printed numbers for a pair that the paper does not have."""
    tasks = dict.fromkeys(row["task"] for row in rows)
    return [
        _line(paper, task, pair, method, {}, pair, specs) for task in tasks for method in _METHODS
    ]


def _line(
    paper: Paper,
    task: str,
    target: str,
    method: str,
    values: dict[str, str],
    pair: str | None,
    specs: dict[str, str],
) -> Line:
    """One method on one task with one target."""
    title, decoder = _METHODS[method]
    sampling = paper.settings["sampling"]
    wanted = pair and Wanted(
        pair=pair,
        task=task,
        decoder=decoder,
        spec=specs[decoder],
        temperature=sampling["temperature"],
        top_k=sampling["top_k"],
        top_p=sampling["top_p"],
        pick="preferred",
    )
    name, column = _SCORES[task]
    cells = [Cell(wanted=wanted or None, column="setting")]
    cells.append(Cell(values.get(name, ""), wanted=wanted or None, column=column, scale=100.0))
    cells += [
        Cell(values.get(theirs, ""), wanted=wanted or None, column=ours)
        for theirs, ours in (*_NUMBERS, _ENERGY)
    ]
    return Line((titled(TASKS, task), target, title), tuple(cells), f"{task}/{target}")
