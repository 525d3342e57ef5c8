"""From rows to a figure's data: the series of each panel of each file.

Draws nothing: the result can be read, and tested, as numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from spec_bench.report.data.statistics import best_rows, correlation, front, relative_to
from spec_bench.report.figures.derived import grouped
from spec_bench.report.figures.drawing import Drawing, Layer, Panel
from spec_bench.report.figures.sheet import PanelData, Series, Sheet, first_of
from spec_bench.report.figures.style import looks_of, shapes_of
from spec_bench.report.figures.texts import fill
from spec_bench.vocabulary.columns import ENDS

_ASKED = ("pair", "task", "temperature", "top_k", "top_p")  # printed and measured alike


def sheets(drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame) -> Iterator[Sheet]:
    """A figure's files, each with something plotted; rows have their derived columns."""
    used = _used(drawing, rows)
    files = [name for name in drawing.files if name in rows]
    for values in _facets(kept(rows, drawing.keep), files):
        part = grouped(rows[used & _matches(rows, values)])
        counts = {name: part[name].nunique() if name in part else 0 for name in drawing.needs}
        if any(counts[name] < count for name, count in drawing.needs.items()):
            continue
        if sheet := _sheet(drawing, part, printed):
            yield sheet


def kept(rows: pd.DataFrame, keep: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that a layer draws."""
    for name, wanted in keep.items():
        if wanted == "max":
            rows = rows[rows[name] == rows[name].max()] if name in rows else rows
        elif name not in rows:
            return rows.iloc[:0]
        else:
            rows = rows[rows[name].isin(wanted if isinstance(wanted, list) else [wanted])]
    return rows


def _used(drawing: Drawing, rows: pd.DataFrame) -> pd.Series:
    """Marks the rows that some layer draws, or compares with."""
    used = pd.Series(False, rows.index)
    for row, column in itertools.product(range(len(drawing.rows)), range(len(drawing.columns))):
        panel = drawing.panel(row, column)
        for layer in panel.drawn:
            used |= rows.index.isin(kept(rows, layer.keep).index)
        if panel.over:
            used |= rows.decoder == panel.over
    return used


def _sheet(drawing: Drawing, rows: pd.DataFrame, printed: pd.DataFrame) -> Sheet | None:
    """One file; None where nothing is plotted."""
    drawn = kept(rows, drawing.keep)
    downs = _facets(drawn, (drawing.down,) if drawing.down else ())
    acrosses = _facets(drawn, drawing.across)
    views = list(itertools.product(range(len(acrosses)), range(len(drawing.columns))))
    grid: list[list[PanelData]] = []
    for down, row in itertools.product(downs, range(len(drawing.rows))):
        line = []
        for across, column in views:
            part = rows[_matches(rows, {**down, **acrosses[across]})]
            line.append(_panel(drawing, drawing.panel(row, column), part, rows, printed))
        if any(panel.has_subject for panel in line):
            grid.append(line)
    filled = {views[i][0] for line in grid for i, panel in enumerate(line) if panel.has_subject}
    grid = [[line[i] for i, (across, _) in enumerate(views) if across in filled] for line in grid]
    if not grid:
        return None
    if drawing.wrap:
        (flat,), wide = grid, drawing.wrap
        grid = [flat[start : start + wide] for start in range(0, len(flat), wide)]
    plotted = [each for line in grid for panel in line for each in panel.series]
    measured = pd.concat([each.rows for each in plotted if not each.layer.printed])
    return Sheet(drawing, grid, rows[rows.index.isin(measured.index)])


def _facets(rows: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations of values; of one column of numbers ascending, else as they come."""
    if not columns or rows.empty:
        return [] if rows.empty else [{}]
    values = rows[list(columns)].drop_duplicates()
    if len(columns) == 1 and pd.api.types.is_numeric_dtype(values[columns[0]]):
        values = values.sort_values(columns[0])
    return [{str(k): v for k, v in each.items()} for each in values.to_dict("records")]


def _matches(rows: pd.DataFrame, values: Mapping[str, Any]) -> pd.Series:
    same = pd.Series(True, rows.index)
    for name, value in values.items():
        same &= rows[name] == value
    return same


def _panel(
    drawing: Drawing,
    panel: Panel,
    rows: pd.DataFrame,
    file_rows: pd.DataFrame,
    printed: pd.DataFrame,
) -> PanelData:
    """One panel: the rows at its place, with looks after all rows of the file."""
    series: list[Series] = []
    for layer in panel.drawn:
        shown = _beside(printed, rows, layer.x) if layer.printed else rows
        if {layer.x, layer.y} <= set(shown):
            parts = _series(layer, _plotted(layer, shown), file_rows)
            series += [_front(drawing, each) if layer.mark == "front" else each for each in parts]
    return PanelData(panel, rows, tuple(series))


def _beside(printed: pd.DataFrame, rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """The printed cells of the pairs, tasks and sampling that a panel's measured rows have."""
    if printed.empty or x not in printed:
        return printed.iloc[:0]
    asked = rows[list(_ASKED)].drop_duplicates()
    same = printed.reset_index().merge(asked, on=list(_ASKED)).set_index("index")
    return printed.loc[same.index].dropna(subset=[x])


def _plotted(layer: Layer, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that a layer draws, its y as it is drawn."""
    x, y = layer.x, layer.y
    if layer.over:
        columns = [y, *(layer.ends or [f"{y}{end}" for end in ENDS])]
        rows = relative_to(rows, first_of(rows, layer.over), columns)
    rows = kept(rows, layer.keep)
    rows = rows[rows[x].notna()]
    if layer.best:
        hue = [name for name in layer.hue if name in rows]
        rows = best_rows(rows, [*hue, x], y if layer.best == "y" else layer.best)
    return rows[rows[y].notna()]


def _series(layer: Layer, rows: pd.DataFrame, file_rows: pd.DataFrame) -> list[Series]:
    """A series per value of hue and marker that has rows."""
    hue = [name for name in layer.hue if name in file_rows]
    known = kept(file_rows, layer.keep)
    looks, shapes = looks_of(layer, known, hue), shapes_of(layer, known)
    columns = [*hue, *([layer.marker] if layer.marker else [])]
    parts = rows.groupby(columns, sort=False, dropna=False) if columns else [((), rows)]
    curves: list[Series] = []
    for _, part in parts if len(rows) else ():
        look = looks[tuple(part[name].iloc[0] for name in hue)]
        if layer.marker:
            look = replace(look, marker=shapes[part[layer.marker].iloc[0]])
        label = _label(layer, part, file_rows) if len(hue) == len(layer.hue) else ""
        ordered = part.sort_values(layer.order or layer.x, kind="stable")
        cells = ordered if layer.mark == "line" else part
        curves.append(Series(layer, cells, look, label, fill(layer.shape, part)))
    return sorted(curves, key=lambda series: series.look.index)


def _label(layer: Layer, part: pd.DataFrame, file_rows: pd.DataFrame) -> str:
    """A series' name in the legend: of all its rows in the file, in whichever panel."""
    template = layer.label
    if template is None:
        template = " ".join(f"{{{name}}}" for name in layer.hue) + "{marks}"
    matching = kept(file_rows, layer.keep)
    for name in layer.hue:
        matching = matching[matching[name].isin(part[name].unique())]
    r = correlation(part[layer.x], part[layer.y]) if "{correlation}" in template else None
    more = {"count": len(part), "correlation": "" if r is None else f", r = {r:.3f}"}
    return fill(template, part if matching.empty else matching, layer.names, **more)


def _front(drawing: Drawing, series: Series) -> Series:
    """The series with those of its rows that no other beats, x ascending."""
    places = list(zip(series.rows[series.x], series.rows[series.y], strict=True))
    up = {name: drawing.axis(name).better == "up" for name in (series.x, series.y)}
    chosen = front(places, higher_x=up[series.x], higher_y=up[series.y])
    return replace(series, rows=series.rows.iloc[chosen])
