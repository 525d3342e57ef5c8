"""A table as Markdown, HTML, LaTeX or CSV: places as texts, pivoted to a line each.

A label may come from anywhere: a pair's name, a reason in a results file. So whatever reaches a
format is escaped for it.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from spec_bench.report.papers.paper import Column
from spec_bench.report.tables.printed import Sheet
from spec_bench.system.files import escaped
from spec_bench.vocabulary.names import MARKS
from spec_bench.vocabulary.numbers import ends_of

LOST = "lost"
_LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"×": r"$\times$", "α": r"$\alpha$", "Δ": r"$\Delta$", "γ": r"$\gamma$"},
        **{"τ": r"$\tau$", "±": r"$\pm$", "<": "$<$", ">": "$>$", "\n": " "},
    }
)
_LINES = 36  # more than these are higher than a page, notes included, in the text's own size


class Shown(NamedTuple):
    """A column of the written table: the paper's numbers of one, ours, or their difference."""

    place: int
    column: Column
    part: str  # paper, ours or difference

    @property
    def title(self) -> str:
        """In one heading: Markdown has none over several columns."""
        group = f"{self.column.group}: " if self.column.group else ""
        return f"{group}{self.column.title}"


class Text(NamedTuple):
    """What stands in a place of a written table."""

    text: str  # the number, or the reason why there is none
    interval: str = ""  # in brackets; or the paper's plus/minus
    bold: bool = False
    underlined: bool = False
    number: bool = True


def shown_columns(sheet: Sheet) -> list[Shown]:
    """The columns that are written: not those that nobody printed or measured."""
    cells, asked = sheet.cells, sheet.asked[sheet.asked.role == "ours"]
    known = [*zip(cells.line, cells.column, cells.printed, cells.lost, strict=True)]
    wanted = {*zip(asked.line, asked.column, strict=True)}
    printed = {column for _, column, text, lost in known if text or lost}
    ours = {column for _, column in wanted} if sheet.measured else set()
    # Else ours has separate lines.
    beside = {column for line, column, text, _ in known if text and (line, column) in wanted}
    found = []
    for place, column in enumerate(sheet.columns):
        compared = place in printed & ours & beside and column.shows == "number"
        parts = {"paper": place in printed, "ours": place in ours, "difference": compared}
        found += [Shown(place, column, part) for part, there in parts.items() if there]
    return found


def written(
    sheet: Sheet, write: Callable[[Text, str], str], letters: Callable[[str], str]
) -> pd.DataFrame:
    """The table as escaped texts by line: columns ``label``, first label of the lines; ``labels``,
    all of them; ``block``; and one for each of ``shown_columns``, by its place among them.

    Args:
        sheet: the table.
        write: a place's text, with the part that it shows, as the format has it.
        letters: escapes a label.
    """
    ours = sheet.cells[sheet.cells.ours]
    marks = {line: {*part} for line, part in ours.mark.groupby(ours.line)}
    mark = {line: next(iter(known)) for line, known in marks.items() if len(known) == 1}
    by_place = {(cell.line, cell.column): cell for cell in sheet.cells.itertuples()}
    columns = [*enumerate(shown_columns(sheet))]
    long = pd.DataFrame(
        [
            (line, number, write(_text(by_place[line, shown.place], shown, of_line), shown.part))
            for line, of_line in ((line, mark.get(line, "")) for line in sheet.lines.index)
            for number, shown in columns
        ],
        columns=["line", "shown", "text"],
    )
    wide = long.pivot(index="line", columns="shown", values="text").reindex(sheet.lines.index)
    labels = []
    for line, own in sheet.lines.labels.items():
        told = f" ({MARKS.get(mark[line], mark[line])})" if mark.get(line) else ""
        labels.append(
            [letters(each) for each in (*own[:-1], f"{own[-1]}{told}".strip() if told else own[-1])]
        )
    blocks = sheet.lines.block.where(sheet.lines.block != "", [own[0] for own in labels])
    return wide.assign(labels=labels, block=blocks, label=_once([own[0] for own in labels]))


def _once(labels: Sequence[str]) -> list[str]:
    """Each label unless the line above has the same."""
    return [
        "" if own == above else own for own, above in zip(labels, [None, *labels], strict=False)
    ]


