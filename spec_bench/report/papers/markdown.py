"""A table as Markdown."""

from __future__ import annotations

from spec_bench.report.papers.flat import Flat, Head, Text, flatten
from spec_bench.report.papers.grid import Grid


def render(grid: Grid) -> str:
    """Title, table, notes, commands."""
    flat = flatten(grid)
    parts = [f"### {grid.name}: {grid.title}", _table(grid, flat)]
    if grid.notes:
        parts.append("\n".join(f"- {note}" for note in grid.notes))
    if grid.commands:
        commands = "\n".join(grid.commands)
        parts.append(f"Missing cells are run by:\n\n```\n{commands}\n```")
    return "\n\n".join(parts) + "\n"


def _table(grid: Grid, flat: Flat) -> str:
    """The pipes; a block's label stands in its first line only."""
    heads = [*grid.heads, *map(_head, flat.heads)]
    lines = [_piped(heads), _piped([*("---" for _ in grid.heads), *("---:" for _ in flat.heads)])]
    previous = None
    for line in flat.lines:
        first = line.labels[0] if line.labels[0] != previous else ""
        previous = line.labels[0]
        lines.append(_piped([first, *line.labels[1:], *map(_marked, line.texts)]))
    return "\n".join(lines)


def _marked(text: Text) -> str:
    """One place: bold or underlined where it stands out, then its interval."""
    number = f"**{text.text}**" if text.bold else text.text
    number = f"<u>{number}</u>" if text.underlined else number
    return f"{number} {text.interval}".strip()


def _head(head: Head) -> str:
    """One heading: Markdown has no headings over several columns."""
    title = f"{head.group}: {head.title}" if head.group else head.title
    return f"{title}, {head.part}" if head.part else title


def _piped(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
