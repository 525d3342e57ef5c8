"""A table as Markdown, HTML, LaTeX or CSV: its places as texts, line by line.

A label may come from anywhere: a pair's name, a reason in a results file. So whatever reaches a
format is escaped for it.
"""

import csv
import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape

from spec_bench.report.papers.items import PaperColumn
from spec_bench.report.tables.printed import TableCell, TableSheet
from spec_bench.settings.fields import one_line
from spec_bench.system.files import escape_cell
from spec_bench.vocabulary.names import MARKS
from spec_bench.vocabulary.numbers import format_ends

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


class TableColumn(NamedTuple):
    """A column of the written table: the paper's numbers of one, ours, or their difference."""

    place: int
    column: PaperColumn
    part: str  # paper, ours or difference

    @property
    def title(self) -> str:
        """In one heading: Markdown has none over several columns."""
        group = f"{self.column.group}: " if self.column.group else ""
        return f"{group}{self.column.title}"


class CellText(NamedTuple):
    """What stands in a place of a written table."""

    text: str  # the number, or the reason why there is none
    interval: str = ""  # in brackets; or the paper's plus/minus
    bold: bool = False
    underlined: bool = False
    number: bool = True


def list_columns(sheet: TableSheet) -> list[TableColumn]:
    """Returns the columns that are written: not those that nobody printed or measured."""
    result = []
    for place, column in enumerate(sheet.columns):
        cells = [line.cells[place] for line in sheet.lines]
        has_printed = any(cell.printed or cell.lost for cell in cells)
        ours = sheet.measured and any(cell.asked for cell in cells)
        # Another pair's number differs for more than one reason.
        is_paper_pair = any(cell.printed and cell.papers for cell in cells)
        has_difference = ours and is_paper_pair and column.shows == "number"
        parts = {"paper": has_printed, "ours": ours, "difference": has_difference}
        result += [TableColumn(place, column, part) for part, present in parts.items() if present]
    return result


class TextLine(NamedTuple):
    """A line as escaped texts."""

    first: str  # its first label, "" where the line above has the same
    more: list[str]  # its other labels
    texts: list[str]  # one for each of ``select_columns``
    label: str  # its first label in any case
    block: str  # of a line that competes with none its label


def format_lines(
    sheet: TableSheet, write: Callable[[CellText, str], str], letters: Callable[[str], str]
) -> list[TextLine]:
    """Returns the lines of a table: ``write`` makes a place's text of the part that it shows, as
    the format has it, and ``letters`` escapes a label.
    """
    table_columns = list_columns(sheet)
    lines: list[TextLine] = []
    for line in sheet.lines:
        marks = {cell.mark for cell in line.cells if cell.ours}
        mark = marks.pop() if len(marks) == 1 else ""
        last_label = (
            f"{line.labels[-1]} ({MARKS.get(mark, mark)})".strip() if mark else line.labels[-1]
        )
        labels = [letters(label) for label in (*line.labels[:-1], last_label)]
        texts = [
            write(_text(line.cells[label.place], label, mark), label.part)
            for label in table_columns
        ]
        first_label = "" if lines and lines[-1].label == labels[0] else labels[0]
        lines.append(TextLine(first_label, labels[1:], texts, labels[0], line.block or labels[0]))
    return lines


def _text(cell: TableCell, table_column: TableColumn, of_line: str) -> CellText:
    """Returns one place; ``of_line`` is the mark that stands at the line's label."""
    form = f".{table_column.column.digits}f"
    if table_column.part == "paper":
        if cell.lost:
            return CellText(LOST, number=False)
        spread = f"±{cell.plus_minus}" if cell.plus_minus else ""
        number = bool(cell.printed) and table_column.column.shows == "number"
        return CellText(cell.printed, spread, cell.best, cell.underlined, number)
    if table_column.part == "difference":
        value = _difference(cell)
        return CellText("" if value is None else f"{value:+{form}}")
    if not cell.ours:
        return CellText(cell.state, number=False)
    symbol = cell.mark if not of_line else ""
    mark = f" ({MARKS.get(symbol, symbol)})" if symbol else ""
    if cell.value is None:
        return CellText(f"{cell.text}{mark}", number=False)
    interval = format_ends(cell.low, cell.high, form) if cell.low != cell.high else ""
    return CellText(f"{cell.value:{form}}{mark}", interval, cell.ours_best)


