"""What a figure plots, as numbers: a sheet of panels of series for measured rows."""

from __future__ import annotations

from typing import Any

import pandas as pd

from spec_bench.report.figures import figure_sheets
from spec_bench.report.figures.derived import derive
from spec_bench.report.figures.drawing import Drawing, drawing_of
from spec_bench.report.figures.select import sheets
from spec_bench.report.figures.sheet import PanelData, Series, Sheet
from spec_bench.report.paper import find_figure


def sheet_of(name: str, rows: pd.DataFrame) -> Sheet:
    """A paper's figure of rows that make one file."""
    item = find_figure(name)
    drawing = drawing_of(item)
    assert drawing is not None
    (sheet,) = figure_sheets(item, drawing, rows)
    return sheet


def sheet_from(rows: pd.DataFrame, **said: Any) -> Sheet:
    """A figure as its description says."""
    (sheet,) = sheets(Drawing.model_validate(said), derive(rows), pd.DataFrame())
    return sheet


def series_of(panel: PanelData, **values: object) -> list[Series]:
    """A panel's series whose rows all have these values."""
    return [
        series
        for series in panel.series
        if all((series.rows[name] == value).all() for name, value in values.items())
    ]


def points(series: Series) -> list[tuple[float, float]]:
    """(x, y) in the order drawn, rounded."""
    pairs = zip(series.rows[series.x], series.rows[series.y], strict=True)
    return [(x if isinstance(x, str) else round(float(x), 6), round(float(y), 6)) for x, y in pairs]
