"""DSBD's Figure 7: the average accepted width against score, speed and energy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.beams import BEAM_SAMPLING, DSBD
from spec_bench.report.figures.style import (
    DECODER_COLOURS,
    marks,
    name_of,
    pyplot,
    save,
    settings,
)
from spec_bench.report.figures.trade_off import (
    ENERGY,
    SPEED,
    WIDTH,
    Quantity,
    beam_curve,
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

_LOOKS = {DSBD: ("o", ""), BEAM_SAMPLING: ("s", "-")}
_NOTE = (
    "A circle is a setting of DSBD (W_S, γ, t). Squares: beam sampling with its width, which "
    "the paper's figure may not have.\nBars: 95% intervals over prompts. beam law: exact for the "
    "law of beam decoding, not for the target's single samples."
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws one figure per pair: a row of three panels per task.

    Raises:
        ValueError: no DSBD cell with its score is measured.
    """
    paths = []
    for pair, groups in groups_by_pair(item, rows).items():
        with settings():
            figure, grid = panels(groups, (WIDTH, SPEED, ENERGY))
            for group, axes in zip(groups, grid, strict=True):
                score = score_of(item, group)
                assert score is not None, "groups_by_pair keeps groups with a score"
                for plot, quantity in zip(axes, (score, SPEED, ENERGY), strict=True):
                    _draw_panel(plot, group, quantity)
                    plot.set_title(task_of(group))
            _legend(figure, pair, groups)
            figure.supxlabel(_NOTE, fontsize=6.5, x=0.01, ha="left")
            paths += save(figure, folder, f"dsbd-fig{item.number}-{pair}", formats)
    return paths


def _draw_panel(plot: Any, group: Group, quantity: Quantity) -> None:
    """One number of one task against the width."""
    if without(plot, group, quantity):
        return
    plot.set(xlabel=WIDTH.title, ylabel=quantity.title)
    rows = points(group, DSBD, WIDTH, quantity)
    colour = DECODER_COLOURS[DSBD]
    scatter(plot, rows, WIDTH, quantity, faint=True, fmt="o", color=colour, markersize=3)
    beam_curve(plot, group, WIDTH, quantity, color=DECODER_COLOURS[BEAM_SAMPLING])


def _legend(figure: Any, pair: str, groups: Sequence[Group]) -> None:
    """Whose marks are whose, and what law they follow."""
    rows = pd.concat([group.rows for group in groups])
    entries = [
        pyplot.Line2D(
            [],
            [],
            color=DECODER_COLOURS[name],
            marker=marker,
            ls=line,
            ms=4,
            label=f"{name_of(name)}{marks(rows[rows.decoder == name])}",
        )
        for name, (marker, line) in _LOOKS.items()
        if (rows.decoder == name).any()
    ]
    figure.legend(handles=entries, loc="outside upper center", ncols=2, frameon=False, title=pair)
