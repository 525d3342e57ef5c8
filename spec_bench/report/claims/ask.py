"""What claims are asked with: what a paper's ``claims.py`` asks of measured rows.

    def strictly_outperforms(ask):
        '''“RSD-S strictly outperforms both SD and SpecTr for all performance metrics” (5.1)'''
        for other in ("spectr", "sd"):
            yield from ask.of("rsd-exp1").ahead(
                "{left} > {right} in {metric}", "rsd_s", other, ("mbsu", "token_rate"), same="depth"
            )

compares every two trees of one depth, on each task. ``of`` says whose rows count; ``by`` which cell
is set against which; ``expect`` which difference is claimed; ``judge`` whether of the mean of all
comparisons (the default), of ``every`` or ``most`` of them, of a line that is ``rising`` or of
numbers that are ``counted``. What a claim, its place and its evidence say is a text with
``{left}``, ``{right}``, ``{metric}`` and ``{place}``, or a function of what was ``Found``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import pandas as pd

from spec_bench.report.claims.contrast import Contrast
from spec_bench.report.claims.question import (
    Case,
    Cells,
    Found,
    Names,
    Places,
    Question,
    Side,
    Text,
    cells_of,
    several,
)
from spec_bench.report.claims.select import (
    UNAUDITED,
    name_of,
    of_experiment,
    scores_of,
    with_tree_attention,
)
from spec_bench.report.claims.verdict import NOT_COMPARABLE, Check
from spec_bench.report.data.counts import Records, Rounds
from spec_bench.report.data.headings import together, value_text
from spec_bench.report.data.rows import Group, Row, groups_of
from spec_bench.report.papers.paper import Axes
from spec_bench.vocabulary.columns import apart_in, header
from spec_bench.vocabulary.spec import parse

Checks = Iterator[Check]
_PARTS = ("depth", "width", "nodes", "threshold")


@dataclass(frozen=True)
class Ask:
    """Measured rows that a claim asks something of."""

    rows: pd.DataFrame  # neither failed nor simulated
    records: Records  # counts by prompt
    axes: Axes = field(default_factory=dict)  # of the paper's tables
    axis: str = ""
    across: tuple[str, ...] = ()
    given: Callable[[Row], bool] | None = None

    def of(
        self,
        *experiments: str,  # results folders; all rows count where none of them is there
        only: bool = False,  # no rows of other experiments, even then
        axis: str = "",  # of the paper's tables; cells that stand in none are left out
        across: Names = (),  # settings in which compared cells may differ, e.g. ``batch_size``
        given: Callable[[Row], bool] | None = None,  # which settings count, by a cell
        rounds: bool = False,  # see below
        paths_as_rows: bool = False,  # whether cells without tree attention count too
        join: Callable[[pd.DataFrame], pd.DataFrame] | None = None,  # adds columns
    ) -> Ask:
        """The same for some of the rows.

        With ``rounds`` the cells are of different jobs; their times are compared where every job
        was run under two seeds or more, and the interval covers the spread over such rounds.
        """
        rows = self.rows if paths_as_rows else with_tree_attention(self.rows)
        rows = of_experiment(rows, *experiments, only=only)
        rows = rows if join is None else join(rows)
        records = Rounds(self.records) if rounds else self.records
        if axis and axis not in self.axes:
            raise ValueError(f"no axis {axis!r}; the paper has: {', '.join(self.axes) or 'none'}")
        self._refuse_unknown(across)
        return Ask(rows, records, self.axes, axis, several(across), given)

    @cached_property
    def groups(self) -> list[Group]:
        """Comparable cells, which differ in the decoder and in ``across`` only."""
        rows = self.rows
        if rows.empty:
            return []
        groups = groups_of(rows.drop(columns=[name for name in self.across if name in rows]))
        whole = [Group(group.title, rows.loc[group.rows.index]) for group in groups]
        if self.given is not None:
            whole = [group for group in whole if self.given(group.rows.iloc[0])]
        return [group for group in whole if not self.axis or self._measures(group.rows)]

    def _measures(self, rows: pd.DataFrame) -> bool:
        """Whether some tree stands on the axis and on no other of the paper.

        Two axes may share trees (2-2, 3x2, ...), which alone are no run of either.
        """
        others = {key for name, places in self.axes.items() if name != self.axis for key in places}
        trees = self.axes[self.axis].keys() - others
        return any((d, str(spec)) in trees for d, spec in zip(rows.decoder, rows.spec, strict=True))

    def value(self, row: Row, key: str) -> Any:
        """A column, a place on an axis, ``left`` for decoder and tree, or a part of the tree's
        shorthand: ``depth``, ``width``, ``nodes``, ``paths``, ``threshold``; None without.
        """
        if key in self.axes:
            return self.axes[key].get((str(row["decoder"]), str(row["spec"])))
        if key == "left":
            return name_of(row)
        if key == "paths":
            return prod(parse(row["spec"]).widths or ()) or None
        if key in _PARTS:
            spec = parse(row["spec"])
            return None if spec.form == "name" else getattr(spec, key)
        return row.get(key)

    def values(self, row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
        """Several of a row's values."""
        return tuple(self.value(row, key) for key in keys)

    def side(self, group: Group, side: Cells) -> list[Row]:
        """The cells of one side, decoder by decoder; another engine's only where it is named."""
        return [
            row
            for name in side.decoders or group.by_decoder
            if name not in side.without
            for row in group.by_decoder.get(name, [])
            if side.decoders or row.get("lossless") != UNAUDITED
            if row.get("tree_attention", True) == side.tree_attention
            if not side.form or parse(row["spec"]).form == side.form
            if all(_is(self.value(row, key), wanted) for key, wanted in side.where.items())
            if not self.axis or self.value(row, self.axis)
        ]

    def ahead(
        self,
        text: Text,
        left: Side,
        right: Side,
        metric: Names,
        *,
        pooled: bool | str = False,
        **how: Any,
    ) -> Checks:
        """The left cells ahead of the right ones, on each task that has both.

        Args:
            text: of the claim.
            left: cells, or the names of decoders.
            right: likewise.
            metric: a column each; ``score``: the task's score; ``scores``: that and perplexity.
            pooled: whether all tasks' prompts together are a check too; a text names that place.
            how: further fields of a ``Question``.
        """
        asked = Question(self, text, cells_of(left), cells_of(right), **how)
        self._refuse_unknown((*several(metric), *asked.same, *asked.each))
        by_pair: dict[str, list[Group]] = {}
        for group in self.groups:
            by_pair.setdefault(str(group.rows.iloc[0].pair), []).append(group)
        for name, groups in product(several(metric), by_pair.values()):
            known = [(group, asked.cases(group)) for group in groups]
            found = _of_groups if isinstance(asked.judge, Places) else _by_label
            for about, strata in found(asked, name, known, pooled):
                if (check := asked.judge(about, strata)) is not None:
                    yield check
            yield from _not_comparable(asked, name, known)

    def _refuse_unknown(self, names: Names) -> None:
        """Refuses misspelt columns, with which a claim would never be measured."""
        known = {"score", "scores", "left", "right", "paths", *_PARTS, *self.axes, *header()}
        for name in several(names):
            if name not in known and name not in self.rows and not self.rows.empty:
                raise ValueError(f"no column {name!r} in results, nor a part of a tree")


