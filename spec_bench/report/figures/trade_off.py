"""What DSBD's figures share: their rows, marks and fronts in a panel, panels without a meter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from spec_bench.report.beams import BEAM_SAMPLING, DSBD
from spec_bench.report.figures import published
from spec_bench.report.figures.choose import nothing_measured, own_pairs_first, usable
from spec_bench.report.figures.pareto import front
from spec_bench.report.figures.relative import score_column
from spec_bench.report.figures.style import TWO_COLUMNS_INCHES, error_bars, name_of, pyplot
from spec_bench.report.load import Group, groups_of, reason_of
from spec_bench.report.papers.index import Item


@dataclass(frozen=True)
class Quantity:
    """What an axis shows.

    Attributes:
        column: in the results.
        title: for people.
        higher: whether more is better.
    """

    column: str
    title: str
    higher: bool


SPEED = Quantity("token_rate", "tokens/s", higher=True)
ENERGY = Quantity("energy_j_per_token", "J/token", higher=False)
WIDTH = Quantity("beam_width", "average accepted width", higher=True)
_TITLES = {"exact_match": "exact match", "execution_accuracy": "execution accuracy"}
_FAINT = 0.18  # error bars of many points would hide the points


def groups_by_pair(item: Item, rows: pd.DataFrame) -> dict[str, list[Group]]:
    """The comparable cells with DSBD among them, a list a pair.

    Of the paper's own pairs the figure's own tasks are shown, of any other pair all of them.

    Raises:
        ValueError: nothing is measured for this figure.
    """
    own = published.pairs_of(item)
    found = own_pairs_first(usable(rows, item), own)
    found = found[~found.pair.isin(own) | found.task.isin(item.settings["tasks"])]
    by_pair: dict[str, list[Group]] = {}
    for group in groups_of(found) if not found.empty else []:
        score = score_of(item, group)
        if score is not None and not points(group, DSBD, score, SPEED).empty:
            by_pair.setdefault(str(group.rows.iloc[0].pair), []).append(group)
    if not by_pair:
        raise nothing_measured(item)
    return by_pair


def score_of(item: Item, group: Group) -> Quantity | None:
    """What the figure takes for the quality of a text: perplexity where it says so."""
    if item.settings.get("score") == "perplexity":
        measured = "perplexity" in group.rows and group.rows.perplexity.notna().any()
        return Quantity("perplexity", "perplexity (lower: better)", False) if measured else None
    name = score_column(group.rows)
    return None if name is None else Quantity(name, _TITLES.get(name, name), higher=True)


def points(group: Group, decoder: str, *quantities: Quantity) -> pd.DataFrame:
    """A decoder's cells that have all of these numbers."""
    found = group.rows[group.rows.decoder == decoder]
    columns = [quantity.column for quantity in quantities]
    missing = [name for name in columns if name not in found]
    return found.iloc[:0] if missing else found.dropna(subset=columns)


def scatter(
    plot: Any, rows: pd.DataFrame, x: Quantity, y: Quantity, *, faint: bool = False, **style: Any
) -> None:
    """Marks with the 95% intervals of both numbers."""
    if rows.empty:
        return
    bars = plot.errorbar(
        rows[x.column],
        rows[y.column],
        xerr=error_bars(_ends(rows, x)),
        yerr=error_bars(_ends(rows, y)),
        elinewidth=0.6,
        **style,
    )
    for line in bars[2]:
        line.set_alpha(_FAINT if faint else 0.6)


def draw_front(plot: Any, rows: pd.DataFrame, x: Quantity, y: Quantity, **style: Any) -> list[Any]:
    """The Pareto front of the rows as steps; returns its rows, x ascending.

    Between two points of the front the worse of both scores is what is had at that speed.
    """
    places = list(zip(rows[x.column], rows[y.column], strict=True))
    chosen = front(places, higher_x=x.higher, higher_y=y.higher)
    steps = "pre" if x.higher else "post"
    plot.step(*zip(*(places[i] for i in chosen), strict=True), where=steps, **style)
    return [rows.iloc[i] for i in chosen]


def beam_curve(plot: Any, group: Group, x: Quantity, y: Quantity, **style: Any) -> None:
    """Beam sampling, its widths written in their marks and joined in order."""
    rows = points(group, BEAM_SAMPLING, x, y)
    rows = rows.assign(_width=rows.spec.astype(int)).sort_values("_width")
    scatter(plot, rows, x, y, fmt="s-", markersize=6.5, zorder=4, **style)
    for place, spec in zip(
        zip(rows[x.column], rows[y.column], strict=True), rows.spec, strict=True
    ):
        look = {"fontsize": 5.5, "color": "white", "weight": "bold", "zorder": 5}
        plot.annotate(str(spec), place, ha="center", va="center_baseline", **look)


def without(plot: Any, group: Group, quantity: Quantity) -> bool:
    """Says why a panel is empty where no cell has its number; returns whether it did."""
    if _measured(group, quantity):
        return False
    reasons = [reason_of(row, quantity.column) for _, row in group.rows.iterrows()]
    why = next(filter(None, reasons), "no value")
    how = "\nadd energy=nvml,\nnvidia_smi or rapl" if quantity is ENERGY else ""
    text = f"{quantity.title} not\nmeasured: {why}{how}"
    plot.text(0.5, 0.5, text, transform=plot.transAxes, ha="center", va="center", color="grey")
    plot.set_axis_off()
    return True


def panels(groups: Sequence[Group], quantities: Sequence[Quantity]) -> tuple[Any, Any]:
    """A figure with a row of panels per group; what no group has measured gets a narrow column."""
    known = [any(_measured(group, each) for group in groups) for each in quantities]
    wide = TWO_COLUMNS_INCHES * (1.0 if all(known) else 0.9)
    return pyplot.subplots(
        len(groups),
        len(quantities),
        figsize=(wide, 2.4 * len(groups) + 0.9),
        width_ratios=[1.0 if each else 0.4 for each in known],
        squeeze=False,
        layout="constrained",
    )


def task_of(group: Group) -> str:
    """The group's title with its task as written in print."""
    task, *rest = group.title.split(", ")
    return ", ".join([name_of(task), *(part for part in rest if not part.startswith("pair "))])


def _measured(group: Group, quantity: Quantity) -> bool:
    return quantity.column in group.rows and bool(group.rows[quantity.column].notna().any())


def _ends(rows: pd.DataFrame, quantity: Quantity) -> Sequence[tuple[float, float, float]]:
    name, nothing = quantity.column, pd.Series(float("nan"), rows.index)
    low, high = rows.get(f"{name}_low", nothing), rows.get(f"{name}_high", nothing)
    return list(zip(rows[name], low, high, strict=True))
