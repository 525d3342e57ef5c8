"""MCSD's Figures 3 and 5: the acceptance rate against the number of candidates k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.figures import published
from spec_bench.report.figures.choose import nothing_measured, own_pairs_first, usable
from spec_bench.report.figures.style import (
    COLOURS,
    MARKERS,
    TWO_COLUMNS_INCHES,
    error_bars,
    marks,
    name_of,
    pyplot,
    save,
    settings,
)
from spec_bench.report.papers.index import Item

DECODER = "mcsd_wor"


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws one panel per task and temperature, one curve per pair.

    Raises:
        ValueError: no tree of one level is measured.
    """
    found = curves(own_pairs_first(usable(rows, item), published.pairs_of(item)))
    if found.empty:
        raise nothing_measured(item)
    pairs, tasks = list(dict.fromkeys(found.pair)), list(dict.fromkeys(found.task))
    temperatures = sorted(found.temperature.unique())
    with settings():
        figure, grid = pyplot.subplots(
            len(temperatures),
            len(tasks),
            figsize=(_width(len(tasks)), 2.1 * len(temperatures) + 0.9),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        crosses = False
        for temperature, axes in zip(temperatures, grid, strict=True):
            for task, plot in zip(tasks, axes, strict=True):
                part = found[(found.task == task) & (found.temperature == temperature)]
                crosses |= _draw_panel(plot, part, pairs)
                plot.set_title(f"{name_of(task)}, temperature {temperature:g}")
        _label(figure, grid, found, pairs, crosses)
        named = f"-{pairs[0]}" if len(pairs) == 1 else ""
        return save(figure, folder, f"mcsd-fig{item.number}{named}", formats)


def curves(rows: pd.DataFrame) -> pd.DataFrame:
    """The trees of one level, with a column ``k``, k ascending."""
    found = rows[(rows.decoder == DECODER) & rows.spec.astype(str).str.fullmatch(r"\d+")]
    found = found[found.acceptance_rate.notna()]
    return found.assign(k=found.spec.astype(int)).sort_values("k", kind="stable")


def _draw_panel(plot: Any, rows: pd.DataFrame, pairs: list[str]) -> bool:
    """All pairs' curves at one task and temperature; returns whether the paper has numbers too."""
    crosses = False
    for index, pair in enumerate(pairs):
        part = rows[rows.pair == pair]
        colour = COLOURS[index % len(COLOURS)]
        ends = part[["acceptance_rate", "acceptance_rate_low", "acceptance_rate_high"]]
        for _, same in part.groupby(["seed", "batch_size", "top_k", "top_p"], sort=False):
            plot.errorbar(
                same.k,
                same.acceptance_rate,
                yerr=error_bars(ends.loc[same.index].itertuples(index=False, name=None)),
                fmt=f"{MARKERS[index % len(MARKERS)]}-",
                color=colour,
                markersize=3.5,
                elinewidth=0.7,
                capsize=1.5,
            )
        for k in (1, 4):
            if part.empty:
                continue
            first = part.iloc[0]
            metric = f"acceptance_rate_k{k}"
            value = published.printed_mcsd(pair, first.task, float(first.temperature), metric)
            if value is not None:
                plot.plot(k, value, "x", color=colour, markersize=6, alpha=0.6)
                crosses = True
    return crosses


def _label(figure: Any, grid: Any, rows: pd.DataFrame, pairs: list[str], crosses: bool) -> None:
    """Axes, legend and title."""
    for plot in grid[-1]:
        plot.set_xlabel("candidates k")
        plot.set_xscale("log", base=2)
        plot.set_xticks(sorted(rows.k.unique()), [str(k) for k in sorted(rows.k.unique())])
        plot.minorticks_off()
    for axes in grid:
        axes[0].set_ylabel("acceptance rate")
    entries = [
        pyplot.Line2D(
            [],
            [],
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=4,
            label=f"{pair}{marks(rows[rows.pair == pair])}",
        )
        for i, pair in enumerate(pairs)
    ]
    columns = min(len(entries), 4)
    figure.legend(handles=entries, loc="outside upper center", ncols=columns, frameon=False)
    note = "Bars: 95% intervals over prompts."
    if crosses:
        note += " Crosses: what the paper prints."
    figure.supxlabel(note, fontsize=6.5, x=0.01, ha="left")


def _width(columns: int) -> float:
    return TWO_COLUMNS_INCHES * min(1.0, 0.35 + 0.3 * columns)
