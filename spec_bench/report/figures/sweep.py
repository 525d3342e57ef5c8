"""The figure of any sweep: the gain and the quality of each decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.rows import Group
from spec_bench.report.figures.derived import derive
from spec_bench.report.figures.draw import draw_sheet
from spec_bench.report.figures.panels import Axis, Drawing, sheets
from spec_bench.report.figures.style import TWO_COLUMNS_INCHES, save, settings

_PANELS = (
    {"y": "block_efficiency", "title": "block efficiency (tokens per target call)"},
    {"y": "mbsu", "title": "memory-bound speed-up (MBSU)"},
    {"y": "token_rate", "title": "token rate (tokens/s, decoding)"},
    {
        "y": "cell.score",
        "title": "quality (the task's score)",
        "label": "{cell.group}: {cell.score_title}",
    },
)
_INCHES_PER_DECODER = 0.34
_LEAST_INCHES, _MOST_INCHES = 8.0, 24.0
_WIDEST = 40  # characters of a group's title that a panel has room for beside its marks
_INCHES_PER_LINE = 0.16  # of a legend above the panels
_DPI = 150


def draw(groups: Sequence[Group], path: Path) -> None:
    """Draws four panels, one mark with its 95% interval per decoder and task."""
    rows = pd.concat([group.rows for group in groups])
    rows = derive(rows[rows.status != "failed"].reset_index(drop=True))
    longest = max(len(group.title) for group in groups)
    drawing = Drawing(**layout_of(rows["cell.name"].nunique(), len(groups), longest))
    with settings():
        for sheet in sheets(drawing, rows, pd.DataFrame()):
            save(draw_sheet(sheet), path.parent, path.stem, ("png",), dpi=_DPI)


def layout_of(cells: int, groups: int, longest: int = 0) -> dict[str, Any]:
    """What the figure says, as the words of ``Drawing``.

    Groups with long titles are named once above all panels, a line each, and not within each panel.

    Args:
        cells: how many decoders with their trees stand along the axis.
        groups: how many marks stand at each: all of them nearer to it than to the next.
        longest: characters of the longest of the groups' titles.
    """
    above = longest > _WIDEST
    panels = [{**panel, "label": "{cell.group}"} for panel in _PANELS] if above else _PANELS
    rest = groups * _INCHES_PER_LINE if above else 0.0
    inches = min(max(_LEAST_INCHES, 2 * _INCHES_PER_DECODER * cells), _MOST_INCHES)
    return {
        "x": "cell.name",
        "columns": panels,
        "wrap": 2,
        "share": "x",
        "files": (),
        "hue": "cell.group",
        "label": "{cell.group}",
        "legend": not above,
        "dodge": 0.6 / max(groups, 3),
        "markersize": 4.5,
        "capsize": 2,
        "elinewidth": 1.2,
        "axes": {"cell.name": Axis("", turned=True)}
        | {str(panel["y"]): Axis("", low=0) for panel in _PANELS},
        "width": inches / TWO_COLUMNS_INCHES,
        "height": 3.1,
        "rest": rest,
        "legend_columns": 1,
        "heading": "{pairs}{marks}: bars are 95% intervals over prompts",
        "heading_size": 9,
        "note": "",
    }
