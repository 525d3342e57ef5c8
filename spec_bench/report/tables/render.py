"""Formats a table as Markdown, HTML or LaTeX for people, and as CSV, line by line.

A label may be any text, such as a pair's name or a reason in a results file, so every text is
escaped for its format.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from math import isnan
from operator import itemgetter
from typing import Any, Literal

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from spec_bench.report.papers.items import PaperColumn
from spec_bench.report.tables.printed import Place, TableSheet
from spec_bench.settings.fields import to_one_line
from spec_bench.system.files import escape_cell
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.names import MARKS
from spec_bench.vocabulary.numbers import format_ends

LOST = "lost"
_LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "×": r"$\times$",
        "α": r"$\alpha$",
        "Δ": r"$\Delta$",
        "γ": r"$\gamma$",
        "τ": r"$\tau$",
        "±": r"$\pm$",
        "<": "$<$",
        ">": "$>$",
        "\n": " ",
    }
)
# most lines that fit on a page, with notes, in the text's own size
_LINES = 36


def escape_markdown(text: str) -> str:
    """Escapes a text so that it neither ends a cell nor opens an HTML tag or a link."""
    return to_one_line(text).replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def escape_latex(text: str) -> str:
    """Escapes LaTeX's special characters in a text."""
    return text.translate(_LATEX)


# By format: how to escape a text, then templates for bold, for underlined, and for the interval.
_FORMATS = {
    "markdown": (escape_markdown, "**{}**", "<u>{}</u>", " {}"),
    "latex": (escape_latex, r"\textbf{{{}}}", r"\underline{{{}}}", " {}"),
    "html": (lambda text: str(escape(text)), "<b>{}</b>", "<u>{}</u>", " <small>{}</small>"),
}


def list_shown_columns(sheet: TableSheet) -> list[tuple[PaperColumn, str]]:
    """Lists the columns that are written, each with the part that it shows (``paper``, ``ours`` or
    ``difference``), without those that have no printed or measured numbers.
    """
    by_column = group_by_key((place["column"], place) for place in sheet.places)
    result = []
    for column in sheet.columns:
        places = by_column.get(column.name, [])
        has_printed = any(place["printed"] or place["lost"] for place in places)
        has_measured = sheet.is_measured and any(place["requests"] for place in places)
        # Another pair's number differs for several reasons, so no difference is shown.
        is_paper_pair = any(place["printed"] and place["papers"] for place in places)
        has_difference = has_measured and is_paper_pair and column.shows == "number"
        parts = {"paper": has_printed, "ours": has_measured, "difference": has_difference}
        result += [(column, part) for part, present in parts.items() if present]
    return result


def format_grouped_title(column: PaperColumn) -> str:
    """Joins a column's group and title to one heading, because Markdown has none over several
    columns.
    """
    return f"{column.group}: {column.title}" if column.group else column.title


def _group_lines(sheet: TableSheet) -> list[list[Place]]:
    """Groups the places by line."""
    return [[*line] for _, line in groupby(sheet.places, itemgetter("line"))]


def format_lines(sheet: TableSheet, form: str) -> list[dict[str, Any]]:
    """Formats the lines of a table, with texts escaped for ``form``. ``label`` is the line's first
    label, ``first`` the same label or "" if it repeats that of the line above, ``more`` the other
    labels. ``texts`` has each shown column's text and its kind, ``number`` or ``word``. ``block``
    is the line's block, or its label if it competes with no other line.
    """
    escape_text = _FORMATS[form][0]
    shown = list_shown_columns(sheet)
    lines: list[dict[str, Any]] = []
    for places in _group_lines(sheet):
        by_column = {place["column"]: place for place in places}
        marks = {place["mark"] for place in places if place["ours"]}
        mark = marks.pop() if len(marks) == 1 else ""
        *labels, last = places[0]["labels"]
        last = f"{last} ({MARKS.get(mark, mark)})".strip() if mark else last
        first, *more = map(escape_text, (*labels, last))
        repeats = bool(lines) and lines[-1]["label"] == first
        lines.append(
            {
                "first": "" if repeats else first,
                "label": first,
                "more": more,
                "block": places[0]["block"] or first,
                "texts": [
                    _format_place_and_kind(by_column[c.name], c, e, mark, form) for c, e in shown
                ],
            }
        )
    return lines


