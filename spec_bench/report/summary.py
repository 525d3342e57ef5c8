"""The plain report on one results file: ``table.md`` and ``figure.png`` beside it, and checks.

The table has one part per task; values stand with their 95% intervals. Both it and the printed
text begin with the answer: the decoder to use on each task.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.records.sampling import describe_sampling
from spec_bench.report.claims import Check, check_general_claims
from spec_bench.report.claims.verdict import summarise_claims
from spec_bench.report.data.categories import TABLES, describe_shared_clocks
from spec_bench.report.data.counts import RecordReader, read_provenance
from spec_bench.report.data.differences import describe_speed_caveats
from spec_bench.report.data.rows import (
    Group,
    describe_intervals,
    format_harness_note,
    format_prompt_count,
    get_failure_reason,
    get_interval,
    get_remarks,
    get_timing_doubt,
    group_rows,
    list_mark_meanings,
    read_results_file,
    refuse_or_separate_models,
    to_rows,
)
from spec_bench.report.data.seeds import POOLED, SEEDS, format_seed_list, pool_seeds
from spec_bench.report.page.headline import make_headlines
from spec_bench.report.page.results_table import iter_category_numbers
from spec_bench.report.papers.paper import Paper
from spec_bench.report.tables.render import escape_markdown, format_markdown_table
from spec_bench.system.files import write_text
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.names import MARKS, summarise_doubts
from spec_bench.vocabulary.numbers import format_count

_OF_A_REQUEST = frozenset({"latency_s", "token_rate_per_request"})  # not in the plain table
_MAX_ROWS = 400  # rows of a task's table: a search has thousands


def write_report_and_print_answers(results: Path, folder: Path, mixed_models: bool = False) -> None:
    """Writes the table with the checks, draws the figure, prints the answers. Raises ValueError:
    there is no such file, it has no rows, or the records beside it were altered.
    """
    from spec_bench.report.figures.sweep import save_sweep_picture  # matplotlib is slow to load

    records = RecordReader(results)
    rows = pool_seeds(refuse_or_separate_models(read_results_file(results, mixed_models)), records)
    groups = group_rows(rows)
    answers = [line.sentence for line in make_headlines(groups)]
    answer_lines = "".join(f"- {escape_markdown(answer)}\n" for answer in answers)
    parts = [
        *([f"### Answer\n\n{answer_lines}"] if answers else []),
        format_groups_markdown(groups, results),
        *iter_category_tables_markdown(groups, records),
        f"### Checks\n\n{format_checks_markdown(check_general_claims(rows, records), None)}\n",
    ]
    write_text(folder / "table.md", "\n".join(parts))
    is_drawn = save_sweep_picture(groups, folder / "figure.png")
    figure = f"; figure: {folder / 'figure.png'}" if is_drawn else ""
    print(*answers, sep="\n")
    print(f"all columns and checks: {folder / 'table.md'}{figure}")


def format_groups_markdown(groups: Sequence[Group], results: Path) -> str:
    """Formats the tables of all groups, and where they were measured, as Markdown."""
    parts = [_format_group_table(group) for group in groups]
    return "\n\n".join([*parts, _format_footer(groups, results)]) + "\n"


def iter_category_tables_markdown(groups: Sequence[Group], records: RecordReader) -> Iterator[str]:
    """Yields the tables of each group whose prompts have categories, as Markdown."""
    for group in groups:
        for title, counts, overall, cells in iter_category_numbers(group, records):
            heads = ["decoder", "spec", *(f"{name} ({n})" for name, n in counts.items()), *overall]
            is_speedup = title == TABLES["speedup"]
            lines = []
            for row, numbers in cells:
                if any(numbers):
                    doubt = get_timing_doubt(row).partition(":")[0] if is_speedup else ""
                    name = f"{row['decoder']} ({doubt})" if doubt else str(row["decoder"])
                    texts = (f"{number:.2f}" if number else "" for number in numbers)
                    lines.append([name, str(row["spec"]), *texts])
            table = format_markdown_table(heads, lines, label_count=2)
            note = describe_shared_clocks(group) if is_speedup else ""
            table += f"\n\n{note}" * bool(note)
            yield f"### {escape_markdown(group.title)} by category: {title}\n\n{table}\n"


def format_checks_markdown(checks: Sequence[Check], paper: Paper | None) -> str:
    """Formats checks as Markdown: a summary of their verdicts, then a table. The checks are of a
    paper, or our own if it is None.
    """
    verdicts = format_markdown_table(
        ("claim", "on", "evidence", "verdict"),
        [(check.claim, check.where, check.evidence, check.verdict) for check in checks],
        label_count=4,
    )
    return f"{escape_markdown(summarise_claims(checks, paper).sentence)}\n\n{verdicts}"


def _format_group_table(group: Group) -> str:
    """One task's table: columns with an interval, then counts that explain a score."""
    all_rows = group.rows
    rows = group.rows.sort_values("speedup", ascending=False, kind="stable")
    rows = all_rows[all_rows.index.isin([all_rows.index[0], *rows.index[:_MAX_ROWS]])]
    present = columns.get_columns(rows.columns)
    columns_shown = [c for c in present if c.interval and c.name not in _OF_A_REQUEST]
    columns_shown = [c for c in columns_shown if rows[c.name].notna().any()]
    counts = [c for c in present if c.name.startswith("execution_") and c.kind == "count"]
    columns_shown += [c for c in counts if rows[c.name].any()]
    lines = []
    for row in to_rows(rows):
        remarks = [remark.partition(":")[0] for remark in get_remarks(row)]
        mark = ", ".join(filter(None, [MARKS.get(str(row["lossless"]), ""), *remarks]))
        name = f"{row['decoder']} ({mark})" if mark else str(row["decoder"])
        values = [(get_interval(row, c.name), c.digits) for c in columns_shown]
        cells = [f"{value:.{digits}f}" if value else "" for value, digits in values]
        if row["status"] == "failed":
            cells = [f"failed: {get_failure_reason(row)}", *[""] * (len(columns_shown) - 1)]
        lines.append([name, str(row["spec"]), *cells])
    # Scores go by their names in the file.
    heads = [
        c.name.replace("_", " ") if c.kind in ("score", "count") else c.title for c in columns_shown
    ]
    table = format_markdown_table(["decoder", "spec", *heads], lines, label_count=2)
    rows_left = len(all_rows) - len(rows)
    rest_text = (
        f"\n{rows_left} more rows, none known to be faster, are in results.csv.\n"
        if rows_left
        else ""
    )
    return f"### {escape_markdown(group.title)}\n\n{table}{rest_text}"


