"""The page's HTML: the gathered data, in the words and order of the templates, which escape it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from spec_bench.report.claims import Check
from spec_bench.report.claims.verdict import VERDICTS, summary_of
from spec_bench.report.data.counts import Records
from spec_bench.report.data.differences import differences
from spec_bench.report.data.past import archived, of_past_engine
from spec_bench.report.data.rows import Group, read_from, rows_of
from spec_bench.report.data.seeds import seeds_text
from spec_bench.report.data.sittings import meanings_of
from spec_bench.report.page.gather import PageData
from spec_bench.report.page.headline import answer, headline, title_of
from spec_bench.report.page.results_table import category_tables, results_table, shown_columns
from spec_bench.report.tables.render import html_fragment
from spec_bench.vocabulary import names

_DOT = re.compile(r'class="dot ([\w-]+)"')


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spec_bench.report.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["decoders"] = _decoders
    return environment


def _decoders(content: str) -> dict[str, names.Decoder]:
    """The decoders whose dots stand in a page: the style sheet has their looks and no others."""
    return names.apart(sorted(set(_DOT.findall(content))))


def render(template: str, **values: Any) -> str:
    """A page from a template of the folder beside this file, with values for its names."""
    return _environment().get_template(template).render(**values)


def style() -> str:
    """The pages' style sheet, without any decoder's colour."""
    return render("style.css.j2", decoders={})


_VERDICTS = {"holds": "good", "within noise": "open", "does not hold": "bad"}
_MOST_LINES, _FEWEST_LINES = 600, 20  # of all tables, of each one
_OTHER_VERDICT = "none"
SMALL = "Measured on small models that ship with the package, on invented text; not the {} models."


@dataclass(frozen=True)
class Place:
    """A group as the page's filters know it."""

    title: str  # for people, without the pair, which stands beside it
    pair: str  # name of the pair
    task: str  # name of the task

    @classmethod
    def of(cls, group: Group) -> Place:
        """A group's."""
        first = group.rows.iloc[0]
        return cls(title_of(group), str(first.pair), str(first.task))