_Known = Sequence[tuple[Group, list[Case]]]
_Abouts = Iterator[tuple[Found, list[tuple[Contrast, ...]]]]


def _of_groups(asked: Question, metric: str, known: _Known, pooled: bool | str) -> _Abouts:
    """Each group with all of its cases."""
    for group, cases in known:
        if cases:
            yield replace(asked.about(group, metric, cases[0]), cases=cases, label=()), []


def _by_label(asked: Question, metric: str, known: _Known, pooled: bool | str) -> _Abouts:
    """Each label's cases, task by task, then pooled."""
    strata: dict[tuple[Any, ...], list[tuple[Group, Case]]] = {}
    for group, cases in known:
        for case in cases:
            strata.setdefault(case.label, []).append((group, case))
    for members in strata.values():
        for group, case in members:
            for column in scores_of(group, metric):
                yield asked.about(group, column, case), [case.contrasts]
        parts = _tasks(asked.ask, [group for group, _ in known], members) if pooled else {}
        for setting, part in parts.items():
            group, case = part[0]
            pair = f"all tasks, pair {group.rows.pair.iloc[0]}"
            place = ", ".join(filter(None, [pooled if isinstance(pooled, str) else pair, setting]))
            about = replace(asked.about(group, metric, case), tasks=len(part), pooled=place)
            yield about, [case.contrasts for _, case in part]


def _tasks(
    ask: Ask, groups: Sequence[Group], known: Sequence[tuple[Group, Case]]
) -> dict[str, list[tuple[Group, Case]]]:
    """The cases to pool: of several tasks, each once, whose runs agree in their settings.

    By the settings that differ from other runs', as text; "" without other runs.
    """
    apart = [column for column in apart_in(groups[0].rows) if column.apart == "run"]
    columns = [column for column in apart if column.name not in ask.across]
    values = {id(group): [group.rows.iloc[0][c.name] for c in columns] for group in groups}
    texts = [
        {id(group): value_text(column, values[id(group)][place]) for group in groups}
        for place, column in enumerate(columns)
    ]
    varying = [each for each in texts if len(set(each.values())) > 1]
    parts: dict[str, list[tuple[Group, Case]]] = {}
    for group, case in known:
        parts.setdefault(together(each[id(group)] for each in varying), []).append((group, case))
    counts = {id(part): len({str(g.rows.task.iloc[0]) for g, _ in part}) for part in parts.values()}
    return {setting: part for setting, part in parts.items() if 1 < len(part) == counts[id(part)]}


def _not_comparable(asked: Question, metric: str, known: _Known) -> Checks:
    """Checks of tasks whose two sides differ in settings; the evidence names the columns."""
    tasks: dict[str, list[tuple[Group, list[Case]]]] = {}
    for group, cases in known:
        tasks.setdefault(str(group.rows.task.iloc[0]), []).append((group, cases))
    for task, same_task in tasks.items():
        if len(same_task) < 2 or any(cases for _, cases in same_task):
            continue
        whole = Group(task, pd.concat([group.rows for group, _ in same_task]))
        for case in asked.cases(whole)[:1]:
            check = asked.about(whole, metric, case).check(NOT_COMPARABLE)
            evidence = f"{NOT_COMPARABLE}: {_differing(asked.ask, case)}"
            yield replace(check, evidence=evidence)


def _differing(ask: Ask, case: Case) -> str:
    """The columns in which the cells of a case differ, with their values."""
    rows = [row for each in case.contrasts for row in each.cells]
    said = []
    for column in apart_in(rows[0]):
        values = dict.fromkeys(value_text(column, row.get(column.name)) for row in rows)
        if len(values) > 1 and column.name not in ask.across:
            first, *others = values
            rest = (other.removeprefix(column.title).strip() for other in others)
            said.append(" and ".join([first, *rest]))
    return "; ".join(said)


def _is(value: Any, wanted: Any) -> bool:
    if value is None or pd.isna(value):
        return False
    if callable(wanted):
        return bool(wanted(value))
    return value in wanted if isinstance(wanted, tuple | list | set) else bool(value == wanted)