def _format_footer(groups: Sequence[Group], results: Path) -> str:
    """Formats pair, sample size, machine and versions from the records."""
    rows = pd.concat([group.rows for group in groups])
    pairs, batch_sizes = (
        ", ".join(map(str, rows[name].dropna().drop_duplicates()))
        for name in ("pair", "batch_size")
    )
    facts = [f"pair {pairs}", f"batch size {batch_sizes or 'unknown'}"]
    facts += dict.fromkeys(filter(None, (format_harness_note(group.rows) for group in groups)))
    facts += [f"{group.title}: {_describe_group_settings(group)}" for group in groups]
    run_ids = ",".join(map(str, rows.run_id)).split(",")
    origins = filter(None, (read_provenance(results, run_id) for run_id in run_ids))
    facts += dict.fromkeys(chain.from_iterable(map(_describe_machine_and_versions, origins)))
    facts += [POOLED] if any(SEEDS in group.rows for group in groups) else []
    facts += [
        f"{group.title}: speedup of {doubt}"
        for group in groups
        for doubt in summarise_doubts(to_rows(group.rows))
    ]
    facts += [
        *list_mark_meanings(rows),
        *dict.fromkeys(describe_speed_caveats(to_rows(rows), ["speedup"])),
    ]
    intervals = describe_intervals(to_rows(rows), ", paired by prompt for speedup")
    return "\n".join([intervals, "", *(f"- {escape_markdown(fact)}" for fact in facts)])


def _describe_machine_and_versions(origin: Mapping[str, Any]) -> tuple[str, str]:
    """Describes where a cell was measured, from its provenance."""
    devices = ", ".join(origin["torch"]["devices"]) or origin["cpu"]
    versions = origin["versions"]
    return (
        f"measured on {devices}, {format_count(origin['torch']['threads'], 'thread')}",
        f"torch {versions.get('torch')}, transformers {versions.get('transformers')}",
    )


def _describe_group_settings(group: Group) -> str:
    row = group.rows.iloc[0]
    prompts = format_prompt_count(group.rows) or "no prompts"
    match = re.search(r"scored: [^|;]*", str(row.get("quality_signature", "")))
    score_text = f", {match[0]}" if match else ""
    return f"{prompts}, {describe_sampling(row)}, {format_seed_list(row)}{score_text}"
