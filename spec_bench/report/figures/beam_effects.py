"""DSBD's Figures 8 and 9: score against speed and energy, its settings coloured by t or W_S."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.beams import DSBD, draft_beams
from spec_bench.report.figures.style import (
    BLUE,
    MARKERS,
    VERMILLION,
    marks,
    pyplot,
    save,
    settings,
)
from spec_bench.report.figures.trade_off import (
    ENERGY,
    SPEED,
    Quantity,
    draw_front,
    groups_by_pair,
    panels,
    points,
    scatter,
    score_of,
    task_of,
    without,
)
from spec_bench.report.load import Group
from spec_bench.report.papers.index import Item

_NAMES = {"threshold": "t", "width": "W_S"}
_NOTE = (
    "DSBD's settings by {name}; steps: the Pareto front of each {name}, picked on these numbers. "
    "Bars: 95% intervals over prompts.\nThe copy of the paper that was read does not name the axes "
    "of this figure: they are those of Figures 4 to 6."
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws one figure per pair: a row of panels per task, a colour per value of the parameter.

    Raises:
        ValueError: no DSBD cell with its score is measured.
    """
    by = str(item.settings["by"])
    paths = []
    for pair, groups in groups_by_pair(item, rows).items():
        found = [by_value(points(group, DSBD, SPEED), by) for group in groups]
        colours = _colours(sorted({value for values in found for value in values}))
        with settings():
            figure, grid = panels(groups, (SPEED, ENERGY))
            for group, axes in zip(groups, grid, strict=True):
                score = score_of(item, group)
                assert score is not None, "groups_by_pair keeps groups with a score"
                for plot, efficiency in zip(axes, (SPEED, ENERGY), strict=True):
                    _draw_panel(plot, group, efficiency, score, by, colours)
                    plot.set_title(task_of(group))
            _legend(figure, f"{pair}: {_NAMES[by]}", groups, _NAMES[by], colours)
            note = _NOTE.format(name=_NAMES[by])
            figure.supxlabel(note, fontsize=6.5, x=0.01, ha="left")
            paths += save(figure, folder, f"dsbd-fig{item.number}-{pair}", formats)
    return paths


def by_value(rows: pd.DataFrame, parameter: str) -> dict[float, pd.DataFrame]:
    """DSBD's cells by a field of ``DraftBeams``, ascending."""
    values = pd.Series(
        [getattr(draft_beams(str(spec)), parameter) for spec in rows.spec], rows.index, dtype=float
    )
    return {float(value): rows[values == value] for value in sorted(values.unique())}


def _draw_panel(
    plot: Any,
    group: Group,
    efficiency: Quantity,
    score: Quantity,
    by: str,
    colours: dict[float, Any],
) -> None:
    """One task's score against one efficiency."""
    if without(plot, group, efficiency):
        return
    plot.set(xlabel=efficiency.title, ylabel=score.title)
    rows = points(group, DSBD, efficiency, score)
    for value, own in by_value(rows, by).items():
        colour, marker = colours[value]
        style = {"fmt": marker, "color": colour, "markersize": 4}
        scatter(plot, own, efficiency, score, faint=True, **style)
        draw_front(plot, own, efficiency, score, color=colour, linewidth=0.9)


def _colours(values: Sequence[float]) -> dict[float, Any]:
    """Two values get two colours, more of them a scale from dark to light; a marker each."""
    if len(values) <= 2:
        scale: Sequence[Any] = (BLUE, VERMILLION)
    else:
        scale = [pyplot.cm.viridis(0.9 * i / (len(values) - 1)) for i in range(len(values))]
    return {value: (scale[i], MARKERS[i % len(MARKERS)]) for i, value in enumerate(values)}


def _legend(
    figure: Any, title: str, groups: Sequence[Group], name: str, colours: dict[float, Any]
) -> None:
    """The parameter's values."""
    rows = pd.concat([group.rows for group in groups])
    entries = [
        pyplot.Line2D([], [], color=colour, marker=marker, ms=4, label=f"{name} = {value:g}")
        for value, (colour, marker) in colours.items()
    ]
    whole = f"{title}, DSBD{marks(rows[rows.decoder == DSBD])}"
    figure.legend(handles=entries, loc="outside upper center", ncols=5, frameon=False, title=whole)
