"""The papers' figures from measured rows: ``draw("rsd", "4", rows, folder)``.

A figure is described by data, ``drawing:`` in its paper's ``paper.yaml``; see ``drawing``. Knows
nothing about where rows come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from spec_bench.report.data.apart import slugs
from spec_bench.report.figures.choose import (
    NothingMeasuredError,
    cells,
    nothing_measured,
    pairs_of,
    parts_of,
)
from spec_bench.report.figures.drawing import Drawing, drawing_of
from spec_bench.report.figures.panels import draw_sheet
from spec_bench.report.figures.printed import printed_cells
from spec_bench.report.figures.published import published_sheets, shows_other_pairs
from spec_bench.report.figures.select import sheets
from spec_bench.report.figures.sheet import Sheet
from spec_bench.report.figures.style import FORMATS, save, settings
from spec_bench.report.papers.code import form_of
from spec_bench.report.papers.paper import Figure, find_figure, load_paper, paper_names


def drawable(paper: str) -> tuple[str, ...]:
    """The numbers of a paper's figures that can be drawn."""
    figures = load_paper(paper).figures
    return tuple(str(figure.number) for figure in figures if figure.drawing)


def draw(
    paper: str,
    figure: str,
    rows: pd.DataFrame,
    folder: Path,
    pair: str | None = None,
    formats: Sequence[str] = FORMATS,
    alone: bool = False,
) -> list[Path]:
    """Draws a paper's figure as PNG and PDF, or as one of them.

    Args:
        paper: its name.
        figure: the figure's number.
        rows: measured cells; for RSD's Figure 1 the grid of ``spec_bench.audit.bernoulli``.
        folder: for the files; it is made if needed.
        pair: draw this pair's rows only; None: the figure's pairs, or if none of them is
            measured, every pair that is.
        formats: endings of the files to write, of ``png`` and ``pdf``.
        alone: where none of the figure's pairs is measured, draw the paper's numbers by
            themselves; of other pairs only figures that are meant for them.

    Returns:
        The files, one of each format; of some figures one of each per pair.

    Raises:
        NothingMeasuredError: no row is one that it shows.
        ValueError: unknown figure, or rows that cannot be drawn.
    """
    item, drawing = _drawable_figure(paper, str(figure))
    if pair is not None and "pair" in rows:
        known = list(dict.fromkeys(rows.pair.astype(str)))
        rows = rows[rows.pair == pair]
        if rows.empty:
            raise NothingMeasuredError(
                f"nothing measured on pair {pair!r}; measured: {', '.join(known) or 'none'}"
            )
    if drawing.drawer:
        drawer = form_of(load_paper(paper).folder, drawing.drawer, "drawer")
        written: list[Path] = drawer(item, rows, folder, formats)
        return written
    drawn = _sheets(item, drawing, rows, alone and pair is None)
    paths = []
    for sheet, name in zip(drawn, names_of(item, drawn), strict=True):
        with settings():
            paths += save(draw_sheet(sheet), folder, name, formats)
    return paths


def figure_sheets(item: Figure, drawing: Drawing, rows: pd.DataFrame) -> list[Sheet]:
    """A figure's data, a sheet per file.

    Raises:
        NothingMeasuredError: nothing is plotted.
    """
    source, folder = drawing.source, load_paper(item.paper).folder
    measured = (form_of(folder, source, "source") if source else cells)(item, drawing, rows)
    printed = printed_cells(item.paper, measured.pair) if "pair" in measured else pd.DataFrame()
    plotted = [
        replace(sheet, setting=setting)
        for setting, part in parts_of(drawing, measured)
        for sheet in sheets(drawing, part, printed)
    ]
    if not plotted:
        raise nothing_measured(item)
    return plotted


def _sheets(item: Figure, drawing: Drawing, rows: pd.DataFrame, alone: bool) -> list[Sheet]:
    """A figure's data, or the paper's numbers alone if unmeasured.

    Raises:
        NothingMeasuredError: and the paper prints nothing of it.
    """
    pairs = set(pairs_of(item))
    measured = "pair" in rows and bool(pairs & set(rows.pair))
    if alone and pairs and not measured and not shows_other_pairs(item):
        rows = rows.iloc[:0]
    try:
        return figure_sheets(item, drawing, rows)
    except NothingMeasuredError:
        published = published_sheets(item, drawing) if alone else []
        if not published:
            raise
        return published


def names_of(item: Figure, all_sheets: Sequence[Sheet]) -> list[str]:
    """The files' names: the figure's, its pair if it has one, its task if the pair has several."""
    names, parts = [], slugs(sheet.setting for sheet in all_sheets)
    for sheet in all_sheets:
        name = f"{item.paper}-fig{item.number}"
        pair = sheet.text("{pair}") if "pair" in sheet.rows else ""
        same = [e for e in all_sheets if (e.text("{pair}"), e.setting) == (pair, sheet.setting)]
        if pair and "," not in pair:
            name += f"-{pair}"
        if len(same) > 1:
            name += f"-{sheet.rows.task.iloc[0]}"
        names.append(name + parts[sheet.setting])
    return names


def _drawable_figure(paper: str, figure: str) -> tuple[Figure, Drawing]:
    """A figure and how it is drawn.

    Raises:
        ValueError: there is none, or its paper has no drawing of it.
    """
    if paper not in paper_names():
        raise ValueError(f"no figures of paper {paper!r}; there are: {', '.join(paper_names())}")
    if figure not in drawable(paper):
        choices = ", ".join(drawable(paper)) or "none"
        raise ValueError(f"{paper} has no figure {figure!r} to draw; it has: {choices}")
    item = find_figure(f"{paper}/{figure}")
    drawing = drawing_of(item)
    assert drawing is not None, "drawable figures have a drawing"
    return item, drawing
