"""The comparison as a whole: changes with verdicts, corrected for the count of numbers, in words
for a terminal or a pull request and as an HTML page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from spec_bench.metrics.interval import holm
from spec_bench.report.comparison.change import (
    Change,
    Differing,
    changes,
    differing,
    matches,
    read_side,
)
from spec_bench.report.page.build import render
from spec_bench.report.tables.render import escape_markdown, markdown_table
from spec_bench.vocabulary.columns import Column

ALPHA, MARGIN = 0.05, 0.03
_TIMED = frozenset({"speedup", "token_rate"})
Verdict = Literal["regression", "improvement", "no change shown", "identical", "not judged"]
ORDER: tuple[Verdict, ...] = (
    *("regression", "improvement", "no change shown"),
    *("identical", "not judged"),
)


@dataclass(frozen=True)
class Judged:
    """A change with its verdict."""

    change: Change  # of one number
    p: float | None  # corrected for all changes that were judged; None where it was not
    verdict: Verdict  # of the change


@dataclass(frozen=True)
class Comparison:
    """Two results folders."""

    before: str  # name of the first
    after: str  # name of the second
    alpha: float  # the chance of any false alarm
    margin: float  # the share by which a speed-up may change and count as the same
    judged: tuple[Judged, ...]  # all changes, regressions first
    # cells that have numbers on the first side and failed on the second, with why
    failed: tuple[tuple[str, str], ...]
    gone: tuple[str, ...]  # cells of the first side alone
    new: tuple[str, ...]  # cells of the second side alone
    differing: tuple[Differing, ...]  # settings, machines and versions that are not the same

    def of(self, verdict: Verdict) -> list[Judged]:
        """The changes of one verdict."""
        return [each for each in self.judged if each.verdict == verdict]

    @property
    def regressed(self) -> bool:
        """Whether something got worse, or failed."""
        return bool(self.failed or self.of("regression"))

    @property
    def same_runs(self) -> bool:
        """Whether both sides are one measurement: times, too, are the same on every prompt."""
        compared = [each for each in self.judged if each.verdict != "not judged"]
        timed = any(each.change.column.name in _TIMED for each in compared)
        return timed and all(each.verdict == "identical" for each in compared)

    @property
    def sentence(self) -> str:
        """The summary."""
        if self.same_runs:
            return (
                "These are the same runs: every number, times included, is equal on every prompt. "
                "To measure again, run the job with another results=FOLDER"
            )
        counts = {verdict: len(self.of(verdict)) for verdict in ORDER}
        parts = [f"{counts[verdict]} {_plural(verdict, counts[verdict])}" for verdict in ORDER[:2]]
        parts.append(f"{len(self.judged) - counts['not judged']} numbers compared")
        parts += [f"{counts['not judged']} not judged"] if counts["not judged"] else []
        parts += [f"{len(self.failed)} cells failed that had not"] if self.failed else []
        return ", ".join(parts)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def compare(before: Path, after: Path, alpha: float = ALPHA, margin: float = MARGIN) -> Comparison:
    """Sets one results folder or table against another.

    ``alpha`` is the chance of any false alarm among all numbers. A speed-up that changed by at most
    ``margin``, a share, counts as the same: processes differ by that much from start to start.

    Raises:
        ValueError: there are no rows, or no cell is on both sides.
    """
    sides = read_side(before), read_side(after)
    matched = matches(*sides)
    every = [each for match in matched.both for each in changes(match, *sides, margin)]
    failed = tuple(
        (match.name, str(match.after.row["reason"]))
        for match in matched.both
        if match.after.failed and not match.before.failed
    )
    return Comparison(
        before=sides[0].name,
        after=sides[1].name,
        alpha=alpha,
        margin=margin,
        judged=tuple(judge(every, alpha)),
        failed=failed,
        gone=matched.gone,
        new=matched.new,
        differing=tuple(differing(matched.both, *sides)),
    )


def judge(every: Sequence[Change], alpha: float) -> list[Judged]:
    """Verdicts, corrected together; regressions first, in each the surest first.

    Numbers that are the same on every prompt give no alarm and do not count among the tests.
    """
    known = [each for each in every if each.p is not None and not each.identical]
    corrected = holm([each.p for each in known if each.p is not None])
    by_change = {id(each): p for each, p in zip(known, corrected, strict=True)}
    judged = [_judged(each, by_change.get(id(each)), alpha) for each in every]
    place = {verdict: number for number, verdict in enumerate(ORDER)}
    return sorted(judged, key=lambda each: (place[each.verdict], each.p or 0.0))


def _judged(change: Change, p: float | None, alpha: float) -> Judged:
    if p is None:
        return Judged(change, None, "identical" if change.identical else "not judged")
    if p >= alpha:
        return Judged(replace(change, why=_left_open(change, alpha)), p, "no change shown")
    return Judged(change, p, "regression" if change.worse else "improvement")


def _left_open(change: Change, alpha: float) -> str:
    """Why an interval without 0 shows no change; "" of any other."""
    low, high = (change.shift.low, change.shift.high) if change.shift else (None, None)
    if low is None or high is None or low <= 0 <= high:
        return ""
    sole = "its own interval leaves out 0, but "
    return sole + ("not among so many numbers" if (change.p or 0) < alpha else "not the margin")


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
