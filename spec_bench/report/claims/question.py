"""One question to measured rows and what was found: who is set against whom, what is expected, and
what a claim says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd

from spec_bench.report.claims.contrast import Contrast, Difference, difference, picked
from spec_bench.report.claims.select import name_of
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_COMPARABLE,
    NOT_DECIDED,
    Check,
    PValues,
    p_of_all,
    p_of_most,
    verdicts_of,
)  # fmt: skip
from spec_bench.report.data.rows import Group, Row
from spec_bench.vocabulary.columns import COLUMNS

if TYPE_CHECKING:
    from spec_bench.report.claims.ask import Ask

Names = str | Sequence[str]
Label = tuple[Any, ...]
Contrasts = list[Contrast]
_PICKED = "; each tree picked on one half of the prompts and compared on the other"


@dataclass(frozen=True)
class Cells:
    """Cells on one side of a comparison, see ``cells``."""

    decoders: tuple[str, ...]
    without: tuple[str, ...]
    tree_attention: bool
    form: str
    where: Mapping[str, Any]


def cells(
    *decoders: str, without: Names = (), tree_attention: bool = True, form: str = "", **where: Any
) -> Cells:
    """Cells of some decoders, or of all: ``cells("sd", width=lambda width: width > 1)``.

    Args:
        decoders: names; none: all of our engine.
        without: names that are left out.
        tree_attention: with it, or with paths as rows.
        form: of the tree's shorthand, e.g. ``number``; "": any.
        where: what ``Ask.value`` must be: a value, several, or a function that says yes.
    """
    return Cells(decoders, several(without), tree_attention, form, where)


@dataclass(frozen=True)
class Question:
    """What is asked of each group of rows."""

    ask: Ask
    text: Text
    left: Cells
    right: Cells
    by: By = field(default_factory=lambda: pairs)
    same: Names = ()  # columns or parts of the shorthand in which compared cells agree
    each: Names = ()  # one check by value of these; ``left``, ``right``: decoder and tree
    expect: Expect = field(default_factory=lambda: better)
    where: Text = "{title}"
    evidence: Text = field(default_factory=lambda: usual)
    judge: Judge = field(default_factory=lambda: mean)
    recorded: bool = False  # only where there are records by prompt

    def lines(self, rows: Iterable[Row]) -> dict[Label, list[Row]]:
        """Cells by their values of ``same``."""
        return self.ask.lines(rows, several(self.same))

    def cases(self, group: Group) -> dict[Label, Contrasts]:
        """A group's contrasts by the values of ``each``; () where there is one check."""
        split: dict[Label, Contrasts] = {}
        for contrast in self.by(self, *(self.ask.side(group, s) for s in (self.left, self.right))):
            left, right = contrast.left[0], contrast.right[0]
            keys = several(self.each)
            label = [
                name_of(right) if key == "right" else self.ask.value(left, key) for key in keys
            ]
            split.setdefault(tuple(label), []).append(contrast)
        return dict(sorted(split.items())) if self.ask.axis and self.each else split


