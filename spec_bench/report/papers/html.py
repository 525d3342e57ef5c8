"""A table as HTML: a fragment for pages, or a small page of its own."""

from __future__ import annotations

from html import escape
from itertools import groupby

from spec_bench.report.papers.flat import Flat, Text, flatten
from spec_bench.report.papers.grid import Grid


def render(grid: Grid, style: str = "") -> str:
    """A whole page with one table.

    Args:
        grid: the table.
        style: CSS to embed.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(grid.name)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"{fragment(grid)}\n</main>\n</body>\n</html>\n"
    )


def fragment(grid: Grid) -> str:
    """Title, table, notes and commands."""
    flat = flatten(grid)
    parts = [
        f'<section class="paper-table" id="{escape(grid.name.replace("/", "-"))}">',
        f"<h3>{escape(grid.name)} <small>{escape(grid.title)}</small></h3>",
        '<div class="scroll"><table class="paper">',
        f"<thead>{_heads(grid, flat)}</thead>",
        *_bodies(flat),
        "</table></div>",
    ]
    if grid.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in grid.notes)
        parts.append(f'<ul class="notes">{notes}</ul>')
    if grid.commands:
        commands = escape("\n".join(grid.commands))
        parts.append(f'<p>Missing cells are run by:</p><pre class="command">{commands}</pre>')
    return "\n".join([*parts, "</section>"])


def _heads(grid: Grid, flat: Flat) -> str:
    """One to three heading rows."""
    levels: list[list[str]] = []
    if any(head.group for head in flat.heads):
        levels.append([head.group for head in flat.heads])
    levels.append([f"{head.group}\0{head.title}" for head in flat.heads])
    if any(head.part for head in flat.heads):
        levels.append([f"{i}\0{head.part}" for i, head in enumerate(flat.heads)])
    labels = "".join(f'<th rowspan="{len(levels)}">{escape(head)}</th>' for head in grid.heads)
    rows = []
    for depth, level in enumerate(levels):
        cells = []
        for key, members in groupby(level):
            text = escape(key.rpartition("\0")[2])
            cells.append(f'<th colspan="{len(list(members))}" class="number">{text}</th>')
        rows.append(f"<tr>{labels if depth == 0 else ''}{''.join(cells)}</tr>")
    return "".join(rows)


def _bodies(flat: Flat) -> list[str]:
    """One body a block."""
    bodies = []
    label = None
    for _, lines in groupby(flat.lines, key=lambda line: line.block):
        rows = []
        for line in lines:
            first = line.labels[0] if line.labels[0] != label else ""
            label = line.labels[0]
            labels = "".join(f"<td>{escape(text)}</td>" for text in (first, *line.labels[1:]))
            cells = [
                _cell(text, head.part) for text, head in zip(line.texts, flat.heads, strict=True)
            ]
            rows.append(f"<tr>{labels}{''.join(cells)}</tr>")
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    return bodies


def _cell(text: Text, part: str) -> str:
    """One place, with its interval in small."""
    shown = f"<b>{escape(text.text)}</b>" if text.bold else escape(text.text)
    if text.underlined:
        shown = f"<u>{shown}</u>"
    if text.interval:
        shown += f" <small>{escape(text.interval)}</small>"
    kind = "number" if text.is_number else "word"
    return f'<td class="{kind} {part}">{shown}</td>'
