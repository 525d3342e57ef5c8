"""A figure of the paper's printed numbers alone, if none of its pairs is measured.

Drawn as measured cells would be, so that both can be laid side by side later; heading, note and
file name have the source of the numbers. Figures without printed numbers have none.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from spec_bench.report.figures.choose import pairs_of
from spec_bench.report.figures.drawing import Drawing
from spec_bench.report.figures.printed import printed_cells
from spec_bench.report.figures.select import sheets
from spec_bench.report.figures.sheet import Sheet
from spec_bench.report.papers.paper import Figure, load_paper

SETTING = "paper's numbers alone"
"""The setting in the names and headings of these files."""


def published_sheets(item: Figure, drawing: Drawing) -> list[Sheet]:
    """The sheets, a file each; none where the paper prints no such numbers."""
    rows = printed_cells(item.paper, pairs_of(item))
    if rows.empty or drawing.source:
        return []
    if item.tables:
        rows = rows[rows.table.isin(item.tables)]
    elif item.tasks:
        rows = rows[rows.task.isin(item.tasks)]
    alone = drawing.model_copy(
        update={
            "layers": tuple(each for each in drawing.layers if not each.get("printed")),
            "heading": "{pair}" if "pair" in drawing.files else "",
            "note": f"As printed in the tables of {load_paper(item.paper).title}; no intervals.",
            "note_printed": "",
            "needs": {},
        }
    )
    plotted = list(sheets(alone, rows, pd.DataFrame()))
    return [replace(each, setting=SETTING) for each in plotted]


def shows_other_pairs(item: Figure) -> bool:
    """Whether a figure is drawn of pairs that it does not have in the paper.

    Either by ``any_pair``, or as the first of those that its recipe measures: the others would be
    the same picture again.
    """
    if item.any_pair or not item.recipes:
        return True
    same = [each for each in load_paper(item.paper).figures if each.recipes[:1] == item.recipes[:1]]
    return item.number == same[0].number
