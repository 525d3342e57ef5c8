"""``spec-bench compare A B``: what changed from one results folder to another.

Exit status: 0 nothing got worse, 1 something did, 2 the request cannot be right or nothing was
compared. With ``--cells`` 0 a claim holds and none is refuted, 1 one is, 2 none is decided.
"""

from argparse import Namespace
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from spec_bench.report.claims import drop_failed_simulated_screened
from spec_bench.report.claims.ask import ClaimQuery, best, cells
from spec_bench.report.claims.console import build_checks_table
from spec_bench.report.claims.verdict import DOES_NOT_HOLD, HOLDS, Check, correct_verdicts
from spec_bench.report.comparison import (
    ORDER,
    RATE,
    RATE_MARGIN,
    NumberChange,
    ResultsComparison,
    compare_results,
    read_comparison_side,
)
from spec_bench.report.page.build import render_template
from spec_bench.report.tables.render import escape_markdown, format_markdown_table
from spec_bench.settings.fields import print_wrapped_error
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.numbers import format_count

HEADS = ("cell", "number", "before", "after", "change", "95% interval", "p", "verdict")
METHOD = (
    "Changes of speed-up and block efficiency are shares of the value before, paired by prompt; "
    "those of scores are differences. Speed-ups are over each run's own plain decoding, timed in "
    "turn; a prompt that was timed three times or more counts with the median of its repeats. "
    "Each interval is the number's own, as if it were the only one. p: by Student's t on its "
    "scale, corrected by Holm for all numbers judged together, so that the chance of any false "
    "alarm is at most {alpha:.0%}. A speed-up that changed by {margin:.0%} or less is the same, "
    f"a rate of plain decoding on one machine that changed by {RATE_MARGIN:.0%} or less too. "
    "All this is over prompts: a machine that was busy on one of the days looks like a change, "
    "so run both sides once more before you believe one."
)


def compare_two_cells(path: Path, cell_names: str, mixed_models: bool = False) -> list[Check]:
    """Compares two cells of the same results, each written as ``sd:3``: on each task tokens/s,
    tokens per call and the score, paired by prompt. Raises UsageError if no task has both.
    """
    requests = [spec_text.strip().partition(":") for spec_text in cell_names.split(",")]
    if len(requests) != 2:
        raise UsageError(f"--cells takes two, such as sd:3,rsd_s:4x3, got {cell_names!r}")
    side_read = read_comparison_side(path, mixed_models=mixed_models)
    ask = ClaimQuery(drop_failed_simulated_screened(side_read.rows), side_read.records).of()
    first_cells, second = (
        cells(name, **({"spec": spec} if spec else {})) for name, _, spec in requests
    )
    text = cell_names.replace(",", " > ") + " in {metric}"
    metrics = (RATE, "block_efficiency", "score")
    checks = list(ask.ahead(text, first_cells, second, metrics, by=best, evidence="{found}"))
    if not checks:
        labels = side_read.rows.decoder + ":" + side_read.rows.spec.astype(str)
        choices = f"there are {', '.join(dict.fromkeys(labels.str.removesuffix(':-')))}"
        raise UsageError(f"no task in {str(path)!r} was run with both of {cell_names}; {choices}")
    return correct_verdicts(checks)


def format_change_cells(change: NumberChange) -> list[str]:
    """Formats a change as table cells, in the order of ``HEADS``."""
    shift = change.shift
    p = change.p_value
    shift_text = ""
    interval = ""
    reason = change.why
    if shift is not None:
        form = "+.1%" if change.is_relative else f"+.{change.column.digits}f"
        shift_text = f"{shift.value:{form}}"
        if shift.low is not None and shift.high is not None and shift.low < shift.high:
            interval = f"{shift.low:{form}} to {shift.high:{form}}"
        elif shift.low is not None and not change.is_identical:
            reason = reason or "the same change on every prompt"
    chance = "" if p is None else "≤0.001" if p < 0.001 else f"{p:.3f}"
    verdict = f"{change.verdict}: {reason}" if reason else change.verdict
    before, after = (
        "–" if value is None else f"{value:.{change.column.digits}f}"
        for value in (change.before, change.after)
    )
    return [change.cell, change.column.title, before, after, shift_text, interval, chance, verdict]


