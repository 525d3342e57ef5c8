"""RSD's tables: blocks of one draft length or budget, decoders and trees, four numbers.

Paper: Recursive Speculative Decoding, arXiv:2402.14160, Appendix C.5, Tables 1-54.
"""

from __future__ import annotations

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, Wanted, mark_best
from spec_bench.report.papers.index import Item, Paper
from spec_bench.report.papers.pairs import pair_of
from spec_bench.report.papers.reference import Gap, Row, gaps_of, reference_rows
from spec_bench.report.papers.titles import DECODERS, METRICS, TASKS, titled

_NUMBERS = ("block_efficiency", "mbsu", "token_rate", "accuracy")
_DIGITS = {"token_rate": 2}


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """A table of printed numbers.

    Args:
        paper: RSD.
        item: which table.
        pair: name of a pair whose rows are wanted; None: the paper's own.
    """
    rows = reference_rows(paper, item.number)
    first = rows[0]
    score = paper.settings["accuracy"][first["task"]]
    names = [name for name in _NUMBERS if name != "accuracy" or score]
    pair = pair or pair_of(first["target"], first["draft"])
    gaps = gaps_of(paper, item.number)
    lines = [_line(paper, row, names, score, pair, gaps) for row in rows]
    columns = tuple(
        Column(
            name,
            f"accuracy ({METRICS[score]})" if name == "accuracy" else METRICS[name],
            digits=_DIGITS.get(name, 3),
        )
        for name in names
    )
    title = item.title.format(
        target=first["target"], draft=first["draft"], task=titled(TASKS, first["task"])
    )
    return Grid(
        name=item.name,
        title=title,
        heads=(str(item.settings["block"]), "decoder", "tree"),
        columns=columns,
        lines=mark_best(lines, columns),
        notes=tuple(_gap_notes(gaps)),
    )


def _line(
    paper: Paper,
    row: Row,
    names: list[str],
    score: str | None,
    pair: str | None,
    gaps: dict[tuple[str, str, str], Gap],
) -> Line:
    """One decoder with one tree."""
    sampling = paper.settings["sampling"][row["task"]]
    wanted = pair and Wanted(
        pair=pair,
        task=row["task"],
        decoder=row["decoder"],
        spec=row["spec"],
        temperature=sampling["temperature"],
        top_p=sampling.get("top_p", 1.0),
    )
    cells = [
        Cell(
            printed=row[name],
            lost=(row["decoder"], row["spec"], name) in gaps,
            wanted=wanted or None,
            column=(score or "") if name == "accuracy" else name,
        )
        for name in names
    ]
    block = "" if row["decoder"] == "ar" else row["axis_value"]
    labels = (row["axis_value"], titled(DECODERS, row["decoder"]), row["spec"])
    return Line(labels, tuple(cells), block)


def _gap_notes(gaps: dict[tuple[str, str, str], Gap]) -> list[str]:
    """Why cells are lost and what they may have been."""
    notes = []
    lost: dict[str, list[str]] = {}
    uncertain: dict[tuple[str, ...], list[str]] = {}
    for (decoder, spec, column), gap in gaps.items():
        tree = f"{titled(DECODERS, decoder)} {spec}"
        if gap.reason == "row_lost":
            twin = f"{titled(METRICS, column)} {gap.twin_value} (Table {gap.twin_table})"
            lost.setdefault(tree, []).extend([twin] if gap.twin_value else [])
        else:
            uncertain.setdefault(gap.candidates, []).append(f"{titled(METRICS, column)} of {tree}")
    for tree, known in lost.items():
        text = f"lost: the copy of the paper that was read has no line for {tree}."
        if known:
            text += f" Its twin table prints for the same tree: {', '.join(known)}."
        notes.append(text)
    for candidates, cells in uncertain.items():
        notes.append(
            f"lost: {' and '.join(candidates)} belong to {' and '.join(cells)}; which to which "
            "could not be read."
        )
    if notes:
        notes.append("The best of a block with lost cells is the best of those that could be read.")
    return notes