def _format_place_and_kind(
    place: Place, column: PaperColumn, part: str, line_mark: str, form: str
) -> tuple[str, Literal["number", "word"]]:
    """Formats one part of a place; returns the text and its kind, ``number`` or ``word``.
    ``line_mark`` is the mark that the line's label shows already.
    """
    escape_text, bold, underlined, behind = _FORMATS[form]
    is_bold = is_underlined = False
    interval = ""
    digits = f".{column.digits}f"
    is_number = True
    if part == "paper":
        text = LOST if place["lost"] else place["printed"]
        interval = "±" + place["plus_minus"] if place["plus_minus"] else ""
        is_bold, is_underlined = place["best"], place["underlined"]
        is_number = bool(place["printed"]) and column.shows == "number"
    elif part == "difference":
        value = place["difference"]
        text = "" if isnan(value) else f"{value:+{digits}}"
    else:
        value = place["value"]
        is_number = not isnan(value)
        text = f"{value:{digits}}" if is_number else place["text"] or place["state"]
        if place["mark"] and not line_mark:
            text += f" ({MARKS.get(place['mark'], place['mark'])})"
        low, high = place["low"], place["high"]
        interval = format_ends(low, high, digits) if low != high else ""
        is_bold = place["ours_best"]
    text = escape_text(text)
    text = bold.format(text) if is_bold else text
    text = underlined.format(text) if is_underlined else text
    text += behind.format(escape_text(interval)) if interval else ""
    return text, "number" if is_number else "word"


def list_header_levels(sheet: TableSheet) -> list[list[tuple[str, int]]]:
    """Lists one to three lines of headings as (text, width in columns): groups, titles, and parts
    (``paper``, ``ours`` or ``difference``).
    """
    shown = list_shown_columns(sheet)
    keys = [[column.group for column, _ in shown]] if any(c.group for c, _ in shown) else []
    keys.append([f"{column.group}\0{column.title}" for column, _ in shown])
    if sheet.is_measured:
        keys.append([f"{place}\0{part}" for place, (_, part) in enumerate(shown)])
    return [
        [(key.rpartition("\0")[2], len(list(run))) for key, run in groupby(level)] for level in keys
    ]


def format_table_markdown(sheet: TableSheet) -> str:
    """Formats a table as Markdown: title, table, notes, commands."""
    shown = list_shown_columns(sheet)
    heads = [
        format_grouped_title(column) + f", {part}" * sheet.is_measured for column, part in shown
    ]
    lines = [
        [*map(escape_markdown, (*sheet.heads, *heads))],
        ["---"] * len(sheet.heads) + ["---:"] * len(shown),
        *(
            [line["first"], *line["more"], *(text for text, _ in line["texts"])]
            for line in format_lines(sheet, "markdown")
        ),
    ]
    title = escape_markdown(f"{sheet.name}: {sheet.title}")
    parts = [f"### {title}", "\n".join(map(format_markdown_row, lines))]
    if sheet.notes:
        parts.append("\n".join(f"- {escape_markdown(note)}" for note in sheet.notes))
    if sheet.commands:
        commands = "\n".join(map(to_one_line, sheet.commands))
        parts.append(f"Missing cells are run by:\n\n```\n{commands}\n```")
    return "\n\n".join(parts) + "\n"


def format_tables_html_page(*sheets: TableSheet) -> str:
    """Formats a table, or the parts of one, as a whole HTML page in the report's style."""
    page = make_template_environment("spec_bench.report.tables").get_template("page.html.jinja")
    style = (
        make_template_environment("spec_bench.report.page")
        .get_template("style.css.j2")
        .render(decoders={})
    )
    tables = [Markup(format_table_html(sheet)) for sheet in sheets]
    return page.render(name=sheets[0].name, tables=tables, style=style) + "\n"


def format_table_html(sheet: TableSheet) -> str:
    """Formats a table as a fragment of an HTML page: title, table, notes and commands."""
    lines = format_lines(sheet, "html")
    blocks = [[*part] for _, part in groupby(lines, lambda line: line["block"])]
    parts = [part * sheet.is_measured for _, part in list_shown_columns(sheet)]
    fragment = make_template_environment("spec_bench.report.tables").get_template(
        "table.html.jinja"
    )
    return (
        fragment.render(sheet=sheet, levels=list_header_levels(sheet), blocks=blocks, parts=parts)
        + "\n"
    )


