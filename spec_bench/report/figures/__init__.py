"""Draws the papers' figures from measured rows: ``draw_figure_files(get_figure("rsd/4"), rows,
path)``.

A figure is drawn by a function such as ``figure_4(cells)`` of its paper's ``figures.py``. The
function returns matplotlib figures, most of them from ``grid.draw_panels``. Where the rows come
from makes no difference here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.splits import make_file_suffixes
from spec_bench.report.figures.cells import (
    FigureCells,
    NothingMeasuredError,
    list_figure_pairs,
    make_nothing_measured_error,
    shows_other_pairs,
)
from spec_bench.report.figures.style import (
    FORMATS,
    figure_settings_applied,
    fill_template,
    save_figure,
)
from spec_bench.report.papers.paper import Figure, load_paper
from spec_bench.settings.fields import describe_error
from spec_bench.system.errors import UsageError


def draw_figure_files(
    item: Figure,
    rows: pd.DataFrame,
    folder: Path,
    pair: str | None = None,
    formats: Sequence[str] = FORMATS,
    allow_printed_only: bool = False,
) -> list[Path]:
    """Draws a paper's figure from measured cells (RSD's Figure 1 from the grid of
    ``experiments/rsd/bernoulli.py``) and writes it in each format; some figures have a file per
    pair. Returns the paths.

    Draws only ``pair`` if given, else the figure's pairs, or every measured pair if none of the
    figure's pairs is measured. With ``allow_printed_only``, a figure without measured rows shows
    the paper's numbers alone, and other pairs are drawn only in figures meant for them. Raises
    NothingMeasuredError if there are no rows to show, UsageError if no function draws the figure or
    the rows cannot be drawn.
    """
    if pair is not None and "pair" in rows:
        pair_names = list(dict.fromkeys(rows.pair.astype(str)))
        rows = rows[rows.pair == pair]
        if rows.empty:
            raise NothingMeasuredError(
                f"nothing measured on pair {pair!r}; measured: {', '.join(pair_names) or 'none'}"
            )
    allow_printed_only = allow_printed_only and pair is None
    pairs = set(list_figure_pairs(item))
    has_pair = "pair" in rows and bool(pairs & set(rows.pair))
    if allow_printed_only and pairs and not has_pair and not shows_other_pairs(item):
        rows = rows.iloc[:0]
    with figure_settings_applied():
        try:
            result = draw_item_figures(item, rows)
        except NothingMeasuredError:
            if not allow_printed_only:
                raise
            result = draw_item_figures(item, rows, printed_only=True)
        paths = []
        for figure, name in zip(result, name_figure_files(item, result), strict=True):
            paths += save_figure(figure, folder, name, formats)
    return paths


def draw_item_figures(item: Figure, rows: pd.DataFrame, printed_only: bool = False) -> list[Any]:
    """Draws the matplotlib figures of an item, one per file. Raises NothingMeasuredError if there
    are none, UsageError if drawing fails.
    """
    function = load_paper(item.paper).find_drawing_function(item)
    if function is None:
        raise UsageError(f"figure {item.name}: no function figure_{item.number} in figures.py")
    try:
        result = list(function(FigureCells(item, rows, printed_only)))
    except NothingMeasuredError:
        raise
    except Exception as error:
        reason = error if isinstance(error, ValueError) else describe_error(error)
        raise UsageError(f"figure {item.name}: {reason}") from error
    if not result:
        raise make_nothing_measured_error(item)
    return result


def name_figure_files(item: Figure, figures_made: Sequence[Any]) -> list[str]:
    """Names the files after the figure, its pair if it shows only one, its task if the names would
    be equal otherwise, and its run settings if they differ between files.
    """
    our_figures = [figure for figure in figures_made if getattr(figure, "rows", None) is not None]
    parts = make_file_suffixes(figure.setting for figure in our_figures)
    places = [(fill_template("{pair}", figure.rows), figure.setting) for figure in our_figures]
    names = []
    for figure in figures_made:
        name = f"{item.paper}-fig{item.number}"
        if figure in our_figures:
            place = places[our_figures.index(figure)]
            name += f"-{place[0]}" if place[0] and "," not in place[0] else ""
            name += f"-{figure.rows.task.iloc[0]}" if places.count(place) > 1 else ""
            name += parts[figure.setting]
        names.append(name)
    return names
