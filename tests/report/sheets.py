"""Tables made up for tests, place by place."""

import pandas as pd

from spec_bench.report.tables.printed import ASKED, Sheet, asked_frame

PLACE = {
    **{"printed": "", "plus_minus": "", "lost": False, "best": False, "underlined": False},
    **{"value": None, "low": None, "high": None, "text": "", "mark": "", "ours": False},
    **{"ours_best": False, "state": ""},
}


def place(printed="", **more):
    """A place with what the paper prints there and what was measured."""
    return {**PLACE, "printed": printed, **more}


def sheet(lines, columns, title, heads, name="a/1", **more):
    """A table of lines, each its labels, its block and its places; every place asks for a cell."""
    at = [(line, column) for line in range(len(lines)) for column in range(len(columns))]
    cells = pd.DataFrame([cell for _, _, own in lines for cell in own])
    cells[["line", "column"]] = at
    about = pd.DataFrame([(labels, block, False) for labels, block, _ in lines])
    about.columns = ["labels", "block", "extra"]
    asked = [{"line": line, "column": column, "role": "ours"} for line, column in at]
    frame = asked_frame(asked, "line", "column", "role")
    return Sheet(name, title, heads, columns, about, cells, frame, frame[ASKED], **more)
