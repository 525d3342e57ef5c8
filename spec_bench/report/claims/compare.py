"""The ways to set cells against each other: a claim, a group and two sides make contrasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spec_bench.report.claims.contrast import Contrast
from spec_bench.report.claims.select import Scope, name_of
from spec_bench.report.data.rows import Group, Row
from spec_bench.report.papers.claim import Claim, Side
from spec_bench.report.papers.code import form_of

Form = Callable[[Scope, Claim, list[Row], list[Row]], Iterator[Contrast]]
"""From a claim and the cells of both sides to contrasts; a paper's code may define one."""


@dataclass(frozen=True)
class Case:
    """Contrasts that one check is about.

    Attributes:
        label: values of the keys in the claim's ``each``; () where there is one check.
        contrasts: at least one.
        left_out: number of left cells without a right one.
    """

    label: tuple[Any, ...]
    contrasts: tuple[Contrast, ...]
    left_out: int = 0


def cases(scope: Scope, claim: Claim, group: Group, sides: tuple[Side, Side]) -> list[Case]:
    """A group's contrasts, split by the claim's ``each``."""
    left, right = (scope.side(claim, group, side) for side in sides)
    form = _FORMS.get(claim.compare) or form_of(scope.folder, claim.compare, _OTHER)
    kept = list(form(scope, claim, left, right))
    if claim.compare == "best":
        kept = [c for c in kept if _complete(c.left, sides[0]) and _complete(c.right, sides[1])]
    split: dict[tuple[Any, ...], list[Contrast]] = {}
    for contrast in kept:
        split.setdefault(_label(scope, claim, contrast), []).append(contrast)
    ordered = sorted(split) if claim.axis and claim.each else split
    return [Case(key, tuple(split[key]), len(left) - len(kept)) for key in ordered]


def _label(scope: Scope, claim: Claim, contrast: Contrast) -> tuple[Any, ...]:
    row = contrast.left[0]
    return tuple(
        name_of(contrast.right[0]) if key == "right" else scope.value(row, key)
        for key in claim.each
    )


def _complete(rows: Iterable[Row], side: Side) -> bool:
    """Whether every decoder of a side is there: the best of some is not the best of all."""
    return {str(row["decoder"]) for row in rows} >= set(side.decoder)


def _best(scope: Scope, claim: Claim, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    lefts, rights = _lines(scope, claim, left), _lines(scope, claim, right)
    for key, rows in lefts.items():
        if key in rights:
            yield Contrast(tuple(rows), tuple(rights[key]))


def _first(scope: Scope, claim: Claim, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    rights = _lines(scope, claim, right)
    for key, rows in _lines(scope, claim, left).items():
        if key in rights:
            yield Contrast((rows[0],), (rights[key][0],))


def _pairs(scope: Scope, claim: Claim, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    rights = _lines(scope, claim, right)
    for row in left:
        for other in rights.get(scope.values(row, claim.same), []):
            yield Contrast((row,), (other,))


def _steps(scope: Scope, claim: Claim, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """Each cell against the next one of its line; the right side is unused."""
    for line in _lines(scope, claim, left).values():
        for smaller, larger in pairwise(_sorted(scope, claim, line)):
            yield _directed(claim, smaller, larger)


def _ends(scope: Scope, claim: Claim, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """The last cell of each line against its first one; lines of one mean reach as far."""
    lines = [_sorted(scope, claim, line) for line in _lines(scope, claim, left).values()]
    reach = [(scope.value(line[0], claim.key), scope.value(line[-1], claim.key)) for line in lines]
    whole = reach and (min(low for low, _ in reach), max(high for _, high in reach))
    for line, span in zip(lines, reach, strict=True):
        if len(line) > 1 and (claim.each or span == whole):
            yield _directed(claim, line[0], line[-1])


def _lines(scope: Scope, claim: Claim, rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Cells by their values of the claim's ``same``."""
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault(scope.values(row, claim.same), []).append(row)
    return lines


def _sorted(scope: Scope, claim: Claim, line: Iterable[Row]) -> list[Row]:
    return sorted(line, key=lambda row: scope.value(row, claim.key))


def _directed(claim: Claim, smaller: Row, larger: Row) -> Contrast:
    if claim.along.startswith("-"):
        return Contrast((smaller,), (larger,))
    return Contrast((larger,), (smaller,))


_FORMS: dict[str, Form] = {
    "best": _best,
    "first": _first,
    "pairs": _pairs,
    "steps": _steps,
    "ends": _ends,
}
_OTHER = f"a claim's compare, if none of {', '.join(_FORMS)},"
