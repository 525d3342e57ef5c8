"""DSBD's Figures 4, 5, 6: a score against speed and energy, beam sampling and DSBD's front."""

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
    Quantity,
    beam_curve,
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

_SINGLE = {"sd": "D", "specinfer": "^"}
_NOTE = (
    "Steps: Pareto front of DSBD's settings (W_S x γ @ t), picked on these numbers. In the "
    "squares: width of beam sampling.\nBars: 95% intervals over prompts. beam law: exact for the "
    "law of beam decoding, not for the target's single samples."
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws one figure per pair: a row of panels per task.

    Raises:
        ValueError: no DSBD cell with its score is measured.
    """
    paths = []
    for pair, groups in groups_by_pair(item, rows).items():
        with settings():
            figure, grid = panels(groups, (SPEED, ENERGY))
            for group, axes in zip(groups, grid, strict=True):
                score = score_of(item, group)
                assert score is not None, "groups_by_pair keeps groups with a score"
                for plot, efficiency in zip(axes, (SPEED, ENERGY), strict=True):
                    _draw_panel(plot, group, efficiency, score)
                    plot.set_title(task_of(group), pad=10)
            _legend(figure, pair, groups)
            note = _NOTE + across_jobs(groups)
            figure.supxlabel(note, fontsize=6.5, x=0.01, ha="left")
            paths += save(figure, folder, f"dsbd-fig{item.number}-{pair}", formats)
    return paths


def across_jobs(groups: Sequence[Group]) -> str:
    """That some decoders' speeds were not measured side by side with the rest's; "" if all were."""
    rows = pd.concat([group.rows for group in groups])
    drawn = rows[rows.decoder.isin((DSBD, BEAM_SAMPLING, *_SINGLE))]
    if "baseline" not in drawn or drawn.baseline.nunique() < 2:
        return ""
    names = [name_of(name) for name in dict.fromkeys(drawn.decoder[drawn.baseline == "same job"])]
    return f"\nNot one job: {', '.join(names)} measured with AR, the rest in a later one."


def _draw_panel(plot: Any, group: Group, efficiency: Quantity, score: Quantity) -> None:
    """One task's score against one efficiency."""
    if without(plot, group, efficiency):
        return
    plot.set(xlabel=efficiency.title, ylabel=score.title)
    known = [points(group, name, efficiency, score) for name in (DSBD, BEAM_SAMPLING, *_SINGLE)]
    beams, colour = known[0], DECODER_COLOURS[DSBD]
    scatter(plot, beams, efficiency, score, faint=True, fmt="o", color=colour, markersize=3)
    if not beams.empty:
        chosen = draw_front(plot, beams, efficiency, score, color=colour)
        specs = f"front: {', '.join(str(row.spec) for row in chosen)}"
        place = {"xy": (0.01, 1.0), "xycoords": "axes fraction"}
        plot.annotate(specs, **place, fontsize=5.5, color=colour)
    beam_curve(plot, group, efficiency, score, color=DECODER_COLOURS[BEAM_SAMPLING])
    for (name, marker), rows in zip(_SINGLE.items(), known[2:], strict=True):
        colour = DECODER_COLOURS[name]
        scatter(plot, rows, efficiency, score, fmt=marker, color=colour, markersize=5)


def _legend(figure: Any, pair: str, groups: Sequence[Group]) -> None:
    """Whose marks are whose, and what law they follow."""
    rows = pd.concat([group.rows for group in groups])
    entries = []
    for name, marker in {DSBD: "o", BEAM_SAMPLING: "s", **_SINGLE}.items():
        own = rows[rows.decoder == name]
        if own.empty:
            continue
        specs = f" {own.iloc[0].spec}" if name in _SINGLE and own.spec.nunique() == 1 else ""
        label = f"{name_of(name)}{specs}{marks(own)}"
        look = {"color": DECODER_COLOURS[name], "ls": "" if name in _SINGLE else "-"}
        entries.append(pyplot.Line2D([], [], marker=marker, ms=4, label=label, **look))
    figure.legend(handles=entries, loc="outside upper center", ncols=4, frameon=False, title=pair)