@dataclass(frozen=True)
class Found:
    """The comparison for a claim on one task or on all tasks together."""

    question: Question
    group: Group  # the cells of one task, the first one where all tasks are pooled
    column: str  # the metric
    label: Label
    strata: Sequence[Contrasts]  # the contrasts of each task
    pooled: str = ""  # the place of all tasks together
    gap: Difference | None = None  # the mean; None for counts and places
    cases: Mapping[Label, Contrasts] = field(default_factory=dict)  # of a group's places
    by_place: Mapping[Any, Difference] = field(default_factory=dict)
    judged: tuple[PValues, ...] = ()

    def check(self, outcome: str | PValues | None) -> Check:
        """The check with its texts, from its p-values or a verdict that no chance is in."""
        p_values = outcome if isinstance(outcome, PValues) else None
        verdict = outcome if isinstance(outcome, str) else NOT_DECIDED
        asked = self.question
        evidence = "" if verdict == NOT_COMPARABLE else self._said(asked.evidence)
        where = self.pooled or self._said(asked.where)
        return Check(self._said(asked.text), where, evidence, verdict, p_values=p_values)

    def _said(self, text: Text) -> str:
        if callable(text):
            return text(self)
        names = {
            "left": " or ".join(self.question.left.decoders),
            "right": " or ".join(self.question.right.decoders),
            "metric": self.metric,
            "place": ", ".join(map(str, self.label)),
            "title": self.title,
            "found": str(self.gap),
            "n": str(self.n),
        }
        try:
            return text.format(**names)
        except (KeyError, IndexError) as error:
            raise ValueError(f"{text!r} names {error}; there are {', '.join(names)}") from error

    def of(self, contrast: Contrast) -> Difference | None:
        """The difference of one contrast alone."""
        return difference([[contrast]], self.column, self.question.ask.records)

    @property
    def contrasts(self) -> Contrasts:
        """Those of the first task."""
        return self.strata[0]

    @property
    def n(self) -> int:
        """The number of contrasts."""
        return len(self.contrasts)

    @property
    def left_out(self) -> int:
        """The number of left cells without a right one."""
        return len(self.question.ask.side(self.group, self.question.left)) - self.n

    @property
    def title(self) -> str:
        """The task, and the settings that differ between groups."""
        return self.group.title

    @property
    def first(self) -> Row:
        """The left cell of the first contrast."""
        return self.contrasts[0].left[0]

    @property
    def other(self) -> Row:
        """The right cell of it."""
        return self.contrasts[0].right[0]

    @property
    def metric(self) -> str:
        """The metric for people."""
        return titled(self.column)

    @property
    def better(self) -> str:
        """The word for better."""
        return "below" if less_is_better(self.column) else "above"

    @cached_property
    def single(self) -> list[Difference]:
        """The difference of each contrast alone."""
        return [gap for each in self.contrasts if (gap := self.of(each)) is not None]

    def one_by_one(self, so: str, not_so: str) -> str:
        """How many contrasts on one task hold on their own, judged together; "" where unknown."""
        expect = self.question.expect
        fewer = expect is less or (expect is not more and less_is_better(self.column))
        if self.n < 2 or len(self.strata) > 1 or not self.single:
            return ""
        known = [p for gap in self.single if (p := gap.below() if fewer else gap.above())]
        if len(known) < len(self.single):
            return ""
        verdicts = verdicts_of(known)
        counts = f"{verdicts.count(HOLDS)} {so}, {verdicts.count(DOES_NOT_HOLD)} {not_so}"
        return f"; one by one {counts}, the rest within noise"

    @property
    def won(self) -> str:
        """At how many of the judged places the claim holds."""
        return f"{verdicts_of(self.judged).count(HOLDS)} of {len(self.judged)}"

    @property
    def best(self) -> str:
        """The best tree of each side, of one contrast on one task; "" of several."""
        if self.n > 1 or len(self.strata) > 1:
            return ""
        both = (self.contrasts[0].left, self.contrasts[0].right)
        return " against ".join(picked(side, self.column) for side in both)

    @property
    def picked(self) -> str:
        """How trees were picked, where some were and there are intervals."""
        gaps: list[Difference | None] = [*self.by_place.values()] or [self.gap]
        paired = all(gap is not None and gap.paired for gap in gaps)
        return _PICKED if paired and any(each.picks for each in self.contrasts) else ""

    @property
    def places(self) -> str:
        """Differences by place."""
        return ", ".join(f"{place}: {gap}" for place, gap in self.by_place.items())

    def counts(self, against: str = "") -> list[tuple[str, float, float]]:
        """The tree and both sides' counts of each contrast where they are known; ``against`` is a
        part of the left cell's shorthand that stands for the right side's count.
        """
        counts = []
        for contrast in self.contrasts:
            left, right = contrast.left[0], contrast.right[0]
            other = self.question.ask.value(left, against) if against else right.get(self.column)
            ours = left.get(self.column)
            if ours is not None and other is not None and not pd.isna([ours, other]).any():
                counts.append((str(left["spec"]), float(ours), float(other)))
        return counts


Side = str | Sequence[str] | Cells
Text = str | Callable[[Found], str]
By = Callable[[Question, list[Row], list[Row]], Iterator[Contrast]]
Expect = Callable[[Found, Difference], PValues | None]
Judge = Callable[[Found], Check | None]


def mean(found: Found) -> Check | None:
    """The mean of all comparisons."""
    asked = found.question
    gap = difference(found.strata, found.column, asked.ask.records)
    if gap is None or (asked.recorded and not gap.paired):
        return None
    return replace(found, gap=gap).check(asked.expect(found, gap))


def rising(found: Found) -> Check | None:
    """More at the end of ``steps`` than at their start, and at no step less.

    A step that adds nothing, as where every candidate list is accepted, is no objection.
    """
    whole = found.of(Contrast(found.contrasts[-1].left, found.contrasts[0].right))
    if whole is None or not found.single:
        return None
    total, parts = whole.above(), [gap.above() for gap in found.single]
    falls = [each.against_claim for each in parts if each is not None]
    if total is not None and len(falls) == len(parts):
        against = min(1.0, min(total.against_claim, *falls) * (len(falls) + 1))
        total = PValues(total.for_claim, against)
    return replace(found, gap=whole).check(total)


def counted(within: float | None = None, against: str = "") -> Judge:
    """Counts have no interval: each left one is less, or within a share of the right one."""

    def judge(found: Found) -> Check | None:
        holds = [
            one < other if within is None else abs(one - other) <= within * other
            for _, one, other in found.counts(against)
        ]
        return found.check(HOLDS if all(holds) else DOES_NOT_HOLD) if holds else None

    return judge


