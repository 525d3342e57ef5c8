"""One group of cells as a sortable HTML table: every number with its interval drawn to scale."""

from __future__ import annotations

from html import escape

import pandas as pd

from spec_bench import columns
from spec_bench.columns import Column
from spec_bench.report.load import Group, Row, rows_of
from spec_bench.report.papers.titles import DECODERS, MARKS, titled

_DRAWN = ("block_efficiency", "speedup")  # their intervals are drawn, not only written
_OF_A_REQUEST = "token_rate_per_request"
_WIDTH = 96  # of a drawn interval, in pixels


SHOWN = (
    *(columns.column(name) for name in ("draft_calls", "nodes_per_call")),
    *(each for each in columns.COLUMNS if each.interval),
)


def results_table(group: Group) -> str:
    """The group's table; columns without a value are left out."""
    rows = group.rows
    shown = [c for c in SHOWN if c.name in rows and rows[c.name].notna().any()]
    if "batch_size" in rows and (rows.batch_size == 1).all():
        shown = [c for c in shown if c.name != _OF_A_REQUEST]  # all requests are one
    scales = {c.name: _scale(rows, c.name) for c in shown if c.name in _DRAWN}
    heads = [_head("decoder", "name of the algorithm"), _head("tree", "the papers' shorthand")]
    heads += [_head(c.title, c.definition) for c in shown]
    best = {
        c.name: _ahead(rows, c.name)
        for c in shown
        if c.name in ("speedup", "token_rate", "block_efficiency", "mbsu")
    }
    heads_differ = _several_drafts(rows)
    lines = []
    for index, row in zip(rows.index, rows_of(rows), strict=True):
        named = _short(str(row["draft"])) if index in heads_differ else ""
        ahead = {name for name, place in best.items() if place == index}
        lines.append(_line(row, named, shown, scales, ahead))
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _several_drafts(rows: pd.DataFrame) -> set[object]:
    """The cells that differ from another one in who drafts alone: their names tell them apart."""
    if "draft" not in rows:
        return set()
    counts = rows.groupby(["decoder", "spec"]).draft.transform("nunique")
    return set(rows.index[counts > 1])


def _short(draft: str) -> str:
    """The last part of a model's name; of heads in a training's folder that of the training."""
    return draft.rstrip("/").removesuffix("/heads").rsplit("/", 1)[-1]


def _head(title: str, definition: str) -> str:
    return (
        f'<th title="{escape(definition)}" aria-sort="none"><button type="button">{escape(title)}'
        "</button></th>"
    )


def _line(
    row: Row,
    draft: str,
    shown: list[Column],
    scales: dict[str, tuple[float, float]],
    best: set[str],
) -> str:
    """One cell of the experiment."""
    decoder = str(row["decoder"])
    lossless = str(row["lossless"])
    mark = (
        f' <span class="mark{" quiet" if lossless == "exact_beam" else ""}">'
        f"{escape(MARKS[lossless])}</span>"
        if lossless in MARKS
        else ""
    )
    if "tree_attention" in row and str(row["tree_attention"]).lower() == "false":
        mark += ' <span class="mark quiet">rows</span>'
    name = (
        f'<td><i class="dot {escape(decoder)}"></i>{escape(titled(DECODERS, decoder))}{mark}</td>'
    )
    label = f"{row['spec']} {draft}".strip()
    tree = f'<td class="tree">{escape(label)}</td>'
    if row["status"] == "failed":
        reason = escape(str(row["reason"]).split(" (trace")[0])
        return (
            f'<tr class="failed">{name}{tree}<td colspan="{len(shown)}">failed: {reason}</td></tr>'
        )
    cells = [_cell(row, column, scales.get(column.name), column.name in best) for column in shown]
    kind = ' class="baseline"' if decoder == "ar" else ""
    return f"<tr{kind}>{name}{tree}{''.join(cells)}</tr>"


def _cell(row: Row, column: Column, scale: tuple[float, float] | None, best: bool) -> str:
    """A number, its interval, and that drawn where the column has a scale."""
    value = row.get(column.name)
    if value is None or pd.isna(value):
        return '<td class="number" data-value="">–</td>'
    text = f"{value:.{column.digits}f}"
    low, high = row.get(f"{column.name}_low"), row.get(f"{column.name}_high")
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        low = high = value
    span = f"<small>{low:.{column.digits}f}–{high:.{column.digits}f}</small>" if low != high else ""
    drawn = _drawn(value, low, high, scale) if scale else ""
    kind = "number best" if best else "number"
    return f'<td class="{kind}" data-value="{value:.6g}"><b>{text}</b>{span}{drawn}</td>'


def _drawn(value: float, low: float, high: float, scale: tuple[float, float]) -> str:
    """The interval as a line with a dot, on the column's common scale."""
    start, end = scale

    def place(number: float) -> float:
        return 3 + (number - start) / (end - start) * (_WIDTH - 6)

    return (
        f'<svg class="range" width="{_WIDTH}" height="8" aria-hidden="true">'
        f'<path d="M0 4H{_WIDTH}"/><path class="span" d="M{place(low):.1f} 4H{place(high):.1f}"/>'
        f'<circle cx="{place(value):.1f}" cy="4" r="3"/></svg>'
    )


def _scale(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    """The smallest and largest end of the column's intervals."""
    columns = [c for c in (name, f"{name}_low", f"{name}_high") if c in rows]
    low, high = float(rows[columns].min().min()), float(rows[columns].max().max())
    return (low, high) if high > low else (low - 1, high + 1)


def _ahead(rows: pd.DataFrame, name: str) -> object:
    """The index of the exact cell whose interval lies above all others; None where none does."""
    low, high = f"{name}_low", f"{name}_high"
    if low not in rows or high not in rows:
        return None
    exact = (rows.decoder != "ar") & (rows.lossless == "exact") & rows[low].notna()
    if exact.sum() < 2:
        return None
    best = rows[name][exact].idxmax()
    return best if rows.at[best, low] > rows[high][exact].drop(best).max() else None
