"""A table as LaTeX with booktabs; needs the packages booktabs and graphicx."""

from __future__ import annotations

from itertools import groupby, pairwise

from spec_bench.report.papers.flat import Flat, Text, flatten
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
    "Δ": r"$\Delta$",
    "γ": r"$\gamma$",
    "τ": r"$\tau$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}
_LINES = 36  # more than these are higher than a page, notes included, in the text's own size


def render(grid: Grid) -> str:
    """A table environment; missing cells' commands stand in comments below it."""
    flat = flatten(grid)
    shape = "l" * len(grid.heads) + "r" * len(flat.heads)
    long = len(flat.lines) > _LINES
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{escaped(grid.title)}}}",
        f"\\label{{tab:{grid.name.replace('/', '-')}}}",
        *(["\\small"] if long else []),
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
        size = "\\scriptsize" if long else "\\footnotesize"
        lines += [
            "\\par\\smallskip",
            f"\\begin{{minipage}}{{\\linewidth}}{size} {notes}\\end{{minipage}}",
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
    """Lines, a rule between blocks unless all are single lines; a label is not said twice."""
    lines: list[str] = []
    previous, label = None, None
    ruled = any(line.block == after.block for line, after in pairwise(flat.lines))
    for line in flat.lines:
        if ruled and previous is not None and line.block != previous:
            lines.append("\\midrule")
            label = None
        previous = line.block
        first = escaped(line.labels[0]) if line.labels[0] != label else ""
        label = line.labels[0]
        texts = [_marked(text) for text in line.texts]
        # A line that starts with a bracket would be read as the argument of the line break.
        lines.append(" & ".join([first, *map(escaped, line.labels[1:]), *texts]) + r" \\")
    return lines


def _marked(text: Text) -> str:
    """One place: bold or underlined where it stands out, then its interval."""
    number = escaped(text.text)
    if text.bold:
        number = f"\\textbf{{{number}}}"
    if text.underlined:
        number = f"\\underline{{{number}}}"
    return f"{number} {escaped(text.interval)}".strip()