@functools.cache
def make_template_environment(package: str) -> jinja2.Environment:
    """Returns the jinja2 environment of a package's templates."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def format_table_latex(sheet: TableSheet) -> str:
    """Formats a table as a LaTeX table environment with booktabs; commands for missing cells follow
    it as comments.
    """
    lines = format_lines(sheet, "latex")
    is_long = len(lines) > _LINES
    has_rules = any(before["block"] == after["block"] for before, after in pairwise(lines))
    body: list[str] = []
    for _, part in groupby(lines, lambda line: line["block"] if has_rules else ""):
        body += [r"\midrule"] if body else []
        for place, line in enumerate(part):
            head_label = line["first"] if place else line["label"]  # repeated below a rule
            texts = [text for text, _ in line["texts"]]
            body.append(" & ".join([head_label, *line["more"], *texts]) + r" \\")
    notes = " ".join(map(escape_latex, sheet.notes))
    name = re.sub(r"[^\w.:-]", "-", sheet.name)
    size = r"\scriptsize" if is_long else r"\footnotesize"
    parts = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(sheet.title)}}}",
        rf"\label{{tab:{name}}}",
        *([r"\small"] if is_long else []),
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{'l' * len(sheet.heads)}{'r' * len(list_shown_columns(sheet))}}}",
        r"\toprule",
        *_iter_latex_heads(sheet),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}%",
        "}",
        *([r"\par\smallskip"] if notes else []),
        *([rf"\begin{{minipage}}{{\linewidth}}{size} {notes}\end{{minipage}}"] if notes else []),
        r"\end{table}",
        *(f"% missing cells: {to_one_line(command)}" for command in sheet.commands),
    ]
    return "\n".join(parts) + "\n"


def _iter_latex_heads(sheet: TableSheet) -> Iterator[str]:
    """Yields the lines of headings, and rules below headings that span several columns. The last
    line has the labels' headings.
    """
    levels = list_header_levels(sheet)
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


def format_tables_csv(*sheets: TableSheet) -> str:
    """Formats a table, or the parts of one, as CSV without notes. If there are several parts, the
    first column has each part's setting.

    Every line has all labels. Numbers and interval ends have columns of their own; measured ones
    have six significant digits.
    """
    texts: list[str] = []
    for sheet in sheets:
        setting = {"setting": sheet.setting} if len(sheets) > 1 else {}
        heads = [head.replace(" ", "_") for head in sheet.heads]
        lines = []
        for places in _group_lines(sheet):
            line = setting | dict(zip(heads, places[0]["labels"], strict=True))
            for place in places:
                ends = _format_csv_values(place, sheet.is_measured)
                line |= {f"{place['column']}_{end}": text for end, text in ends.items()}
            if sheet.is_measured:
                marks = {place["mark"] for place in places if place["ours"]}
                exact = {mark if mark in MARKS else "exact" for mark in marks}
                line["lossless"] = "/".join(sorted(exact))
            lines.append(line)
        frame = pd.DataFrame(lines).map(escape_cell).rename(columns=escape_cell)
        texts.append(frame.to_csv(index=False, header=not texts, lineterminator="\n"))
    return "".join(texts)


def _format_csv_values(place: Place, is_measured: bool) -> dict[str, str]:
    """Returns a place's texts by column suffix, only the paper's if the table is not measured."""
    spread = f"±{place['plus_minus']}" if place["plus_minus"] else ""
    texts = {"paper": f"{place['printed']}{spread}", "paper_state": LOST * place["lost"]}
    numbers = ("value", "low", "high", "difference")
    value, low, high, difference = (
        "" if isnan(place[name]) else f"{place[name]:.6g}" for name in numbers
    )
    measured_texts = {
        "ours": value or place["text"],
        "low": low,
        "high": high,
        "difference": difference,
    }
    state = "disturbed" if place["doubted"] else place["state"]
    return texts | measured_texts | {"state": state} if is_measured else texts


def format_markdown_row(texts: Iterable[str]) -> str:
    """Formats a row of a Markdown table from texts that are escaped already."""
    return "| " + " | ".join(texts) + " |"


def format_markdown_table(
    heads: Sequence[str], lines: Iterable[Sequence[str]], label_count: int
) -> str:
    """Formats a Markdown table of texts, which it escapes. Columns after the first ``label_count``
    are numbers, aligned to the right.
    """
    rules = ["---"] * label_count + ["---:"] * (len(heads) - label_count)
    escaped = [[escape_markdown(text) for text in line] for line in (heads, *lines)]
    return "\n".join(map(format_markdown_row, [escaped[0], rules, *escaped[1:]]))
