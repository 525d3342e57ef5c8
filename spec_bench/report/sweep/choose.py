"""Chooses the cells of a results file that a page draws, and the best ones by task and category.

Knows rows and records; nothing about drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from spec_bench.metrics.choice import choose
from spec_bench.metrics.interval import Interval
from spec_bench.report.data.categories import CellByCategory, by_category, kinds_of
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Group, Row, groups_of, prompts_of, rows_of
from spec_bench.report.page.headline import decoder_of, headline, title_of
from spec_bench.vocabulary.numbers import ends_of

SHOWN, DETAILED = 6, 120
_BY = ("speedup", "block_efficiency")


@dataclass(frozen=True)
class Answer:
    """The recommended decoder on one kind of prompts."""

    kind: str  # the category; "" for all prompts of the task
    decoder: str  # for people; the words for it where none is recommended
    code: str  # the decoder's name in the results; "" where none is recommended
    value: str  # the number with its interval, or ""
    why: str  # the reason
    prompts: str  # on how many, in words


@dataclass(frozen=True)
class Part:
    """A group with its cells in the details."""

    title: str  # for people
    pair: str  # name of the pair
    group: Group  # all of its cells
    shown: tuple[Row, ...]  # plain decoding and the fastest cells, whose records are read
    answers: tuple[Answer, ...]  # recommendations, all prompts first
    # the numbers by category that the answers follow from
    categories: tuple[CellByCategory, ...] = field(default=(), repr=False)
    # whether the shown cells' records were read; of very many groups the first
    detailed: bool = True


def parts_of(rows: pd.DataFrame, records: Records) -> list[Part]:
    """All groups, of the first ones the fastest cells' records too.

    Args:
        rows: a results file's, without seeds apart.
        records: the counts of its cells by prompt.
    """
    parts, left = [], DETAILED
    for group in groups_of(rows):
        shown = _shown(group)
        detailed = len(shown) <= left
        left -= len(shown) if detailed else 0
        part = Group(group.title, group.rows.loc[[index for index, _ in shown]])
        kinds = kinds_of(part, records) if detailed else []
        cells = by_category(part, kinds, records) if kinds else []
        counts = {kind.name: len(kind.prompts) for kind in kinds}
        answers = [_overall(group), *(_of_category(n, count, cells) for n, count in counts.items())]
        parts.append(
            Part(
                title=title_of(group),
                pair=str(group.rows.iloc[0].pair),
                group=group,
                shown=tuple(row for _, row in shown),
                answers=tuple(answer for answer in answers if answer is not None),
                categories=tuple(cells),
                detailed=detailed,
            )
        )
    return parts


def _shown(group: Group) -> list[tuple[object, Row]]:
    """Index and row of plain decoding and of the fastest cells, in that order."""
    rows = group.rows[group.rows.status != "failed"]
    plain = rows[rows.decoder == "ar"].head(1)
    others = rows[rows.decoder != "ar"]
    by = next((name for name in _BY if name in rows and others[name].notna().any()), None)
    if by is not None:
        others = others.sort_values(by, ascending=False, kind="stable")
    best = pd.concat([plain, others.head(SHOWN)])
    return list(zip(best.index, rows_of(best), strict=True))


def _overall(group: Group) -> Answer | None:
    best = headline(group)
    if best is None:
        return None
    counted = prompts_of(group.rows)
    return Answer("", best.decoder, best.code, best.speed, best.why, counted)


def _of_category(name: str, count: int, cells: Sequence[CellByCategory]) -> Answer | None:
    """The fastest of the shown cells on a category's prompts, of those that are surely faster."""
    speeds = [(cell.row, cell.speedup[name]) for cell in cells if name in cell.speedup]
    if not speeds:
        return None
    prompts = f"{count} prompt{'' if count == 1 else 's'}"
    looked_at = [(decoder_of(row), speed, count) for row, speed in speeds]
    choice = choose(looked_at, "{} prompts of this kind")
    if choice.faster:
        row, speed = max((speeds[n] for n in choice.faster), key=lambda each: each[1].value)
        why = f"surely faster than AR, the fastest of {len(speeds)} cells that are looked at"
        return Answer(name, decoder_of(row), str(row["decoder"]), speed_text(speed), why, prompts)
    code, value = ("ar", "1.00×") if choice.answer == "AR" else ("", "")
    return Answer(name, choice.answer, code, value, choice.why, prompts)


def speed_text(speed: Interval) -> str:
    """A speed-up with its interval."""
    ends = ends_of(speed.low, speed.high, ".2f", "[{} to {}]") or "(no interval)"
    return f"{speed.value:.2f}× {ends}"