def _text(cell: Any, shown: Shown, of_line: str) -> Text:
    """One place; ``of_line`` is the mark that stands at the line's label."""
    form = f".{shown.column.digits}f"
    if shown.part == "paper":
        if cell.lost:
            return Text(LOST, number=False)
        spread = f"±{cell.plus_minus}" if cell.plus_minus else ""
        number = bool(cell.printed) and shown.column.shows == "number"
        return Text(cell.printed, spread, cell.best, cell.underlined, number)
    if shown.part == "difference":
        value = _difference(cell)
        return Text("" if value is None else f"{value:+{form}}")
    if not cell.ours:
        return Text(cell.state, number=False)
    symbol = cell.mark if not of_line else ""
    mark = f" ({MARKS.get(symbol, symbol)})" if symbol else ""
    if pd.isna(cell.value):
        return Text(f"{cell.text}{mark}", number=False)
    interval = ends_of(cell.low, cell.high, form) if cell.low != cell.high else ""
    return Text(f"{cell.value:{form}}{mark}", interval, cell.ours_best)


def _difference(cell: Any) -> float | None:
    """Ours minus printed; None where one of them is missing."""
    known = cell.ours and not pd.isna(cell.value) and cell.printed
    return cell.value - float(cell.printed) if known else None


def levels(sheet: Sheet) -> list[list[tuple[str, int]]]:
    """One to three lines of headings as (text, columns wide): groups, titles, whose number."""
    shown = shown_columns(sheet)
    keys = [[each.column.group for each in shown]] if any(e.column.group for e in shown) else []
    keys.append([f"{each.column.group}\0{each.column.title}" for each in shown])
    if sheet.measured:
        keys.append([f"{place}\0{each.part}" for place, each in enumerate(shown)])
    return [
        [(key.rpartition("\0")[2], len(list(same))) for key, same in groupby(level)]
        for level in keys
    ]


def markdown(sheet: Sheet) -> str:
    """Title, table, notes, commands."""

    def write(text: Text, _: str) -> str:
        number = escape_markdown(text.text)
        number = f"**{number}**" if text.bold else number
        number = f"<u>{number}</u>" if text.underlined else number
        return f"{number} {escape_markdown(text.interval)}".strip()

    table, shown = written(sheet, write, escape_markdown), shown_columns(sheet)
    heads = [f"{each.title}, {each.part}" if sheet.measured else each.title for each in shown]
    lines = [
        [*map(escape_markdown, (*sheet.heads, *heads))],
        ["---"] * len(sheet.heads) + ["---:"] * len(shown),
        *([label, *own[1:], *texts] for label, own, texts in _lines(table)),
    ]
    title = escape_markdown(f"{sheet.name}: {sheet.title}")
    parts = [f"### {title}", "\n".join(map(piped, lines))]
    if sheet.notes:
        parts.append("\n".join(f"- {escape_markdown(note)}" for note in sheet.notes))
    if sheet.commands:
        commands = "\n".join(map(one_line, sheet.commands))
        parts.append(f"Missing cells are run by:\n\n```\n{commands}\n```")
    return "\n\n".join(parts) + "\n"


def _lines(table: pd.DataFrame) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each line's first label unless it is repeated, its labels, and its places."""
    texts = table.drop(columns=["label", "labels", "block"]).to_numpy().tolist()
    return zip(table.label, table.labels, texts, strict=True)


def html(sheets: Sequence[Sheet], style: str = "") -> str:
    """A whole page with a table, or with the parts of one, and CSS to embed."""
    page = _environment().get_template("page.html.jinja")
    return page.render(
        name=sheets[0].name, tables=[Markup(html_fragment(s)) for s in sheets], style=style
    )


def html_fragment(sheet: Sheet) -> str:
    """A table for a page: title, table, notes and commands."""

    def write(text: Text, part: str) -> str:
        number = Markup("<b>{}</b>" if text.bold else "{}").format(text.text)
        number = Markup("<u>{}</u>").format(number) if text.underlined else number
        interval = Markup(" <small>{}</small>").format(text.interval) if text.interval else ""
        kind = f"{'number' if text.number else 'word'} {part if sheet.measured else ''}"
        return Markup('<td class="{}">{}{}</td>').format(kind, number, interval)

    table = written(sheet, write, lambda text: Markup(escape(text)))
    blocks = [[*_lines(part)] for part in _runs(table)]
    fragment = _environment().get_template("table.html.jinja")
    return fragment.render(sheet=sheet, levels=levels(sheet), blocks=blocks)