def _difference(cell: TableCell) -> float | None:
    """Ours minus printed; None where one of them is missing or of another pair, or ours decides
    nothing.
    """
    if cell.value is None or not (cell.printed and cell.papers) or cell.doubted:
        return None
    return cell.value - float(cell.printed)


def header_levels(sheet: TableSheet) -> list[list[tuple[str, int]]]:
    """One to three lines of headings as (text, columns wide): groups, titles, whose number."""
    table_columns = list_columns(sheet)
    keys = (
        [[column.column.group for column in table_columns]]
        if any(e.column.group for e in table_columns)
        else []
    )
    keys.append([f"{column.column.group}\0{column.column.title}" for column in table_columns])
    if sheet.measured:
        keys.append([f"{place}\0{column.part}" for place, column in enumerate(table_columns)])
    return [
        [(key.rpartition("\0")[2], len(list(run))) for key, run in groupby(level)] for level in keys
    ]


def markdown(sheet: TableSheet) -> str:
    """Title, table, notes, commands."""

    def write(text: CellText, _: str) -> str:
        number = escape_markdown(text.text)
        number = f"**{number}**" if text.bold else number
        number = f"<u>{number}</u>" if text.underlined else number
        return f"{number} {escape_markdown(text.interval)}".strip()

    table = format_lines(sheet, write, escape_markdown)
    table_columns = list_columns(sheet)
    heads = [
        f"{column.title}, {column.part}" if sheet.measured else column.title
        for column in table_columns
    ]
    lines = [
        [*map(escape_markdown, (*sheet.heads, *heads))],
        ["---"] * len(sheet.heads) + ["---:"] * len(table_columns),
        *([line.first, *line.more, *line.texts] for line in table),
    ]
    title = escape_markdown(f"{sheet.name}: {sheet.title}")
    parts = [f"### {title}", "\n".join(map(format_markdown_row, lines))]
    if sheet.notes:
        parts.append("\n".join(f"- {escape_markdown(note)}" for note in sheet.notes))
    if sheet.commands:
        commands = "\n".join(map(one_line, sheet.commands))
        parts.append(f"Missing cells are run by:\n\n```\n{commands}\n```")
    return "\n\n".join(parts) + "\n"


def html(*sheets: TableSheet) -> str:
    """Returns a whole page with a table, or with the parts of one, in the style of all pages."""
    page = environment("spec_bench.report.tables").get_template("page.html.jinja")
    style = environment("spec_bench.report.page").get_template("style.css.j2").render(decoders={})
    tables = [Markup(html_fragment(sheet)) for sheet in sheets]
    return page.render(name=sheets[0].name, tables=tables, style=style) + "\n"


def html_fragment(sheet: TableSheet) -> str:
    """Returns a table for a page: title, table, notes and commands."""

    def write(text: CellText, part: str) -> str:
        number = Markup("<b>{}</b>" if text.bold else "{}").format(text.text)
        number = Markup("<u>{}</u>").format(number) if text.underlined else number
        interval = Markup(" <small>{}</small>").format(text.interval) if text.interval else ""
        kind = f"{'number' if text.number else 'word'} {part if sheet.measured else ''}"
        return Markup('<td class="{}">{}{}</td>').format(kind, number, interval)

    table = format_lines(sheet, write, lambda text: Markup(escape(text)))
    blocks = [[*part] for _, part in groupby(table, lambda line: line.block)]
    fragment = environment("spec_bench.report.tables").get_template("table.html.jinja")
    return fragment.render(sheet=sheet, levels=header_levels(sheet), blocks=blocks) + "\n"


