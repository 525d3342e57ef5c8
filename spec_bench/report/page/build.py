"""The page's HTML from what was gathered; style and script are written into it."""

from __future__ import annotations

from html import escape
from importlib import resources

from spec_bench.report.load import Group
from spec_bench.report.page.gather import PageData
from spec_bench.report.page.headline import headline, title_of
from spec_bench.report.page.results_table import SHOWN, results_table
from spec_bench.report.papers import html
from spec_bench.report.papers.titles import MEANINGS, TASKS, titled

_VERDICTS = {"holds": "good", "within noise": "open", "does not hold": "bad"}


def asset(name: str) -> str:
    """A file that is written into pages."""
    return (resources.files("spec_bench.report.page") / name).read_text(encoding="utf-8")


def build_page(data: PageData) -> str:
    """The whole page."""
    title = f"{data.name} · {data.paper.title if data.paper else 'spec_bench'}"
    sections = [
        ("results", "Results", _results(data)),
        ("figures", "Figures", _figures(data)),
        ("paper", "Beside the paper", _tables(data)),
        ("checks", "Checks", _checks(data)),
        ("missing", "Missing cells", _missing(data)),
        ("origin", "Provenance", _origins(data)),
        ("words", "What the numbers mean", _words()),
    ]
    shown = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in shown)
    body = "".join(
        f'<section id="{key}"><h2>{escape(name)}</h2>{content}</section>'
        for key, name, content in shown
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{asset('page.css')}</style>\n</head>\n<body>\n"
        f"<header><div><h1>{escape(data.name)}</h1>{_subtitle(data)}</div></header>\n"
        f"<nav><div>{links}</div></nav>\n"
        f"<main>{_tiles(data)}{_choosers(data)}{_headlines(data)}{body}</main>\n"
        f"<script>\n{asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _subtitle(data: PageData) -> str:
    """Whose experiment it is and when it was measured."""
    paper = f"{data.paper.title} · arXiv {data.paper.arxiv}" if data.paper else "an own experiment"
    days = sorted({origin["day"] for origin, _ in data.origins if origin["day"]})
    when = f" · measured {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}" if days else ""
    return f"<p>{escape(paper + when)}</p>"


def _tiles(data: PageData) -> str:
    """Counts."""
    rows = data.rows
    failed = int((rows.status == "failed").sum())
    missing = len({cell for _, part in data.progress for cell in part.missing})
    prompts = rows.prompts.max() if "prompts" in rows else None
    facts = [
        (str(len(rows) - failed), "cells measured"),
        (str(rows.pair.nunique()), "pairs" if rows.pair.nunique() > 1 else "pair"),
        (str(rows.task.nunique()), "tasks" if rows.task.nunique() > 1 else "task"),
        ("–" if prompts is None or prompts != prompts else f"{prompts:.0f}", "prompts a cell"),
    ]
    if failed:
        facts.append((str(failed), "cells failed"))
    if missing:
        facts.append((str(missing), "cells missing"))
    simulated = int((rows.lossless == "simulated").sum())
    if simulated:
        facts.append((str(simulated), "cells simulated"))
    tiles = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in facts)
    return f'<div class="tiles">{tiles}</div>'


def _headlines(data: PageData) -> str:
    """A card a group."""
    cards = []
    for group in data.groups:
        found = headline(group)
        if found is None:
            continue
        interval = f"<small>{escape(found.interval)}</small>" if found.interval else ""
        cards.append(
            f'<article class="card" {_scope(group)}><h3>{escape(found.task)}'
            f"<span>{escape(found.pair)}</span></h3>"
            f'<p class="winner"><i class="dot {escape(found.code)}"></i>{escape(found.decoder)}</p>'
            f'<p class="value">{escape(found.value)} {interval}</p>'
            f'<p class="sure">{escape(found.sure)}</p></article>'
        )
    if not cards:
        return ""
    return f'<section><h2>Fastest decoder</h2><div class="cards">{"".join(cards)}</div></section>'


def _results(data: PageData) -> str:
    """A table a group."""
    tables = [
        f'<div class="group" {_scope(group)}><h3>{escape(title_of(group))}'
        f"<span>{escape(str(group.rows.iloc[0].pair))}</span></h3>{results_table(group)}</div>"
        for group in data.groups
    ]
    hint = (
        '<p class="hint">A click on a heading sorts. Small: 95% intervals over prompts. Shaded: '
        "the interval lies above those of all other exact decoders."
    )
    found = set(map(str, data.rows.lossless))
    meanings = [escape(text) for mark, text in MEANINGS.items() if mark in found]
    hint = "<br>".join([hint, *meanings]) + "</p>"
    return hint + "".join(tables)


