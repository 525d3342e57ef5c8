"""A table as LaTeX with booktabs; needs the packages booktabs and graphicx."""

from __future__ import annotations

from itertools import groupby

from spec_bench.report.papers.flat import Flat, flatten
from spec_bench.report.papers.grid import Grid

_ESCAPES = {
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
    "γ": r"$\gamma$",
    "τ": r"$\tau$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}


def render(grid: Grid) -> str:
    """A table environment; missing cells' commands stand in comments below it."""
    flat = flatten(grid)
    shape = "l" * len(grid.heads) + "r" * len(flat.heads)
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{escaped(grid.title)}}}",
        f"\\label{{tab:{grid.name.replace('/', '-')}}}",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{shape}}}",
        "\\toprule",
        *_heads(grid, flat),
        "\\midrule",
        *_body(flat),
        "\\bottomrule",
        "\\end{tabular}%",
        "}",
    ]
    if grid.notes:
        notes = " ".join(escaped(note) for note in grid.notes)
        lines += [
            "\\par\\smallskip",
            f"\\begin{{minipage}}{{\\linewidth}}\\footnotesize {notes}\\end{{minipage}}",
        ]
    lines.append("\\end{table}")
    lines += [f"% missing cells: {command}" for command in grid.commands]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text with LaTeX's own characters written out."""
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


def _heads(grid: Grid, flat: Flat) -> list[str]:
    """One to three heading lines: groups, titles, and whose number it is."""
    blank = [""] * len(grid.heads)
    levels: list[list[str]] = []
    if any(head.group for head in flat.heads):
        levels.append([head.group for head in flat.heads])
    levels.append([f"{head.group}\0{head.title}" for head in flat.heads])
    if any(head.part for head in flat.heads):
        levels.append([f"{i}\0{head.part}" for i, head in enumerate(flat.heads)])
    lines = []
    for depth, level in enumerate(levels):
        last = depth == len(levels) - 1
        cells, rules, place = [], [], len(grid.heads) + 1
        for key, members in groupby(level):
            width = len(list(members))
            text = escaped(key.rpartition("\0")[2])
            cells.append(f"\\multicolumn{{{width}}}{{c}}{{{text}}}" if width > 1 else text)
            if width > 1:
                rules.append(f"\\cmidrule(lr){{{place}-{place + width - 1}}}")
            place += width
        labels = [escaped(head) for head in grid.heads] if last else blank
        lines.append(" & ".join([*labels, *cells]) + r" \\")
        if rules and not last:
            lines.append(" ".join(rules))
    return lines


def _body(flat: Flat) -> list[str]:
    """Lines, a rule between blocks; a block's label stands in its first line only."""
    lines: list[str] = []
    previous, label = None, None
    for line in flat.lines:
        if previous is not None and line.block != previous:
            lines.append("\\midrule")
            label = None
        previous = line.block
        first = escaped(line.labels[0]) if line.labels[0] != label else ""
        label = line.labels[0]
        texts = [
            f"\\textbf{{{escaped(text.text)}}} {escaped(text.interval)}".strip()
            if text.bold
            else escaped(text.whole)
            for text in line.texts
        ]
        # A line that starts with a bracket would be read as the argument of the line break.
        lines.append(" & ".join([first, *map(escaped, line.labels[1:]), *texts]) + r" \\")
    return lines