def build_page(data: PageData) -> str:
    """The whole page."""
    cards = [(Place.of(group), card) for group in data.groups if (card := headline(group))]
    most = max(_FEWEST_LINES, _MOST_LINES // len(data.groups))
    records = Records(data.file)
    summary = summary_of(data.checks, data.paper)
    screened = "stage" in data.rows and (data.rows.stage == "screen").any()
    categories = [
        (Place.of(group), title, table)
        for group in data.groups
        for title, table in category_tables(group, records)
    ]
    return render(
        "page.html.j2",
        data=data,
        days=sorted({origin["day"] for origin, _ in data.origins if origin["day"]}),
        sections=_sections(data, bool(categories)),
        measured_on=measured_on(data.rows.target, bool(data.paper)) or read_from(data.rows),
        tiles=_tiles(data),
        pairs={pair: pair for pair in dict.fromkeys(map(str, data.rows.pair))},
        tasks={task: names.task(task) for task in dict.fromkeys(map(str, data.rows.task))},
        answer=answer([card for _, card in cards]),
        headlines=cards,
        meanings=meanings_of(data.rows),
        remarks=differences(rows_of(data.rows), [each.name for each in shown_columns(data.rows)]),
        results=[(Place.of(group), results_table(group, most)) for group in data.groups],
        files=f"{data.file.name}{' and screening.csv' if screened else ''} beside this page",
        categories=categories,
        tables=list(_tables(data)),
        claims=_claims(data.checks, bool(data.paper)),
        summary=summary,
        verdicts=dict.fromkeys(VERDICTS, _OTHER_VERDICT) | _VERDICTS,
        missing=list(_missing(data)),
        sampling=_sampling(data),
        columns=shown_columns(data.rows),
    )


def measured_on(targets: Sequence[str], paper: bool) -> str:
    """The caveat on rows whose targets are embedded models, in a paper's experiment or another; ""
    without such rows.
    """
    small = [str(target).startswith("embedded:") for target in targets]
    if not any(small):
        return ""
    text = SMALL.format("paper's" if paper else "papers'")
    return text if all(small) else f"Cells of the embedded pairs: {text[0].lower()}{text[1:]}"


def _sections(data: PageData, categories: bool) -> dict[str, str]:
    """Key and heading of the sections that have something to show, "" for the others."""
    shown = {
        "figures": ("Figures", bool(data.pictures or data.more_figures)),
        "checks": ("Checks", bool(data.checks or data.paper)),
        "results": ("Results", True),
        "categories": ("By category", categories),
        "paper": ("Beside the paper", bool(data.tables)),
        "missing": ("Missing cells", bool(data.progress)),
        "origin": ("Provenance", True),
        "words": ("What the numbers mean", True),
    }
    return {key: title if there else "" for key, (title, there) in shown.items()}


def _tiles(data: PageData) -> list[tuple[str, str]]:
    """Counts, with their nouns."""
    rows = data.rows
    failed = int((rows.status == "failed").sum())
    parts = [part.missing for _, part in data.progress]
    missing = len(pd.concat(parts).drop_duplicates()) if parts else 0
    simulated = int((rows.lossless == "simulated").sum())
    prompts = rows.prompts.max() if "prompts" in rows else float("nan")
    tiles = [
        (str(len(rows) - failed), "cells measured"),
        (str(rows.pair.nunique()), "pairs" if rows.pair.nunique() > 1 else "pair"),
        (str(rows.task.nunique()), "tasks" if rows.task.nunique() > 1 else "task"),
        ("–" if prompts != prompts else f"{prompts:.0f}", "prompts per cell"),
    ]
    others = {
        "failed": failed,
        "missing": missing,
        "simulated": simulated,
        "timed by an earlier engine: no times": int(of_past_engine(rows).sum()),
        "of past weights, data or engines, archived": archived(data.file),
    }
    return [*tiles, *((str(count), f"cells {name}") for name, count in others.items() if count)]


def _tables(data: PageData) -> Iterator[tuple[str, Markup]]:
    """Each table's title and HTML, which ``html_fragment`` has escaped."""
    for shown in data.tables:
        ours = f" · ours: {shown.pair}" if shown.pair else ""
        title = f"{shown.sheet.name}: {shown.sheet.title}{ours}"
        yield title, Markup(html_fragment(shown.sheet))


def _claims(checks: Sequence[Check], paper: bool) -> list[dict[str, Any]]:
    """Checks under the paper's statements."""
    by_statement: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        by_statement.setdefault((check.section, check.statement), []).append(check)
    return [
        {"section": section, "text": statement, "ours": paper, "checks": group}
        for (section, statement), group in by_statement.items()
    ]


def _missing(data: PageData) -> Iterator[dict[str, object]]:
    """The cells of the recipe that are missing on these pairs."""
    for item, part in data.progress:
        if part.missing.empty:
            continue
        cells = dict.fromkeys((part.missing.decoder + " " + part.missing.spec).str.strip())
        yield {
            "pair": part.pair,
            "tasks": ", ".join(dict.fromkeys(map(names.task, part.missing.task))),
            "item": item.name,
            "count": len(part.missing),
            "needed": part.needed,
            "cells": ", ".join(cells),
        }


def _sampling(data: PageData) -> str:
    """The settings that cells were sampled with."""
    rows = data.rows.assign(seeds=[seeds_text(row) for row in rows_of(data.rows)])
    settings = rows[["temperature", "top_k", "top_p", "seeds", "batch_size"]].drop_duplicates()
    return "; ".join(
        f"temperature {row.temperature:g}, top-k {row.top_k:g}, top-p {row.top_p:g}, "
        f"{row.seeds}, batch {row.batch_size}"
        for row in settings.itertuples()
    )
