"""The figure of any sweep: the gain and the quality of each decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from spec_bench.report.data.rows import Group
from spec_bench.report.figures.cells import derive
from spec_bench.report.figures.draw import draw_sheet
from spec_bench.report.figures.panels import Axis, Drawing, sheets
from spec_bench.report.figures.style import TWO_COLUMNS_INCHES, save, settings

_TITLES = {
    "block_efficiency": "block efficiency (tokens per target call)",
    "mbsu": "memory-bound speed-up (MBSU)",
    "token_rate": "token rate (tokens/s, decoding)",
    "cell.score": "quality (the task's score)",
}
_WIDEST = 40  # characters of a group's title that a panel has room for beside its marks


def draw(groups: Sequence[Group], path: Path) -> None:
    """Draws four panels, one mark with its 95% interval per decoder and task."""
    rows = pd.concat([group.rows for group in groups])
    rows = derive(rows[rows.status != "failed"].reset_index(drop=True))
    longest = max(len(group.title) for group in groups)
    drawing = layout_of(rows["cell.name"].nunique(), len(groups), longest)
    with settings():
        for sheet in sheets(drawing, rows, pd.DataFrame()):
            save(draw_sheet(sheet), path.parent, path.stem, ("png",), dpi=150)


def layout_of(cells: int, groups: int, longest: int = 0) -> Drawing:
    """Returns what the figure says: so many decoders with their trees along the axis, so many marks
    at each, all of them nearer to it than to the next. Groups with long titles (the longest's
    characters) are named once above all panels, a line each, and not within each panel.
    """
    above = longest > _WIDEST
    columns = [{"y": y, "title": title} for y, title in _TITLES.items()]
    if not above:
        columns[-1]["label"] = "{cell.group}: {cell.score_title}"
    return Drawing(
        x="cell.name",
        columns=columns,
        wrap=2,
        share="x",
        files=(),
        hue="cell.group",
        label="{cell.group}",
        legend=not above,
        dodge=0.6 / max(groups, 3),
        markersize=4.5,
        capsize=2,
        elinewidth=1.2,
        axes={"cell.name": Axis("", turned=True), **dict.fromkeys(_TITLES, Axis("", low=0))},
        width=min(max(8.0, 0.68 * cells), 24.0) / TWO_COLUMNS_INCHES,  # inches
        height=3.1,
        rest=0.16 * groups if above else 0.0,  # a line of the legend each
        legend_columns=1,
        heading="{pairs}{marks}: bars are 95% intervals over prompts",
        heading_size=9,
        note="",
    )
