"""MCSD's Figure 4: speedup against block efficiency for every k-configuration of two levels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.figures import published
from spec_bench.report.figures.choose import nothing_measured, own_pairs_first, usable
from spec_bench.report.figures.style import (
    BLUE,
    GREEN,
    MARKERS,
    TWO_COLUMNS_INCHES,
    VERMILLION,
    error_bars,
    marks,
    name_of,
    pyplot,
    save,
    settings,
)
from spec_bench.report.papers.index import Item

DECODER = "mcsd_wor"
ORDERS = {"decreasing": BLUE, "equal": GREEN, "increasing": VERMILLION}
_PANELS_A_ROW = 2
_ROOM = 0.18  # on each side of the marks, of their range
_LABELLED = 12  # more configurations than this in a panel: their labels would hide each other


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws one panel per pair, task and temperature.

    Raises:
        ValueError: no configuration of two levels is measured.
    """
    found = configurations(own_pairs_first(usable(rows, item), published.pairs_of(item)))
    if found.empty:
        raise nothing_measured(item)
    panels = list(found.groupby(["pair", "task", "temperature"], sort=False))
    columns = min(_PANELS_A_ROW, len(panels))
    lines = -(-len(panels) // columns)
    budgets = sorted(found.budget.unique())
    with settings():
        figure, grid = pyplot.subplots(
            lines,
            columns,
            figsize=(TWO_COLUMNS_INCHES * (0.62 if columns == 1 else 1), 2.9 * lines + 0.9),
            squeeze=False,
            layout="constrained",
        )
        for plot in grid.flat[len(panels) :]:
            plot.set_axis_off()
        for plot, ((pair, task, temperature), part) in zip(grid.flat, panels, strict=False):
            _draw_panel(plot, part, budgets)
            plot.set_title(f"{pair}{marks(part)}, {name_of(task)}, temperature {temperature:g}")
            plot.set(xlabel="block efficiency", ylabel="speedup over AR")
        _legend(figure, budgets, 3 if columns == 1 else 5)
        note = (
            "k1-k2: children at the first and second level. Bars: 95% intervals over prompts; "
            "long ones leave their panel."
        )
        figure.supxlabel(note, fontsize=6.5, x=0.01, ha="left")
        pairs = found.pair.unique()
        named = f"-{pairs[0]}" if len(pairs) == 1 else ""
        return save(figure, folder, f"mcsd-fig{item.number}{named}", formats)


def configurations(rows: pd.DataFrame) -> pd.DataFrame:
    """The trees of two levels, with ``order``, a key of ``ORDERS``, and ``budget``, paths."""
    two = rows.spec.astype(str).str.fullmatch(r"\d+-\d+")
    found = rows[(rows.decoder == DECODER) & two & rows.speedup.notna()]
    widths = [tuple(int(k) for k in spec.split("-")) for spec in found.spec]
    return found.assign(order=[order_of(k) for k in widths], budget=[prod(k) for k in widths])


def order_of(widths: tuple[int, ...]) -> str:
    """How a configuration's two widths go with depth."""
    first, second = widths
    return "decreasing" if first > second else "increasing" if first < second else "equal"


def _draw_panel(plot: Any, rows: pd.DataFrame, budgets: list[int]) -> None:
    """One mark per configuration: its colour is the order, its shape the budget."""
    plot.axhline(1.0, color="grey", linewidth=0.8)
    for row in rows.itertuples():
        x = (row.block_efficiency, row.block_efficiency_low, row.block_efficiency_high)
        y = (row.speedup, row.speedup_low, row.speedup_high)
        plot.errorbar(
            x[0],
            y[0],
            xerr=error_bars([x]),
            yerr=error_bars([y]),
            fmt=MARKERS[budgets.index(row.budget) % len(MARKERS)],
            color=ORDERS[row.order],
            ecolor=(*_rgb(ORDERS[row.order]), 0.3),
            markersize=5,
            elinewidth=0.6,
        )
    # Few prompts have bars so long that the marks would lie on one heap: the marks set the frame.
    for values, limit in ((rows.block_efficiency, plot.set_xlim), (rows.speedup, plot.set_ylim)):
        room = _ROOM * (values.max() - values.min()) or 0.1
        limit(values.min() - room, values.max() + room)
    _name_marks(plot, rows)


def _name_marks(plot: Any, rows: pd.DataFrame) -> None:
    """Writes each configuration beside its mark, on the side where most room is left."""
    size = 5.5 if len(rows) > _LABELLED else 6.5
    plot.figure.draw_without_rendering()  # lays out the axes, so that places on paper are known
    places = plot.transData.transform(rows[["block_efficiency", "speedup"]].to_numpy())
    places = places * 72 / plot.figure.dpi
    taken = [tuple(place) for place in places]
    for row, (x, y) in zip(rows.itertuples(), places, strict=True):
        width = 0.6 * size * len(row.spec)

        def centre(side: int, lift: int, x: float = x, y: float = y, w: float = width) -> Any:
            return x + side * (5 + w / 2), y + lift

        def room(choice: tuple[int, int], w: float = width, at: Any = centre) -> float:
            middle = at(*choice)
            gaps = (max(abs(middle[0] - a) / w, abs(middle[1] - b) / size) for a, b in taken)
            return min(0.8, *gaps)  # more room than this is no better

        side, lift = max(((s, lift) for lift in (3, -3, 9, -9) for s in (1, -1)), key=room)
        taken.append(centre(side, lift))
        plot.annotate(
            row.spec,
            (row.block_efficiency, row.speedup),
            textcoords="offset points",
            xytext=(side * 5, lift),
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=size,
        )


def _rgb(colour: str) -> tuple[float, float, float]:
    """``#RRGGBB`` as three numbers in 0..1."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def _legend(figure: Any, budgets: list[int], columns: int) -> None:
    """What colours and shapes mean."""
    entries = [
        pyplot.Line2D([], [], color=colour, marker="o", linestyle="", label=f"{order} widths")
        for order, colour in ORDERS.items()
    ]
    entries += [
        pyplot.Line2D(
            [],
            [],
            color="grey",
            marker=MARKERS[i % len(MARKERS)],
            linestyle="",
            label=f"{budget} path{'' if budget == 1 else 's'}",
        )
        for i, budget in enumerate(budgets)
    ]
    figure.legend(handles=entries, loc="outside upper center", ncols=columns, frameon=False)
