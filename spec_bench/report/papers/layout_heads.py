"""ReDrafter's Table 1: a target alone, with Medusa's heads and with a recurrent head.

Paper: Recurrent Drafter for Fast Speculative Decoding in Large Language Models, arXiv:2403.09919.
It prints neither Medusa's tree nor the beams, so ours are the recipe's and stand in a column of
their own. Cells of the embedded recipe with another tree, and exact ones at the temperature of
typical acceptance, get lines that the paper does not have.
"""

from __future__ import annotations

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, Wanted, mark_best
from spec_bench.report.papers.index import Item, Paper, recipe_cells
from spec_bench.report.papers.pairs import wanted_pair
from spec_bench.report.papers.reference import Row, reference_rows
from spec_bench.report.papers.titles import DECODERS

TASK = "mt_bench"
NO_JUDGE = "not judged"
_EXACT, _TYPICAL = "greedy", "typical"
_SAMPLED = "exact, sampled"
_NUMBERS = {
    "tokens_per_second": "token_rate",
    "tokens_per_step": "block_efficiency",
    "speedup": "speedup",
}
_COLUMNS = (
    Column("setting", "tree (not printed)", best=False, text=True),
    Column("drafter_params", "drafter size", best=False, text=True),
    Column("tokens_per_second", "tokens/s", digits=2),
    Column("tokens_per_step", "tokens/step", digits=2),
    Column("speedup", "speedup", digits=2),
    Column("quality", "MT-bench score", digits=2, best=False),
)


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """The table of printed numbers.

    Args:
        paper: ReDrafter.
        item: the table.
        pair: the one pair whose rows are wanted; None: both of the table's own. Another pair gets
            lines of its own.
    """
    printed: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in reference_rows(paper, item.number):
        own = printed.setdefault((row["target"], row["method"], row["acceptance"]), {})
        own["drafter_params" if row["metric"] == "drafter_size" else row["metric"]] = row["value"]
    lines, found = [], False
    for target in dict.fromkeys(target for target, _, _ in printed):
        wanted = wanted_pair(target, "", pair)
        found = found or wanted is not None
        own_lines = {key[1:]: values for key, values in printed.items() if key[0] == target}
        lines += _lines(item, target, own_lines, wanted)
    if pair and not found:
        methods = dict.fromkeys((method, acceptance) for _, method, acceptance in printed)
        lines += _lines(item, pair, {key: {} for key in methods}, pair)
    return Grid(
        name=item.name,
        title=item.title,
        heads=("target", "method", "acceptance"),
        columns=_COLUMNS,
        lines=mark_best(lines, _COLUMNS),
        notes=_notes(item),
    )


def _notes(item: Item) -> tuple[str, ...]:
    warm = item.settings["typical_temperature"]
    return (
        f"Ours, typical: at temperature {warm:g}, which the paper tuned and does not print, and "
        "relative to AR of the same temperature. The paper's are relative to greedy AR. With ours "
        f"stand, as lines that the paper does not have, AR and the exact rule at {warm:g}.",
        "The paper prints neither Medusa's tree nor the beams. Ours are the recipe's, or where "
        "other cells were measured instead the first of them; beams are written width x length.",
        "Tokens per step: accepted tokens and the one that follows them, per target call. MT-bench "
        "score: needs a judge; without one the column is empty.",
    )


def _lines(
    item: Item, target: str, printed: dict[tuple[str, str], dict[str, str]], pair: str | None
) -> list[Line]:
    """A target's lines: the paper's, then those of other trees and of sampled exact cells."""
    specs = _specs(item)
    warm = float(item.settings["typical_temperature"])
    others: dict[str, list[str]] = item.settings["other_trees"]
    lines = []
    for (method, acceptance), values in printed.items():
        typical = acceptance == _TYPICAL
        decoder = f"{method}_typical" if typical else method
        kind = (target, method, acceptance)
        lines.append(_line(kind, values, _wanted(pair, decoder, specs, warm if typical else 0.0)))
        for spec in others.get(method, ()) if pair else ():
            wanted = _wanted(pair, decoder, {decoder: spec}, warm if typical else 0.0, exactly=True)
            lines.append(_line(kind, {}, wanted, extra=True))
    for method in dict.fromkeys(method for method, _ in printed) if pair else ():
        for spec in (specs[method], *others.get(method, ())):
            wanted = _wanted(pair, method, {method: spec}, warm, exactly=True)
            lines.append(_line((target, method, _SAMPLED), {}, wanted, extra=True))
    return lines


def _specs(item: Item) -> dict[str, str]:
    """Decoder -> its tree in the recipe, or its config's; the baseline is no cell of it."""
    default: dict[str, str] = item.settings["default_trees"]
    cells = (cell.partition(":") for cell in recipe_cells(item.recipes[0]))
    return {"ar": "-"} | {decoder: spec or default[decoder] for decoder, _, spec in cells}


def _wanted(
    pair: str | None,
    decoder: str,
    specs: dict[str, str],
    temperature: float,
    exactly: bool = False,
) -> Wanted | None:
    """The measured cell of a method; None where no pair is wanted."""
    if pair is None:
        return None
    return Wanted(
        pair, TASK, decoder, specs[decoder], temperature, pick="spec" if exactly else "preferred"
    )


def _line(
    kind: tuple[str, str, str], values: Row, wanted: Wanted | None, extra: bool = False
) -> Line:
    """One method with one rule of acceptance."""
    target, method, acceptance = kind
    cells = [Cell(wanted=wanted, column="setting")]
    size = values.get("drafter_params", "")
    cells.append(Cell(size, wanted=wanted, column="drafter_size"))
    cells += [
        Cell(values.get(theirs, ""), wanted=wanted, column=ours)
        for theirs, ours in _NUMBERS.items()
    ]
    state = NO_JUDGE if wanted else ""
    cells.append(Cell(values.get("quality", ""), wanted=wanted, column="judge_score", state=state))
    labels = (target, DECODERS[method], acceptance)
    return Line(labels, tuple(cells), f"{target}/{acceptance}", extra)