def _runs(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The lines of each block, which stand together."""
    run = (table.block != table.block.shift()).cumsum()
    return [part for _, part in table.groupby(run)]


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("spec_bench.report.tables"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )


def latex(sheet: Sheet) -> str:
    """A table environment with booktabs; missing cells' commands stand in comments below it."""

    def write(text: Text, _: str) -> str:
        number = escape_latex(text.text)
        number = rf"\textbf{{{number}}}" if text.bold else number
        number = rf"\underline{{{number}}}" if text.underlined else number
        return f"{number} {escape_latex(text.interval)}" if text.interval else number

    table, labels = written(sheet, write, escape_latex), len(sheet.heads)
    long = len(table) > _LINES
    ruled = any(table.block.iloc[n] == table.block.iloc[n + 1] for n in range(len(table) - 1))
    body: list[str] = []
    for part in _runs(table) if ruled else [table]:
        lines = [*_lines(part)]
        body += [r"\midrule"] if body else []
        # The label is repeated below a rule.
        lines[0] = (lines[0][1][0], *lines[0][1:])
        body += [" & ".join([label, *own[1:], *texts]) + r" \\" for label, own, texts in lines]
    notes, name = " ".join(map(escape_latex, sheet.notes)), re.sub(r"[^\w.:-]", "-", sheet.name)
    size = r"\scriptsize" if long else r"\footnotesize"
    parts = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(sheet.title)}}}",
        rf"\label{{tab:{name}}}",
        *([r"\small"] if long else []),
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{'l' * labels}{'r' * len(shown_columns(sheet))}}}",
        r"\toprule",
        *_latex_heads(sheet),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}%",
        "}",
        *([r"\par\smallskip"] if notes else []),
        *([rf"\begin{{minipage}}{{\linewidth}}{size} {notes}\end{{minipage}}"] if notes else []),
        r"\end{table}",
        *(f"% missing cells: {one_line(command)}" for command in sheet.commands),
    ]
    return "\n".join(parts) + "\n"


def _latex_heads(sheet: Sheet) -> Iterator[str]:
    """The headings, the labels' in the last line, and rules below those of several columns."""
    above = levels(sheet)
    for level in above:
        last = level is above[-1]
        heads = [escape_latex(head) if last else "" for head in sheet.heads]
        for text, width in level:
            title = escape_latex(text)
            heads.append(rf"\multicolumn{{{width}}}{{c}}{{{title}}}" if width > 1 else title)
        yield " & ".join(heads) + r" \\"
        at, rules = len(sheet.heads) + 1, []
        for _, width in level:
            rules += [rf"\cmidrule(lr){{{at}-{at + width - 1}}}"] if width > 1 else []
            at += width
        if rules and not last:
            yield " ".join(rules)


def comma(*sheets: Sheet) -> str:
    """The table alone, or its parts, as CSV: notes are no rows. Of several parts, a first column
    has each one's setting.

    Every label stands in every line, numbers and interval ends in columns of their own. Measured
    values keep all their digits.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for place, sheet in enumerate(sheets):
        setting = [] if len(sheets) == 1 else [sheet.setting]
        ends = ("ours", "low", "high", "difference", "state") if sheet.measured else ()
        names = [f"{column.name}_{end}" for column in sheet.columns for end in ("paper", *ends)]
        heads = [*(["setting"] if setting else []), *(h.replace(" ", "_") for h in sheet.heads)]
        if not place:
            last = ["lossless"] if sheet.measured else []
            writer.writerow(map(escaped, [*heads, *names, *last]))
        for line, part in groupby(sheet.cells.itertuples(), lambda cell: cell.line):
            cells = [*part]
            values = [value for cell in cells for value in _values(cell)[: 1 + len(ends)]]
            marks = {cell.mark or "exact" for cell in cells if cell.ours}
            lossless = ["/".join(sorted(marks))] if sheet.measured else []
            labels = sheet.lines.labels[line]
            writer.writerow(map(escaped, [*setting, *labels, *values, *lossless]))
    return stream.getvalue()


def _values(cell: Any) -> list[str]:
    """Paper, ours, both ends of the interval, difference, state."""
    printed = f"{cell.printed}±{cell.plus_minus}" if cell.plus_minus else cell.printed
    printed = LOST if cell.lost else printed
    if not cell.ours:
        return [printed, "", "", "", "", cell.state]
    if pd.isna(cell.value):
        return [printed, cell.text, "", "", "", ""]
    numbers = (cell.value, cell.low, cell.high, _difference(cell))
    return [printed, *("" if pd.isna(number) else f"{number:.6g}" for number in numbers), ""]


def escape_markdown(text: str) -> str:
    """Text that neither ends a cell nor opens an HTML tag."""
    return one_line(text).replace("|", "\\|").replace("<", "&lt;")


def escape_latex(text: str) -> str:
    """Text with LaTeX's special characters written out."""
    return text.translate(_LATEX)


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
