"""The plain report on one results file: ``table.md`` and ``figure.png`` beside it, and checks.

The table has one part per task; values stand with their 95% intervals. Both it and the printed
text end with the answer: the decoder to use on each task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.claims import Check, check_generally
from spec_bench.report.claims.verdict import summary_of
from spec_bench.report.data.counts import Records
from spec_bench.report.data.records import check_records, origin_of
from spec_bench.report.data.rows import (
    Group,
    failure_of,
    groups_of,
    interval_in,
    read_from,
    read_results,
    remarks_of,
    stall_of,
)
from spec_bench.report.data.seeds import POOLED, SEEDS, pooled, seeds_text
from spec_bench.report.data.sittings import meanings_of
from spec_bench.report.page.headline import headlines
from spec_bench.report.page.results_table import numbers_by_category
from spec_bench.report.tables.render import escape_markdown, markdown_table
from spec_bench.report.verdicts import print_checks
from spec_bench.system.files import write_text
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.columns import Column
from spec_bench.vocabulary.names import MARKS

_OF_A_REQUEST = frozenset({"latency_s", "token_rate_per_request"})  # not in the plain table


def write_report(results: Path, folder: Path) -> None:
    """Writes the table with the checks, draws the figure, prints the checks and the answers.

    Raises:
        ValueError: there is no such file, it has no rows, or the records beside it were altered.
    """
    from spec_bench.report.figures.sweep import draw  # matplotlib is slow to load

    check_records(results)  # before the claims, which take long
    records = Records(results)
    rows = pooled(read_results(results), records)
    groups, checks = groups_of(rows), check_generally(rows, results)
    parts = [markdown(groups, results), *categories_markdown(groups, records)]
    answers = [line.sentence for line in headlines(groups)]
    text = "\n".join([*parts, _checks_markdown(checks), *_answers_markdown(answers)])
    write_text(folder / "table.md", text)
    draw(groups, folder / "figure.png")
    print_checks(checks, summary_of(checks, None))
    print(f"table:  {folder / 'table.md'}\nfigure: {folder / 'figure.png'}", *answers, sep="\n")


def markdown(groups: Sequence[Group], results: Path) -> str:
    """All groups' tables and where they were measured."""
    parts = [_group_table(group) for group in groups]
    return "\n\n".join([*parts, _footer(groups, results)]) + "\n"


def categories_markdown(groups: Sequence[Group], records: Records) -> Iterator[str]:
    """Two tables of each group whose prompts have categories."""
    for group in groups:
        for title, counts, last, cells in numbers_by_category(group, records):
            heads = ["decoder", "spec", *(f"{name} ({n})" for name, n in counts.items()), *last]
            lines = [
                [
                    str(row["decoder"]),
                    str(row["spec"]),
                    *(f"{n:.2f}" if n else "" for n in numbers),
                ]
                for row, numbers in cells
                if any(numbers)
            ]
            table = markdown_table(heads, lines, labels=2)
            yield f"### {escape_markdown(group.title)} by category: {title}\n\n{table}\n"


def _group_table(group: Group) -> str:
    """One task's table with the columns that have a value in it."""
    shown = [c for c in _columns(group) if group.rows[c.name].notna().any()]
    lines = []
    for _, row in group.rows.iterrows():
        remarks = [each.partition(":")[0] for each in remarks_of(row)]
        mark = ", ".join(filter(None, [MARKS.get(str(row.lossless), ""), *remarks]))
        name = f"{row.decoder} ({mark})" if mark else str(row.decoder)
        values = [(interval_in(row, c.name), c.digits) for c in shown]
        cells = [f"{value:.{digits}f}" if value else "" for value, digits in values]
        if row.status == "failed":
            cells = [f"failed: {failure_of(row)}", *[""] * (len(shown) - 1)]
        lines.append([name, str(row.spec), *cells])
    heads = ["decoder", "spec", *(_header(c) for c in shown)]
    return f"### {escape_markdown(group.title)}\n\n{markdown_table(heads, lines, labels=2)}"


def _columns(group: Group) -> list[Column]:
    """The columns with an interval, then the counts that explain a score."""
    there = columns.columns_in(group.rows.columns)
    counts = [c for c in there if c.name.startswith("execution_") and c.kind == "count"]
    return [
        *(c for c in there if c.interval and c.name not in _OF_A_REQUEST),
        *(c for c in counts if group.rows[c.name].any()),
    ]


def _header(column: Column) -> str:
    """The column's title; scores go by their names in the file."""
    return column.name.replace("_", " ") if column.kind in ("score", "count") else column.title


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def _footer(groups: Sequence[Group], results: Path) -> str:
    """Pair, sample size, machine and versions, as the records have them."""
    first = groups[0].rows.iloc[0]
    facts = [f"pair {first.pair}", f"batch size {first.batch_size}"]
    facts += dict.fromkeys(filter(None, (read_from(group.rows) for group in groups)))
    facts += [f"{group.title}: {_settings(group)}" for group in groups]
    origin: dict[str, Any] = origin_of(results, str(first.run_id).split(",")[0]) or {}
    if origin:
        devices = ", ".join(origin["torch"]["devices"]) or origin["cpu"]
        versions = origin["versions"]
        facts += [
            f"measured on {devices}, {_threads(origin['torch']['threads'])}",
            f"torch {versions.get('torch')}, transformers {versions.get('transformers')}",
        ]
    intervals = "In brackets: 95% intervals, bootstrap over prompts, paired by prompt for speedup."
    several = any(SEEDS in group.rows for group in groups)
    facts += [POOLED] if several else []
    facts += [
        f"{group.title}: speedup of {row.decoder} {row.spec}: {stall_of(row)}"
        for group in groups
        for _, row in group.rows.iterrows()
        if stall_of(row)
    ]
    facts += meanings_of(pd.concat([group.rows for group in groups]))
    return "\n".join([intervals, "", *(f"- {escape_markdown(fact)}" for fact in facts)])


def _settings(group: Group) -> str:
    """Prompts and sampling of one group."""
    row = group.rows.iloc[0]
    prompts = group.rows.prompts.max() if "prompts" in group.rows else float("nan")
    count = "no" if pd.isna(prompts) else f"{int(prompts)}"
    truncation = "" if row.top_p == 1 else f", top-p {row.top_p:g}"
    return f"{count} prompts, temperature {row.temperature:g}{truncation}, {seeds_text(row)}"


def _answers_markdown(answers: Sequence[str]) -> Iterator[str]:
    """Recommendations, a sentence a task."""
    if answers:
        yield "### Answer\n"
        yield "\n".join(f"- {escape_markdown(each)}" for each in answers) + "\n"


def _checks_markdown(checks: Sequence[Check]) -> str:
    """The checks as a Markdown table."""
    heads = ("claim", "on", "evidence", "verdict")
    lines = [(check.claim, check.where, check.evidence, check.verdict) for check in checks]
    summary = escape_markdown(summary_of(checks, None).sentence)
    return f"### Checks\n\n{summary}\n\n{markdown_table(heads, lines, labels=4)}\n"
