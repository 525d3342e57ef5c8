"""Draws any frame of rows: ``spec_bench.plot``."""

from typing import Any

import pandas as pd

from spec_bench.report.data.rows import group_rows
from spec_bench.report.figures.cells import GROUP, add_figure_columns, add_group_column
from spec_bench.report.figures.grid import draw_grid
from spec_bench.report.figures.style import figure_settings_applied
from spec_bench.report.figures.sweep import draw_sweep_bars
from spec_bench.settings.fields import format_suggestion
from spec_bench.system.errors import UsageError

_USUAL = {
    "pair": "",
    "task": "",
    "spec": "-",
    "status": "complete",
    "lossless": "exact",
}
_OF_TREES = ("nodes", "depth", "width")


def plot(
    rows: pd.DataFrame,
    x: str = "",
    y: str = "",
    *,
    ax: Any = None,
    **words: Any,
) -> Any:
    """Draws rows as the report does, one panel per group of comparable rows; writes no file.

    Args:
        rows: result of ``run`` or ``sweep``, a ``results.csv``, or a frame of your own with a
            column ``decoder``, and ``spec`` for its trees. ``Y_low`` and ``Y_high`` are intervals.
        x: column of the horizontal axis. A setting such as ``temperature``, or the trees'
            ``nodes``, ``depth`` or ``width``, gives lines; a measured column gives points. By
            default the decoders.
        y: column of the vertical axis, by default ``block_efficiency``. Without x and y each
            decoder and tree has a bar: its speed-up, or its block efficiency if no speed-up was
            measured.
        ax: matplotlib axes to draw on, for a single panel.
        words: options of ``spec_bench.report.figures``: fields of ``panels.SeriesOptions`` such as
            ``mark="line"``, ``best="y"`` or ``keep={"decoder": ["sd"]}``, and of
            ``grid.GridStyle`` such as ``height=3``.

    Returns:
        A matplotlib figure, or ``ax`` if given.

    Raises:
        ValueError: if a column is missing or empty, or ``ax`` cannot hold all panels.
    """
    rows = pd.DataFrame(rows).reset_index(drop=True)
    if rows.empty:
        raise UsageError("nothing to plot: the frame has no rows")
    names_known = [*rows.columns[rows.notna().any()], *_OF_TREES]
    for name in ("decoder", x or "decoder", y or "decoder"):
        if name not in names_known:
            hint = format_suggestion("nodes" if name == "budget" else name, names_known)
            raise UsageError(f"nothing in column {name!r}{hint}; there is {', '.join(names_known)}")
    cells = add_figure_columns(pd.DataFrame({**_USUAL, **rows}).astype({"spec": str}).copy())
    with figure_settings_applied():
        if not (x or y):
            return draw_sweep_bars(group_rows(cells), ax)
        x = f"tree.{x}" if x in _OF_TREES else x or "decoder"
        y = y or "block_efficiency"
        grid = {
            "across": GROUP,
            "wrap": 3,
            "title": f"{{{GROUP}}}",
            "ax": ax,
        }
        return draw_grid(cells, x, y, **{**grid, **_choose_look(cells, x), **words})


def _choose_look(cells: pd.DataFrame, x: str) -> dict[str, Any]:
    """Chooses the options for lines along a setting, or else for points."""
    hue = ["decoder"] if x.startswith("tree.") else ["decoder", "spec"]
    if not pd.api.types.is_numeric_dtype(cells[x]):
        return {"hue": hue}
    if f"{x}_low" in cells or add_group_column(cells, x).duplicated([GROUP, *hue, x]).any():
        return {"write": "{spec}"}
    return {
        "mark": "line",
        "hue": hue,
        "dodge": (cells[x].max() - cells[x].min()) / 200,
    }
