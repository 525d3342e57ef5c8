"""RSD's Figures 4 to 9: the best tree per decoder and draft length or budget, relative to AR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.figures import published
from spec_bench.report.figures.choose import nothing_measured, own_pairs_first, usable
from spec_bench.report.figures.relative import (
    DECODERS,
    PANELS,
    Point,
    baseline_band,
    best_series,
    relative_printed,
    relative_rows,
)
from spec_bench.report.figures.style import (
    DECODER_COLOURS,
    MARKERS,
    TWO_COLUMNS_INCHES,
    error_bars,
    marks,
    name_of,
    pyplot,
    save,
    settings,
)
from spec_bench.report.load import Group, groups_of
from spec_bench.report.papers.index import Item
from spec_bench.report.papers.pairs import pair_configs

_NOTE = (
    "Bars: 95% intervals over prompts. Each mark is the best of the decoder's trees at that place, "
    "picked on these numbers;\naccuracy is that of the tree with the best block efficiency. "
    "Grey band: AR's own interval."
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws one figure per pair: a row of panels per task.

    Raises:
        ValueError: no cell of this figure's experiment is measured.
    """
    axis = published.axis_of(item)
    places = published.axis_values(axis)
    rows = own_pairs_first(usable(rows, item), published.pairs_of(item))
    known = [(d, str(spec)) in places for d, spec in zip(rows.decoder, rows.spec, strict=True)]
    listed = pd.Series(known, rows.index, dtype=bool)
    trees = rows[listed]
    if not published.measures(trees, axis):
        raise nothing_measured(item)
    paths = []
    for pair in dict.fromkeys(trees.pair):
        measured = rows[(rows.pair == pair) & (listed | (rows.decoder == "ar"))]
        groups = [group for group in groups_of(measured) if (group.rows.decoder != "ar").any()]
        paths += _draw_pair(item, str(pair), groups, axis, folder, formats)
    return paths


def _draw_pair(
    item: Item,
    pair: str,
    groups: Sequence[Group],
    axis: str,
    folder: Path,
    formats: Sequence[str],
) -> list[Path]:
    """One pair's figure."""
    places = published.axis_values(axis)
    height = 1.55 * len(groups) + 1.15
    with settings():
        figure, grid = pyplot.subplots(
            len(groups),
            4,
            figsize=(TWO_COLUMNS_INCHES, height),
            sharex=True,
            squeeze=False,
            layout="constrained",
        )
        dashed = False
        for group, axes in zip(groups, grid, strict=True):
            dashed |= _draw_task(axes, pair, group, axis)
        for panel, title in enumerate(PANELS.values()):
            grid[0][panel].set_title(f"{title} / AR's")
            grid[-1][panel].set_xlabel(published.AXES[axis])
            grid[-1][panel].set_xticks(sorted(set(places.values())))
        mark = marks(pd.concat([group.rows for group in groups]))
        _legend(figure, f"{pair}{mark}, relative to autoregressive decoding", dashed)
        figure.supxlabel(_note(pair, dashed), fontsize=6.5, x=0.01, ha="left")
        return save(figure, folder, f"rsd-fig{item.number}-{pair}", formats)


def _draw_task(axes: Sequence[Any], pair: str, group: Group, axis: str) -> bool:
    """A task's four panels; returns whether the paper's numbers are among them."""
    places = published.axis_values(axis)
    task = str(group.rows.iloc[0].task)
    measured = relative_rows(group.rows)
    printed = published.printed_rsd(pair, task, axis)
    theirs = relative_printed(printed) if not printed.empty else None
    beside = not printed.empty and published.paper_sampling("rsd", task, group.rows.iloc[0])
    for panel, plot in zip(PANELS, axes, strict=True):
        if panel == "accuracy" and (band := baseline_band(group.rows)):
            plot.axhspan(*band, color="grey", alpha=0.15, linewidth=0)
        shown = False
        for index, decoder in enumerate(DECODERS):
            points = best_series(measured, decoder, panel, places)
            shown |= bool(points)
            _draw_series(plot, points, index, sorted(set(places.values())))
            if beside and theirs is not None:
                series = best_series(theirs, decoder, panel, places)
                plot.plot(
                    [point.place for point in series],
                    [point.value for point in series],
                    linestyle="--",
                    color=DECODER_COLOURS[decoder],
                    alpha=0.4,
                    linewidth=1,
                )
        if shown:
            plot.axhline(1.0, color="grey", linewidth=0.8, zorder=0)
        else:
            plot.text(0.5, 0.5, "no score", transform=plot.transAxes, ha="center", color="grey")
            plot.set_yticks([])
    axes[0].set_ylabel(group.title.replace(task, name_of(task), 1))
    return beside


def _draw_series(plot: Any, points: Sequence[Point], index: int, ticks: Sequence[int]) -> None:
    """One decoder's line, moved aside a little so that bars do not hide each other."""
    aside = (index - (len(DECODERS) - 1) / 2) * 0.012 * (ticks[-1] - ticks[0])
    plot.errorbar(
        [point.place + aside for point in points],
        [point.value for point in points],
        yerr=error_bars((point.value, point.low, point.high) for point in points),
        fmt=f"{MARKERS[index]}-",
        color=DECODER_COLOURS[DECODERS[index]],
        markersize=3.2,
        elinewidth=0.7,
        capsize=1.5,
    )


def _legend(figure: Any, title: str, dashed: bool) -> None:
    """The figure's title, its decoders, and what dashes mean where there are any."""
    entries = [
        pyplot.Line2D(
            [], [], color=DECODER_COLOURS[d], marker=MARKERS[i], markersize=4, label=name_of(d)
        )
        for i, d in enumerate(DECODERS)
    ]
    if dashed:
        entries.append(pyplot.Line2D([], [], color="grey", linestyle="--", label="the paper's"))
    figure.legend(
        handles=entries,
        loc="outside upper center",
        ncols=len(entries),
        frameon=False,
        title=title,
        title_fontsize=9,
    )


def _note(pair: str, dashed: bool) -> str:
    """What the marks mean; with the paper's numbers beside, what its draft was."""
    config = pair_configs().get(pair)
    if dashed and config is not None and config.stand_in:
        return f"{_NOTE} The draft stands in for {config.stand_in.partition(',')[0]}."
    return _NOTE
