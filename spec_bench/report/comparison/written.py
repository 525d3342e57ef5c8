"""A comparison in words: Markdown for a terminal or a pull request, and an HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spec_bench.report.comparison.build import ORDER, Comparison, Judged
from spec_bench.report.page.templating import render
from spec_bench.report.tables.render import escape_markdown, markdown_table
from spec_bench.vocabulary.columns import Column

HEADS = ("cell", "number", "before", "after", "change", "95% interval", "p", "verdict")
_LABELS = 2
METHOD = (
    "Changes of speed-up and block efficiency are shares of the value before, paired by prompt; "
    "those of scores are differences. Speed-ups are over each run's own plain decoding, timed in "
    "turn; a prompt that was timed three times or more counts with the median of its repeats. "
    "Each interval is the number's own, as if it were the only one. "
    "p: by Student's t on the scale of the interval, corrected by Holm for all numbers "
    "judged together, so that the chance of any false alarm is at most {alpha:.0%}. A speed-up "
    "that changed by {margin:.0%} or less counts as the same."
)


@dataclass(frozen=True)
class Line:
    """A change for people."""

    texts: tuple[str, ...]  # under `HEADS`
    verdict: str  # of the change


def lines_of(judged: Sequence[Judged]) -> list[Line]:
    """The changes as texts."""
    return [Line(_texts(each), each.verdict) for each in judged]


def _texts(judged: Judged) -> tuple[str, ...]:
    change, shift = judged.change, judged.change.shift
    moved, interval = "", ""
    if shift is not None:
        form = "+.1%" if change.relative else f"+.{change.column.digits}f"
        moved = f"{shift.value:{form}}"
        if shift.low is not None and shift.high is not None and shift.low < shift.high:
            interval = f"{shift.low:{form}} to {shift.high:{form}}"
    p = "" if judged.p is None else "≤0.001" if judged.p < 0.001 else f"{judged.p:.3f}"
    verdict = f"{judged.verdict}: {change.why}" if change.why else judged.verdict
    values = (_value(change.column, each) for each in (change.before, change.after))
    return (change.cell, change.column.title, *values, moved, interval, p, verdict)


def _value(column: Column, value: float | None) -> str:
    return "–" if value is None else f"{value:.{column.digits}f}"


def markdown(comparison: Comparison) -> str:
    """The whole comparison, regressions first."""
    title = f"## {escape_markdown(comparison.before)} → {escape_markdown(comparison.after)}"
    parts = [title, f"**{comparison.sentence}**"]
    if comparison.failed:
        failed = [list(each) for each in comparison.failed]
        parts.append(markdown_table(["failed now", "why"], failed, labels=2))
    shown = [each for verdict in ORDER[:3] for each in comparison.of(verdict)]
    if shown:
        texts = [list(line.texts) for line in lines_of(shown)]
        parts.append(markdown_table(list(HEADS), texts, labels=_LABELS))
    if same := len(comparison.of("identical")):
        parts.append(f"{same} numbers are the same on every prompt.")
    for why, count in Counter(each.change.why for each in comparison.of("not judged")).items():
        parts.append(f"{count} numbers are not judged: {why}.")
    parts.append(METHOD.format(alpha=comparison.alpha, margin=comparison.margin))
    if comparison.differing:
        rows = [[e.name, e.before, e.after, str(e.cells)] for e in comparison.differing]
        parts.append(markdown_table(["differs", "before", "after", "cells"], rows, labels=3))
    else:
        parts.append("No setting that rows or records tell of differs.")
    for name, cells in (("before alone", comparison.gone), ("after alone", comparison.new)):
        if cells:
            parts.append(f"Cells {name}: {escape_markdown('; '.join(cells))}")
    return "\n\n".join(parts) + "\n"


def page(comparison: Comparison) -> str:
    """The same as a page."""
    lines = lines_of(comparison.judged)
    return render(
        "compare.html.j2",
        comparison=comparison,
        heads=HEADS,
        parts=[(name, part) for name in ORDER if (part := [e for e in lines if e.verdict == name])],
        method=METHOD.format(alpha=comparison.alpha, margin=comparison.margin),
        verdicts={"regression": "bad", "improvement": "good", "not judged": "open"},
    )