@functools.cache
def environment(package: str) -> jinja2.Environment:
    """Returns what fills the templates of a package."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def latex(sheet: TableSheet) -> str:
    """A table environment with booktabs; missing cells' commands stand in comments below it."""

    def write(text: CellText, _: str) -> str:
        number = escape_latex(text.text)
        number = rf"\textbf{{{number}}}" if text.bold else number
        number = rf"\underline{{{number}}}" if text.underlined else number
        return f"{number} {escape_latex(text.interval)}" if text.interval else number

    table = format_lines(sheet, write, escape_latex)
    labels = len(sheet.heads)
    long = len(table) > _LINES
    has_rules = any(
        line_before.block == line_after.block for line_before, line_after in pairwise(table)
    )
    body: list[str] = []
    for _, part in groupby(table, lambda line: line.block if has_rules else ""):
        body += [r"\midrule"] if body else []
        for place, line in enumerate(part):
            head_label = line.first if place else line.label  # repeated below a rule
            body.append(" & ".join([head_label, *line.more, *line.texts]) + r" \\")
    notes = " ".join(map(escape_latex, sheet.notes))
    name = re.sub(r"[^\w.:-]", "-", sheet.name)
    size = r"\scriptsize" if long else r"\footnotesize"
    parts = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(sheet.title)}}}",
        rf"\label{{tab:{name}}}",
        *([r"\small"] if long else []),
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{'l' * labels}{'r' * len(list_columns(sheet))}}}",
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


def _latex_heads(sheet: TableSheet) -> Iterator[str]:
    """The headings, the labels' in the last line, and rules below those of several columns."""
    levels = header_levels(sheet)
    for level in levels:
        is_last = level is levels[-1]
        heads = [escape_latex(head) if is_last else "" for head in sheet.heads]
        for text, width in level:
            title = escape_latex(text)
            heads.append(rf"\multicolumn{{{width}}}{{c}}{{{title}}}" if width > 1 else title)
        yield " & ".join(heads) + r" \\"
        start = len(sheet.heads) + 1
        rules = []
        for _, width in level:
            rules += [rf"\cmidrule(lr){{{start}-{start + width - 1}}}"] if width > 1 else []
            start += width
        if rules and not is_last:
            yield " ".join(rules)


def csv_text(*sheets: TableSheet) -> str:
    """The table alone, or its parts, as CSV: notes are no rows. Of several parts, a first column
    has each one's setting.

    Every label stands in every line, numbers and interval ends in columns of their own. Measured
    values keep all their digits.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for place, sheet in enumerate(sheets):
        setting = [] if len(sheets) == 1 else [sheet.setting]
        ends = ["paper", "paper_state"]
        ends += ["ours", "low", "high", "difference", "state"] * sheet.measured
        names = [f"{column.name}_{end}" for column in sheet.columns for end in ends]
        heads = [*(["setting"] if setting else []), *(h.replace(" ", "_") for h in sheet.heads)]
        if not place:
            end_column = ["lossless"] if sheet.measured else []
            writer.writerow(map(escape_cell, [*heads, *names, *end_column]))
        for line in sheet.lines:
            values = [value for cell in line.cells for value in _values(cell)[: len(ends)]]
            ours = [cell for cell in line.cells if cell.ours]
            marks = {cell.mark if cell.mark in MARKS else "exact" for cell in ours}
            lossless = ["/".join(sorted(marks))] if sheet.measured else []
            writer.writerow(map(escape_cell, [*setting, *line.labels, *values, *lossless]))
    return stream.getvalue()


def _values(cell: TableCell) -> list[str]:
    """Paper, whether it is lost, ours, both ends of the interval, difference, state."""
    printed_text = f"{cell.printed}±{cell.plus_minus}" if cell.plus_minus else cell.printed
    texts = [printed_text, LOST * cell.lost]
    if not cell.ours:
        return [*texts, "", "", "", "", cell.state]
    if cell.value is None:
        return [*texts, cell.text, "", "", "", ""]
    numbers = (cell.value, cell.low, cell.high, _difference(cell))
    state = "disturbed" if cell.doubted else ""
    return [*texts, *("" if number is None else f"{number:.6g}" for number in numbers), state]


def escape_markdown(text: str) -> str:
    """Text that neither ends a cell nor opens an HTML tag, nor is a link."""
    return one_line(text).replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def escape_latex(text: str) -> str:
    """Text with LaTeX's special characters written out."""
    return text.translate(_LATEX)


def format_markdown_row(texts: Iterable[str]) -> str:
    """Returns a line of a Markdown table of texts that are escaped already."""
    return "| " + " | ".join(texts) + " |"


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]], labels: int) -> str:
    """A Markdown table, escaped; columns behind ``labels`` are numbers, to the right."""
    rules = ["---"] * labels + ["---:"] * (len(heads) - labels)
    escaped = [[escape_markdown(text) for text in line] for line in (heads, *lines)]
    return "\n".join(map(format_markdown_row, [escaped[0], rules, *escaped[1:]]))