@dataclass(frozen=True)
class Places:
    """Each place, a value of ``each``, alone; then all or most of them, from one value on."""

    p_of: Callable[[Iterable[PValues]], PValues]
    least: float = -inf

    def __call__(self, found: Found) -> Check | None:
        """One check of a whole group."""
        records = found.question.ask.records
        known = {
            label[0]: gap
            for label, contrasts in found.cases.items()
            if (gap := difference([contrasts], found.column, records)) is not None
        }
        found = replace(found, by_place=known)
        parts = [found.question.expect(found, gap) for at, gap in known.items() if at >= self.least]
        judged = tuple(each for each in parts if each is not None)
        if not parts:
            return None
        if len(judged) < len(parts):
            return found.check(NOT_DECIDED)
        return replace(found, judged=judged).check(self.p_of(judged))


def every(least: float = -inf) -> Places:
    """At every value of ``each``, from this one on, the claim must hold."""
    return Places(p_of_all, least)


most = Places(p_of_most)
"""At more than half of the values of ``each`` the claim must hold."""


def pairs(asked: Question, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """Every left cell with every right one."""
    rights = asked.lines(right)
    for row in left:
        ((key, _),) = asked.lines([row]).items()
        yield from (Contrast((row,), (other,)) for other in rights.get(key, []))


def best(asked: Question, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """The best cell of each side with all of its decoders: that of some is not that of all."""
    lefts, rights = asked.lines(left), asked.lines(right)
    for key in (key for key in lefts if key in rights):
        sides = ((lefts[key], asked.left), (rights[key], asked.right))
        if all({str(row["decoder"]) for row in rows} >= {*side.decoders} for rows, side in sides):
            yield Contrast(tuple(lefts[key]), tuple(rights[key]))


def first(asked: Question, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """The first cell of each side."""
    rights = asked.lines(right)
    for key, rows in asked.lines(left).items():
        if key in rights:
            yield Contrast((rows[0],), (rights[key][0],))


def steps(along: str) -> By:
    """Each left cell with the next smaller one; a minus puts the smaller one on the left."""

    def by(asked: Question, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
        for line in asked.lines(left).values():
            for smaller, larger in pairwise(_sorted(asked, line, along)):
                yield _directed(along, smaller, larger)

    return by


def ends(along: str) -> By:
    """The last cell of each line against its first one; lines of one mean reach as far."""

    def by(asked: Question, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
        lines = [_sorted(asked, line, along) for line in asked.lines(left).values()]
        key = along.lstrip("-")
        reach = [tuple(asked.ask.value(line[end], key) for end in (0, -1)) for line in lines]
        whole = reach and (min(low for low, _ in reach), max(high for _, high in reach))
        for line, span in zip(lines, reach, strict=True):
            if len(line) > 1 and (asked.each or span == whole):
                yield _directed(along, line[0], line[-1])

    return by


def _sorted(asked: Question, line: Iterable[Row], along: str) -> list[Row]:
    return sorted(line, key=lambda row: asked.ask.value(row, along.lstrip("-")))


def _directed(along: str, smaller: Row, larger: Row) -> Contrast:
    return (
        Contrast((smaller,), (larger,))
        if along.startswith("-")
        else Contrast((larger,), (smaller,))
    )


def more(found: Found, gap: Difference) -> PValues | None:
    """The left side has the larger number."""
    return gap.above()


def less(found: Found, gap: Difference) -> PValues | None:
    """The left side has the smaller number."""
    return gap.below()


def better(found: Found, gap: Difference) -> PValues | None:
    """The left side is better, as the column's direction has it."""
    return gap.below() if less_is_better(found.column) else gap.above()


def undecided(found: Found, gap: Difference) -> PValues | None:
    """Nothing is decided."""
    return None


def at_least(bound: float) -> Expect:
    """The difference is at least this."""
    return lambda found, gap: gap.above(bound)


def within(room: float | str) -> Expect:
    """The difference is at most this, e.g. 0.05 or ``10%`` of the left side."""
    return lambda found, gap: gap.within(nearness(found, room))


def nearness(found: Found, room: float | str) -> float:
    """The largest difference of equal sides: a number, or a share of the left side's mean."""
    if not isinstance(room, str):
        return room
    values = [float(contrast.left[0][found.column]) for contrast in found.contrasts]
    return float(room.removesuffix("%")) / 100 * fmean(values)


def usual(found: Found) -> str:
    """The difference, of how many comparisons, of which trees."""
    many = f", mean of {found.n} comparisons fixed in advance" if found.n > 1 else ""
    return f"{found.gap}{many}{f', {found.best}' if found.best else ''}{found.picked}"


def trees(found: Found) -> str:
    """The difference and the trees on the left."""
    specs = ", ".join(dict.fromkeys(str(each.left[0]["spec"]) for each in found.contrasts))
    return f"{found.gap}, {f'mean of {found.n} comparisons: ' if found.n > 1 else ''}{specs}"


def titled(metric: str) -> str:
    """A metric's name in a sentence."""
    return {"mbsu": "MBSU"}.get(metric, metric.replace("_", " "))


def less_is_better(metric: str) -> bool:
    """Whether a column gets better downwards; of a score that is not listed more is better."""
    return any(column.name == metric and column.better == "down" for column in COLUMNS)


def several(names: Names) -> tuple[str, ...]:
    """A name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)
