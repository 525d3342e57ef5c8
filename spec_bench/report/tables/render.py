"""A table as Markdown, HTML, LaTeX or CSV. Each escapes the special characters of its format.

A label may come from anywhere: a pair's name, a reason in a results file. So nothing reaches a
format unescaped but the templates' text and what they mark as ``raw``.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

import jinja2

from spec_bench.report.papers.paper import Column
from spec_bench.report.tables.grid import Cell, Grid, Line, Text
from spec_bench.report.tables.sheet import LOST, levels, written
from spec_bench.system.files import escaped

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "α": r"$\alpha$",
    "Δ": r"$\Delta$",
    "γ": r"$\gamma$",
    "τ": r"$\tau$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "\n": " ",
}
_LINES = 36  # more than these are higher than a page, notes included, in the text's own size


def markdown(grid: Grid) -> str:
    """Title, table, notes, commands."""
    grid = written(grid)
    heads = [*grid.heads, *(_one_head(column, part) for column, part in grid.shown)]
    lines = [
        [*map(escape_markdown, heads)],
        ["---"] * len(grid.heads) + ["---:"] * len(grid.shown),
    ]
    for label, line in _labelled(grid):
        lines.append([*map(escape_markdown, (label, *line.labels[1:])), *map(_marked, line.texts)])
    parts = [f"### {escape_markdown(f'{grid.name}: {grid.title}')}", "\n".join(map(piped, lines))]
    if grid.notes:
        parts.append("\n".join(f"- {escape_markdown(note)}" for note in grid.notes))
    if grid.commands:
        commands = "\n".join(map(one_line, grid.commands))
        parts.append(f"Missing cells are run by:\n\n```\n{commands}\n```")
    return "\n\n".join(parts) + "\n"


def comma(grid: Grid) -> str:
    """The table alone as CSV: notes are no rows.

    Every label stands in every line, numbers and interval ends in columns of their own. Measured
    values keep all their digits.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    ends = ("ours", "low", "high", "difference", "state") if grid.measured else ()
    names = [f"{column.name}_{end}" for column in grid.columns for end in ("paper", *ends)]
    last = ["lossless"] if grid.measured else []
    writer.writerow(map(escaped, [*(h.replace(" ", "_") for h in grid.heads), *names, *last]))
    for line in grid.lines:
        values = [text for cell in line.cells for text in _values(cell)[: 1 + len(ends)]]
        marks = {cell.ours.mark or "exact" for cell in line.cells if cell.ours}
        lossless = ["/".join(sorted(marks))] if grid.measured else []
        writer.writerow(map(escaped, [*line.labels, *values, *lossless]))
    return stream.getvalue()


def comma_of_all(grids: Sequence[Grid]) -> str:
    """The parts of a table as one CSV; of several parts, a first column has each one's setting."""
    if len(grids) == 1:
        return comma(grids[0])
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for place, grid in enumerate(grids):
        head, *lines = csv.reader(io.StringIO(comma(grid)))
        writer.writerows([] if place else [["setting", *head]])
        writer.writerows([escaped(grid.setting), *line] for line in lines)
    return stream.getvalue()


def html(grids: Sequence[Grid], style: str = "") -> str:
    """A whole page with a table, or with the parts of one, and CSS to embed."""
    page = _environment("html").get_template("page.html.jinja")
    tables = [(grid, levels(grid), _blocks(grid)) for grid in map(written, grids)]
    return page.render(name=grids[0].name, tables=tables, style=style)


def html_fragment(grid: Grid) -> str:
    """A table for a page: title, table, notes and commands."""
    table = _environment("html").get_template("table.html.jinja")
    grid = written(grid)
    return table.render(grid=grid, levels=levels(grid), blocks=_blocks(grid))


def latex(grid: Grid) -> str:
    """A table environment with booktabs; missing cells' commands stand in comments below it."""
    grid = written(grid)
    table = _environment("latex").get_template("table.tex.jinja")
    long = len(grid.lines) > _LINES
    return table.render(grid=grid, levels=levels(grid), long=long, lines=_ruled(grid))