def format_comparison_markdown(comparison: ResultsComparison) -> str:
    """Formats the whole comparison as Markdown, regressions first."""
    title = f"## {escape_markdown(comparison.before)} → {escape_markdown(comparison.after)}"
    one_sided_texts = [
        f"Cells {side} alone: {'; '.join(names)}" for side, names in comparison.one_sided_cells
    ]
    parts = [title, *map(escape_markdown, one_sided_texts), f"**{comparison.sentence}**"]
    if comparison.differing:
        rows = [[e.name, e.before, e.after, str(e.cells)] for e in comparison.differing]
        parts.append(
            format_markdown_table(["differs", "before", "after", "cells"], rows, label_count=3)
        )
    else:
        parts.append("No setting that rows or records tell of differs.")
    if comparison.newly_failed:
        parts.append(
            format_markdown_table(["failed now", "why"], comparison.newly_failed, label_count=2)
        )
    changes = [change for verdict in ORDER[:3] for change in comparison.select_changes(verdict)]
    changes += [
        change for change in comparison.select_changes("not judged") if change.column.name == RATE
    ]
    if changes:
        parts.append(format_markdown_table(HEADS, map(format_change_cells, changes), label_count=2))
    if identical_count := len(comparison.select_changes("identical")):
        parts.append(f"The same on every prompt: {format_count(identical_count, 'number')}.")
    for reason, count in Counter(
        e.why.partition(":")[0] for e in comparison.select_changes("not judged")
    ).items():
        parts.append(f"Not judged: {format_count(count, 'number')}, {reason}.")
    parts.append(METHOD.format(alpha=comparison.alpha, margin=comparison.margin))
    return "\n\n".join(parts) + "\n"


def render_comparison_page(comparison: ResultsComparison) -> str:
    """Renders a comparison as an HTML page."""
    return render_template(
        "compare.html.j2",
        comparison=comparison,
        heads=HEADS,
        parts=[
            (verdict, list(map(format_change_cells, changes)))
            for verdict in ORDER
            if (changes := comparison.select_changes(verdict))
        ],
        method=METHOD.format(alpha=comparison.alpha, margin=comparison.margin),
        verdicts={
            "regression": "bad",
            "improvement": "good",
            "not judged": "open",
        },
    )


def main(options: Namespace) -> int:
    """Compares, prints Markdown and writes files if requested; returns the exit status."""
    if (options.after is None) is (options.cells is None):
        raise UsageError("compare takes a second folder, or --cells A,B of one")
    if options.cells:
        checks = compare_two_cells(options.before, options.cells, options.mixed_models)
        Console(highlight=False).print(build_checks_table(checks))
        verdicts = {check.verdict for check in checks}
        if DOES_NOT_HOLD in verdicts or HOLDS in verdicts or options.allow_empty:
            return int(DOES_NOT_HOLD in verdicts)
        reason = f"no claim about {options.cells} holds or is refuted"
        print_wrapped_error(f"spec-bench compare: {reason}; --allow-empty makes it a success")
        return 2
    comparison = compare_results(
        options.before, options.after, options.alpha, options.margin, options.mixed_models
    )
    text = format_comparison_markdown(comparison)
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text, end="")
    if options.out is not None:
        for name, content in (
            ("compare.md", text),
            ("compare.html", render_comparison_page(comparison)),
        ):
            files.write_text(options.out / name, content)
            print(options.out / name)
    if not (comparison.regressed or options.allow_empty) and comparison.inconclusive_reason:
        reason = comparison.inconclusive_reason
        print_wrapped_error(f"spec-bench compare: {reason}; --allow-empty makes it a success")
        return 2
    return int(comparison.regressed)
