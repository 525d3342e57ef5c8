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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import pandas as pd

from spec_bench.report.claims.question import (
    Cells,
    Contrasts,
    Found,
    Label,
    Names,
    Places,
    Question,
    Side,
    Text,
    cells,
    several,
)  # fmt: skip
from spec_bench.report.claims.select import (
    UNAUDITED,
    name_of,
    of_experiment,
    scores_of,
    with_tree_attention,
)  # fmt: skip
from spec_bench.report.claims.verdict import NOT_COMPARABLE, Check
from spec_bench.report.data.apart import together, value_text
from spec_bench.report.data.counts import Records, Rounds
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
        """Comparable cells, which differ in the decoder and in ``across`` only.

        With an axis some tree of theirs stands on it and on no other of the paper: two axes may
        share trees (2-2, 3x2, ...), which alone are no run of either.
        """
        if self.rows.empty:
            return []
        alike = groups_of(self.rows.drop(columns=[n for n in self.across if n in self.rows]))
        groups = [Group(group.title, self.rows.loc[group.rows.index]) for group in alike]
        if self.given is not None:
            groups = [group for group in groups if self.given(group.rows.iloc[0])]
        if not self.axis:
            return groups
        others = {key for name, places in self.axes.items() if name != self.axis for key in places}
        trees = self.axes[self.axis].keys() - others
        own = [{*zip(g.rows.decoder, g.rows.spec.astype(str), strict=True)} for g in groups]
        return [group for group, cells in zip(groups, own, strict=True) if trees & cells]

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

    def lines(self, rows: Iterable[Row], keys: Sequence[str]) -> dict[Label, list[Row]]:
        """Cells by their values of some keys."""
        lines: dict[Label, list[Row]] = {}
        for row in rows:
            lines.setdefault(tuple(self.value(row, key) for key in keys), []).append(row)
        return lines

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
        one, other = (s if isinstance(s, Cells) else cells(*several(s)) for s in (left, right))
        asked = Question(self, text, one, other, **how)
        self._refuse_unknown((*several(metric), *several(asked.same), *several(asked.each)))
        by_pair: dict[str, list[Group]] = {}
        for group in self.groups:
            by_pair.setdefault(str(group.rows.iloc[0].pair), []).append(group)
        for name, groups in product(several(metric), by_pair.values()):
            known = [(group, asked.cases(group)) for group in groups]
            found = _by_label(asked, name, known, pooled)
            if isinstance(asked.judge, Places):
                found = _of_groups(asked, name, known)
            yield from filter(None, map(asked.judge, found))
            yield from _not_comparable(asked, name, known)

    def _refuse_unknown(self, names: Names) -> None:
        """Refuses misspelt columns, with which a claim would never be measured."""
        known = {"score", "scores", "left", "right", "paths", *_PARTS, *self.axes, *header()}
        for name in several(names):
            if name not in known and name not in self.rows and not self.rows.empty:
                raise ValueError(f"no column {name!r} in results, nor a part of a tree")


def _is(value: Any, wanted: Any) -> bool:
    if value is None or pd.isna(value):
        return False
    if callable(wanted):
        return bool(wanted(value))
    return value in wanted if isinstance(wanted, tuple | list | set) else bool(value == wanted)


_Case = tuple[Group, dict[Label, Contrasts]]


def _of_groups(asked: Question, metric: str, known: Sequence[_Case]) -> Iterator[Found]:
    """Each group with all of its cases."""
    for group, cases in known:
        if cases:
            yield Found(asked, group, metric, (), [next(iter(cases.values()))], cases=cases)


def _by_label(
    asked: Question, metric: str, known: Sequence[_Case], pooled: bool | str
) -> Iterator[Found]:
    """Each label's cases, task by task, then pooled."""
    groups = [group for group, _ in known]
    for label in dict.fromkeys(label for _, cases in known for label in cases):
        members = [(group, cases[label]) for group, cases in known if label in cases]
        for group, contrasts in members:
            for column in scores_of(group, metric):
                yield Found(asked, group, column, label, [contrasts])
        for setting, part in (_tasks(asked.ask, groups, members) if pooled else {}).items():
            group, strata = part[0][0], [contrasts for _, contrasts in part]
            pair = f"all tasks, pair {group.rows.pair.iloc[0]}"
            where = pooled if isinstance(pooled, str) else pair
            place = ", ".join(filter(None, [where, setting]))
            yield Found(asked, group, metric, label, strata, place)


_Member = tuple[Group, Contrasts]


def _tasks(ask: Ask, groups: Sequence[Group], known: Sequence[_Member]) -> dict[str, list[_Member]]:
    """The contrasts to pool: of several tasks, each once, whose runs agree in their settings.

    By the settings that differ from other runs', as text; "" without other runs.
    """
    apart = [column for column in apart_in(groups[0].rows) if column.apart == "run"]
    texts = [
        {id(group): value_text(column, group.rows.iloc[0][column.name]) for group in groups}
        for column in apart
        if column.name not in ask.across
    ]
    varying = [each for each in texts if len(set(each.values())) > 1]
    parts: dict[str, list[_Member]] = {}
    for group, contrasts in known:
        setting = together(each[id(group)] for each in varying)
        parts.setdefault(setting, []).append((group, contrasts))
    tasks = {name: {str(g.rows.task.iloc[0]) for g, _ in part} for name, part in parts.items()}
    return {name: part for name, part in parts.items() if 1 < len(part) == len(tasks[name])}


def _not_comparable(asked: Question, metric: str, known: Sequence[_Case]) -> Checks:
    """Checks of tasks whose two sides differ in settings; the evidence names the columns."""
    tasks: dict[str, list[_Case]] = {}
    for group, cases in known:
        tasks.setdefault(str(group.rows.task.iloc[0]), []).append((group, cases))
    for task, same_task in tasks.items():
        if len(same_task) < 2 or any(cases for _, cases in same_task):
            continue
        whole = Group(task, pd.concat([group.rows for group, _ in same_task]))
        for label, contrasts in [*asked.cases(whole).items()][:1]:
            check = Found(asked, whole, metric, label, [contrasts]).check(NOT_COMPARABLE)
            rows = [row for contrast in contrasts for row in contrast.cells]
            yield replace(check, evidence=f"{NOT_COMPARABLE}: {_differing(asked.ask, rows)}")


def _differing(ask: Ask, rows: Sequence[Row]) -> str:
    """The columns in which cells differ, with their values."""
    said = []
    for column in apart_in(rows[0]):
        values = dict.fromkeys(value_text(column, row.get(column.name)) for row in rows)
        if len(values) > 1 and column.name not in ask.across:
            first, *others = values
            rest = (other.removeprefix(column.title).strip() for other in others)
            said.append(" and ".join([first, *rest]))
    return "; ".join(said)