def escape_markdown(text: str) -> str:
    """Text that neither ends a cell nor opens an HTML tag."""
    return one_line(text).replace("|", "\\|").replace("<", "&lt;")


def escape_latex(text: str) -> str:
    """Text with LaTeX's special characters written out."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text


def piped(texts: Iterable[str]) -> str:
    """A line of a Markdown table of texts that are escaped already."""
    return "| " + " | ".join(texts) + " |"


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]], labels: int) -> str:
    """A plain Markdown table, escaped; the first ``labels`` columns are text, the others numbers,
    to the right.
    """
    rules = ["---"] * labels + ["---:"] * (len(heads) - labels)
    shown = [[escape_markdown(text) for text in line] for line in (heads, *lines)]
    return "\n".join(map(piped, [shown[0], rules, *shown[1:]]))


class _Raw(str):
    """Text that is not to be escaped."""


@functools.cache
def _environment(name: str) -> jinja2.Environment:
    """The templates of HTML or LaTeX; every expression in them is escaped unless called raw."""
    loader = jinja2.PackageLoader("spec_bench.report.tables")
    common: dict[str, Any] = {
        "loader": loader,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
        "undefined": jinja2.StrictUndefined,
    }
    if name == "html":
        return jinja2.Environment(autoescape=True, **common)
    environment = jinja2.Environment(
        # LaTeX is full of braces and percent signs.
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        finalize=lambda value: value if isinstance(value, _Raw) else escape_latex(str(value)),
        **common,
    )
    environment.filters |= {"raw": lambda text: _Raw(one_line(str(text))), "label": _label}
    return environment


def _label(name: str) -> str:
    """A name as a LaTeX label."""
    return _Raw(re.sub(r"[^\w.:-]", "-", name))


def _one_head(column: Column, part: str) -> str:
    """One heading: Markdown has no headings over several columns."""
    title = f"{column.group}: {column.title}" if column.group else column.title
    return f"{title}, {part}" if part else title


def _marked(text: Text) -> str:
    """One place of a Markdown table: bold or underlined where it stands out, then its interval."""
    number = escape_markdown(text.text)
    number = f"**{number}**" if text.bold else number
    number = f"<u>{number}</u>" if text.underlined else number
    return f"{number} {escape_markdown(text.interval)}".strip()


def _labelled(grid: Grid) -> list[tuple[str, Line]]:
    """The lines, each with its first label unless the line above it has the same."""
    before = [None, *(line.labels[0] for line in grid.lines)]
    return [
        ("" if line.labels[0] == above else line.labels[0], line)
        for line, above in zip(grid.lines, before, strict=False)
    ]


def _blocks(grid: Grid) -> list[list[tuple[str, Line]]]:
    """As above, the lines of a block together."""
    return [list(lines) for _, lines in groupby(_labelled(grid), lambda pair: pair[1].block)]


def _ruled(grid: Grid) -> list[tuple[bool, str, Line]]:
    """As above, each with whether a rule stands before it, after which the label is repeated.

    Rules stand between blocks unless all are single lines.
    """
    ruled = any(line.block == after.block for line, after in pairwise(grid.lines))
    lines: list[tuple[bool, str, Line]] = []
    for (label, line), above in zip(_labelled(grid), [None, *grid.lines], strict=False):
        rule = ruled and above is not None and line.block != above.block
        lines.append((rule, line.labels[0] if rule else label, line))
    return lines


def _values(cell: Cell) -> list[str]:
    """Paper, ours, both ends of the interval, difference, state."""
    printed = f"{cell.printed}±{cell.plus_minus}" if cell.plus_minus else cell.printed
    printed = LOST if cell.lost else printed
    if cell.ours is None:
        return [printed, "", "", "", "", cell.state]
    if cell.ours.value is None:
        return [printed, cell.ours.text, "", "", "", ""]
    numbers = (cell.ours.value, cell.ours.low, cell.ours.high, cell.difference)
    return [printed, *("" if number is None else f"{number:.6g}" for number in numbers), ""]
