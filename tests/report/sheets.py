"""Tables: a paper's from what is measured below a folder, and ones made up place by place."""

from spec_bench.report.papers.paper import find_table
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.printed import Asked, Cell, Line, Sheet
from spec_bench.report.tables.render import markdown


def table(name, folder, pair=None):
    return build_table(find_table(name), Measured.below(folder), pair)


def line_of(grid, *labels):
    """The first line of the table that begins with these labels."""
    start = "| " + " | ".join(labels) + " |"
    return next(line for line in markdown(grid).splitlines() if line.startswith(start))


def place(printed="", **more):
    """A place with what the paper prints there and what was measured; it asks for a cell."""
    return Cell("", printed, asked=(Asked("", "", "", ""),), **more)


def sheet(lines, columns, title, heads, name="a/1", **more):
    """A table of lines, each its labels, its block and its places."""
    own = tuple(Line(labels, block, False, tuple(cells)) for labels, block, cells in lines)
    return Sheet(name, title, heads, columns, own, **more)