def _choosers(data: PageData) -> str:
    """Choices of pair and task for everything below them."""
    parts = [
        _chooser("pair", list(dict.fromkeys(map(str, data.rows.pair)))),
        _chooser("task", list(dict.fromkeys(map(str, data.rows.task)))),
    ]
    return f'<div class="choosers">{"".join(parts)}</div>' if any(parts) else ""


def _chooser(name: str, values: list[str]) -> str:
    """A choice that hides what is not chosen; nothing where there is no choice."""
    if len(values) < 2:
        return ""
    options = "".join(
        f'<option value="{escape(value)}">{escape(titled(TASKS, value))}</option>'
        for value in values
    )
    return (
        f'<label>{name} <select data-filter="{name}"><option value="">all</option>{options}'
        "</select></label>"
    )


def _scope(group: Group) -> str:
    first = group.rows.iloc[0]
    return f'data-pair="{escape(str(first.pair))}" data-task="{escape(str(first.task))}"'


def _figures(data: PageData) -> str:
    return "".join(
        f'<figure><img src="{picture.data_uri}" alt="{escape(picture.title)}">'
        f"<figcaption>{escape(picture.title)}</figcaption></figure>"
        for picture in data.pictures
    ) + _more_figures(data)


def _more_figures(data: PageData) -> str:
    """The commands that draw the figures that are not on the page."""
    if not data.more_figures:
        return ""
    commands = escape("\n".join(data.more_figures))
    return f"<p>Drawn by a command each:</p><pre class='command'>{commands}</pre>"


def _tables(data: PageData) -> str:
    """Each table closed until it is asked for."""
    return "".join(
        f"<details><summary>{escape(shown.grid.name)}: {escape(shown.grid.title)}"
        f"{escape(f' · ours: {shown.pair}' if shown.pair else '')}</summary>"
        f"{html.fragment(shown.grid)}</details>"
        for shown in data.tables
    )


def _checks(data: PageData) -> str:
    """Claims and verdicts."""
    if not data.checks:
        return ""
    lines = "".join(
        f"<tr><td>{escape(check.claim)}</td><td>{escape(check.where)}</td>"
        f"<td>{escape(check.evidence)}</td>"
        f'<td><span class="verdict {_VERDICTS.get(check.verdict, "open")}">'
        f"{escape(check.verdict)}</span></td></tr>"
        for check in data.checks
    )
    heads = "".join(f"<th>{head}</th>" for head in ("claim", "on", "evidence", "verdict"))
    return (
        f'<div class="scroll"><table class="checks"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _missing(data: PageData) -> str:
    """What of the recipe is not there on these pairs, and what would run it."""
    open_parts = [(item, part) for item, part in data.progress if part.missing]
    if not data.progress:
        return ""
    if not open_parts:
        return "<p>None: every cell of the recipe is measured on these pairs.</p>"
    lines = []
    for item, part in open_parts:
        cells = ", ".join(
            dict.fromkeys(f"{cell.decoder} {cell.spec}".strip() for cell in part.missing)
        )
        tasks = ", ".join(dict.fromkeys(titled(TASKS, cell.task) for cell in part.missing))
        lines.append(
            f"<li><b>{escape(part.pair)}</b>, {escape(tasks)} ({escape(item.name)}): "
            f"{len(part.missing)} of {part.needed}: <span class='tree'>{escape(cells)}</span></li>"
        )
    commands = "".join(f"<pre class='command'>{escape(each)}</pre>" for each in data.commands)
    return f'<ul class="missing">{"".join(lines)}</ul><p>Run by:</p>{commands}'


def _origins(data: PageData) -> str:
    """Machines, versions, revisions; where the records are not there, that."""
    facts = f'<p>Results: <span class="tree">{escape(str(data.file))}</span></p>'
    settings = data.rows[["temperature", "top_k", "top_p", "seed", "batch_size"]].drop_duplicates()
    sampled = "; ".join(
        f"temperature {row.temperature:g}, top-k {row.top_k:g}, top-p {row.top_p:g}, "
        f"seed {row.seed}, batch {row.batch_size}"
        for row in settings.itertuples()
    )
    facts += f"<p>Sampling: {escape(sampled)}</p>"
    if not data.origins:
        return facts + "<p>The raw runs, which hold the machine and versions, are not here.</p>"
    parts = []
    for origin, count in data.origins:
        entries = "".join(
            f"<dt>{key}</dt><dd>{escape(value)}</dd>" for key, value in origin.items()
        )
        parts.append(f"<dl><dt>cells</dt><dd>{count}</dd>{entries}</dl>")
    return facts + "".join(parts)


def _words() -> str:
    """One definition a column."""
    entries = "".join(
        f"<dt>{escape(column.title)}</dt><dd>{escape(column.definition)}</dd>" for column in SHOWN
    )
    return f"<dl>{entries}</dl>"
