"""Comparisons of measured rows, from which a paper's ``claims.py`` builds its claims.

    def strictly_outperforms(ask):
        '''“RSD-S strictly outperforms both SD and SpecTr for all performance metrics” (5.1)'''
        for other in ("spectr", "sd"):
            yield from ask.of("rsd-exp1").ahead(
                "{left} > {right} in {metric}", "rsd_s", other, ("mbsu", "token_rate"), same="depth"
            )

compares every two trees of one depth, on each task. ``of`` selects rows; ``by`` pairs the cells to
compare (``pair_all_in_line``, ``best``, ``steps``, ``ends``); ``expect`` is the claimed difference,
``Difference.better`` or a function of it; ``judge`` judges the mean of all comparisons (the
default), ``every``, ``most`` or ``some`` places, a line that is ``rising``, or numbers that are
``counted``. The texts of a claim, its place and its evidence may contain ``{left}``, ``{right}``,
``{metric}`` and ``{place}``, or are functions of the ``Comparison``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any, ClassVar

import pandas as pd

from spec_bench.report.claims import judges
from spec_bench.report.claims.contrast import (
    Contrast,
    Difference,
    compute_difference,
    format_picked_tree,
    has_choice,
)
from spec_bench.report.claims.sides import (
    DECODERS,
    Cells,
    Names,
    cells,
    format_metric,
    meets_condition,
    to_tuple,
)
from spec_bench.report.claims.verdict import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_COMPARABLE,
    NOT_DECIDED,
    NOT_JUDGED,
    Check,
    OfPrompts,
    PValues,
    list_holm_verdicts,
    return_no_p_values,
)
from spec_bench.report.data.counts import RecordReader, RoundReader
from spec_bench.report.data.differences import find_relative_chance_difference
from spec_bench.report.data.rows import (
    Group,
    Row,
    drop_duplicates_with_fewer_prompts,
    format_setting,
    get_timing_doubt,
    group_rows,
    join_settings_counting_unstated,
    mask_tree_attention,
    resolve_metric_columns,
    select_experiments_or_all,
    select_undoubted_rows,
    to_rows,
)
from spec_bench.report.papers.items import refuse_unknown_experiments
from spec_bench.report.papers.paper import Axes
from spec_bench.settings.former import FormerMembers
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.columns import define_all_column_names, select_must_match_columns
from spec_bench.vocabulary.decoders import require_decoder
from spec_bench.vocabulary.names import format_decoder_and_tree, summarise_doubts
from spec_bench.vocabulary.spec import parse_tree_spec

# Names that a paper's ``claims.py`` imports from here.
__all__ = [
    "UNAUDITED",
    "Checks",
    "ClaimQuery",
    "Comparison",
    "Names",
    "best",
    "cells",
    "counted",
    "describe_gap",
    "describe_gap_and_trees",
    "ends",
    "every",
    "format_metric",
    "make_unjudged_check",
    "most",
    "rising",
    "some",
    "steps",
    "to_tuple",
]

# The words of ``by``, ``judge`` and ``evidence``.
best = judges.pair_best_in_line
ends = judges.pair_ends_along
steps = judges.pair_steps_along
counted = judges.make_count_judge
every = judges.judge_every_place
most = judges.judge_most_places
rising = judges.judge_rising_steps
some = judges.judge_some_places
describe_gap = judges.describe_gap
describe_gap_and_trees = judges.describe_gap_and_trees

Checks = Iterator[Check]
Label = tuple[Any, ...]
Contrasts = list[Contrast]
Text = str | Callable[["Comparison"], str]
Expect = Callable[[Difference], PValues | None]
UNAUDITED = "unaudited"  # mark of another engine's rows
_PARTS = ("depth", "width", "nodes", "threshold", "form")


@dataclass(frozen=True)
class ClaimQuery:
    """Measured rows that a claim compares."""

    rows: pd.DataFrame  # neither failed nor simulated
    records: RecordReader  # counts by prompt
    axes: Axes = field(default_factory=dict)  # of the paper's tables
    axis: str = ""
    across: tuple[str, ...] = ()
    given: Callable[[Row], bool] | None = None

    def of(
        self,
        *experiments: str,  # results folders; all rows count if none of these has rows
        only: bool = False,  # no rows of other experiments, even then
        axis: str = "",  # of the paper's tables; cells that are not on it are left out
        across: Names = (),  # settings in which compared cells may differ, e.g. ``batch_size``
        given: Callable[[Row], bool] | None = None,  # whether a group counts, by its first cell
        rounds: bool = False,  # see below
        paths_as_rows: bool = False,  # whether cells without tree attention count too
        join: Callable[[pd.DataFrame], pd.DataFrame] | None = None,  # adds columns
    ) -> ClaimQuery:
        """Selects rows, each cell once.

        With ``rounds``, times of cells of different jobs are compared if every job was run under
        two seeds or more; the interval covers the spread over such rounds.
        """
        rows = self.rows if paths_as_rows else self.rows[mask_tree_attention(self.rows)]
        refuse_unknown_experiments(
            experiments, known_experiments := rows.get("experiment", pd.Series(dtype=str))
        )
        takes_rows = not only or known_experiments.isin(experiments).any()
        rows = drop_duplicates_with_fewer_prompts(
            select_experiments_or_all(rows, experiments) if takes_rows else rows[:0]
        )
        rows = rows if join is None else join(rows)
        records = RoundReader(self.records) if rounds else self.records
        if axis and axis not in self.axes:
            raise UsageError(f"no axis {axis!r}; the paper has: {', '.join(self.axes) or 'none'}")
        self._refuse_unknown_columns(across)
        return ClaimQuery(rows, records, self.axes, axis, to_tuple(across), given)

    @cached_property
    def groups(self) -> list[Group]:
        """Comparable cells, which differ only in the decoder and in ``across``.

        With an axis, a group must have a tree that is on this axis and on no other axis of the
        paper: two axes may share trees (2-2, 3x2, ...), which alone do not show that this axis was
        run.
        """
        if self.rows.empty:
            return []
        all_groups = group_rows(self.rows.drop(columns=[n for n in self.across if n in self.rows]))
        groups = [Group(group.title, self.rows.loc[group.rows.index]) for group in all_groups]
        if self.given is not None:
            groups = [group for group in groups if self.given(group.rows.iloc[0])]
        if not self.axis:
            return groups
        other_trees = {
            key for name, places in self.axes.items() if name != self.axis for key in places
        }
        trees = self.axes[self.axis].keys() - other_trees
        return [
            g for g in groups if trees & {*map(tuple, g.rows[["decoder", "spec"]].to_numpy(str))}
        ]

    def get_value(self, row: Row, key: str) -> Any:
        """Returns a column, a place on an axis, ``left`` (the cell's name), or a part of the tree;
        None if the cell has no such value.
        """
        if key in self.axes:
            return self.axes[key].get((str(row["decoder"]), str(row["spec"])))
        if key == "left":
            return format_decoder_and_tree(row)
        if key == "paths":
            return prod(parse_tree_spec(row["spec"]).widths or ()) or None
        if key in _PARTS:
            spec = parse_tree_spec(row["spec"])
            return None if spec.form == "name" else getattr(spec, key)
        return row.get(key)

    def select_side(self, group: Group, side: Cells) -> list[Row]:
        """Selects a side's cells, decoder by decoder; another engine's only if it is named."""
        attention = {"tree_attention": True} if "tree_attention" in group.rows else {}
        conditions = attention | {key: value for key, value in side.items() if key != DECODERS}
        return [
            row
            for name in side[DECODERS] or group.rows_by_decoder
            for row in group.rows_by_decoder.get(name, [])
            if side[DECODERS] or row.get("lossless") != UNAUDITED
            if all(
                meets_condition(self.get_value(row, key), condition)
                for key, condition in conditions.items()
            )
            if not self.axis or self.get_value(row, self.axis)
        ]

    def ahead(
        self,
        text: Text,
        left: Names | Cells,
        right: Names | Cells,
        metric: Names,
        **how: Any,
    ) -> Checks:
        """Checks whether the left cells outperform the right ones, on each task that has both, in
        each metric: a column, ``score`` (the task's) or ``scores`` (also perplexity). ``how`` has
        further fields of a ``Comparison``.
        """
        left, right = (
            side if isinstance(side, Mapping) else cells(*to_tuple(side)) for side in (left, right)
        )
        for name in {*left[DECODERS], *right[DECODERS]}.difference(self.rows.get("decoder", ())):
            require_decoder(name)
        comparison = Comparison(self, text, left, right, **how)
        self._refuse_unknown_columns(
            (*to_tuple(metric), *to_tuple(comparison.same), *to_tuple(comparison.each))
        )
        by_pair = group_by_key((str(group.rows.iloc[0].pair), group) for group in self.groups)
        for name, groups in product(to_tuple(metric), by_pair.values()):
            sound_groups = [
                replace(group, rows=select_undoubted_rows(group.rows, name)) for group in groups
            ]
            sound_cases = [
                (group, comparison.find_contrasts_by_label(group) if len(group.rows) else {})
                for group in sound_groups
            ]
            cases = [(group, by_label) for group, by_label in sound_cases if len(group.rows)]
            if comparison.has_one_check_per_group:
                comparisons: Iterator[Comparison] = (
                    replace(comparison, group=group, column=name, contrasts_by_label=by_label)
                    for group, by_label in cases
                    if by_label
                )
            else:
                comparisons = comparison.iter_comparisons_by_label(name, cases)
            yield from filter(None, map(comparison.judge, comparisons))
            yield from comparison.iter_incomparable_checks(name, cases)
            for group, (_, by_label) in zip(groups, sound_cases, strict=True):
                yield from comparison.iter_unjudged_checks(name, group, by_label)

    def _refuse_unknown_columns(self, names: Names) -> None:
        """Raises UsageError for misspelt columns, with which a claim would never be measured."""
        choices = {
            "score",
            "scores",
            "left",
            "right",
            "paths",
            *_PARTS,
            *self.axes,
            *define_all_column_names(),
        }
        for name in to_tuple(names):
            if name not in choices and name not in self.rows and not self.rows.empty:
                raise UsageError(f"no column {name!r} in results, nor a part of a tree")


@dataclass(frozen=True)
class Comparison(FormerMembers):
    """A claim's comparison of two sides, and its results on one task or on all tasks together."""

    former_members: ClassVar = {
        "by_label": "contrasts_by_label",
        "by_place": "gaps_by_place",
        "judged": "place_p_values",
    }

    ask: ClaimQuery
    text: Text
    left: Cells
    right: Cells
    by: judges.Pairing = judges.pair_all_in_line
    same: Names = ()  # columns or parts of the shorthand in which compared cells agree
    each: Names = ()  # one check per value of these; ``left``, ``right``: decoder and tree
    expect: Expect = Difference.better
    where: Text = "{title}"
    evidence: Text = describe_gap
    judge: judges.Judge = judges.judge_mean
    # whether the prompts of all tasks together are a check, too; a text names its place
    pooled: bool | str = False
    # All further fields are results.
    group: Group = Group("", pd.DataFrame())  # noqa: RUF009 - of one task, the first of several
    column: str = ""  # the metric
    label: Label = ()
    strata: Sequence[Contrasts] = ()  # the contrasts of each task
    all_tasks: str = ""  # the place of all tasks together
    gap: Difference | None = None  # the mean; None for counts and places
    # of a group's places
    contrasts_by_label: Mapping[Label, Contrasts] = field(default_factory=dict)
    gaps_by_place: Mapping[Any, Difference] = field(default_factory=dict)
    place_p_values: Sequence[PValues] = ()

    @property
    def has_one_check_per_group(self) -> bool:
        """Whether all places of a group are judged together."""
        return getattr(self.judge, "func", None) is judges.judge_places

    def get_line_key(self, row: Row) -> Label:
        """Returns a cell's values of ``same``, which cells of a line share."""
        return tuple(self.ask.get_value(row, key) for key in to_tuple(self.same))

    def group_by_line(self, rows: Iterable[Row]) -> dict[Label, list[Row]]:
        """Groups cells in lines, by their values of ``same``."""
        return group_by_key((self.get_line_key(row), row) for row in rows)

    def sort_lines(self, rows: Iterable[Row], along: str) -> list[list[Row]]:
        """Sorts each line's cells by a value, ascending, or descending if its name has a minus."""
        key = along.lstrip("-")
        return [
            sorted(line, key=lambda row: self.ask.get_value(row, key), reverse=key != along)
            for line in self.group_by_line(rows).values()
        ]

    def find_contrasts_by_label(self, group: Group) -> dict[Label, Contrasts]:
        """Finds a group's contrasts by their values of ``each``; without ``each``, by ()."""
        sides = (self.ask.select_side(group, side) for side in (self.left, self.right))
        split = group_by_key(
            (self._make_check_label(*contrast), contrast) for contrast in self.by(self, *sides)
        )
        return dict(sorted(split.items())) if self.ask.axis and self.each else split

    def _make_check_label(self, left: Sequence[Row], right: Sequence[Row]) -> Label:
        return tuple(
            format_decoder_and_tree(right[0])
            if key == "right"
            else self.ask.get_value(left[0], key)
            for key in to_tuple(self.each)
        )

    def make_check(
        self, outcome: str | PValues | None, of_prompts: OfPrompts = return_no_p_values
    ) -> Check:
        """Makes the check with its texts, from p-values or from a verdict without chance."""
        verdict = outcome if isinstance(outcome, str) else NOT_DECIDED
        return Check(
            self._fill_text(self.text),
            self.all_tasks or self._fill_text(self.where),
            "" if verdict in (NOT_COMPARABLE, NOT_JUDGED) else self._fill_text(self.evidence),
            verdict,
            p_values=outcome if isinstance(outcome, tuple) else None,
            pair=str(self.group.rows.iloc[0].pair),
            of_prompts=of_prompts,
            is_seed_bound=bool(
                self.gap and self.gap.tested and self.gap.tested.between_seeds_share > 0.5
            ),
        )

    def _fill_text(self, text: Text) -> str:
        if callable(text):
            return text(self)
        names = {
            "left": " or ".join(self.left[DECODERS]),
            "right": " or ".join(self.right[DECODERS]),
            "metric": self.metric_title,
            "place": ", ".join(map(str, self.label)),
            "title": self.group.title,
            "found": str(self.gap),
            "n": str(self.contrast_count),
        }
        try:
            return text.format(**names)
        except (KeyError, IndexError) as error:
            raise UsageError(f"{text!r} names {error}; there are {', '.join(names)}") from error

    def compute_single_difference(self, contrast: Contrast) -> Difference | None:
        """Computes the difference of a single contrast; None if a number is missing."""
        return self.compute_pooled_difference([[contrast]])

    def compute_pooled_difference(self, strata: Sequence[Contrasts]) -> Difference | None:
        """Computes the mean difference of contrasts, pooled over tasks; None if undefined."""
        records = self.ask.records
        gap = compute_difference(strata, self.column, records)
        chance = find_relative_chance_difference(to_rows(self.group.rows), self.column)
        # More prompts do not reduce the differences between rounds of jobs.
        rounds = isinstance(records, RoundReader)
        return gap and replace(
            gap, chance_share=chance, prompt_count=0 if rounds else gap.prompt_count
        )

    @property
    def first_contrasts(self) -> Contrasts:
        """The contrasts of the first task, or place."""
        return next(iter((*self.strata, *self.contrasts_by_label.values())))

    @property
    def first_cells_of_sides(self) -> list[tuple[Row, Row]]:
        """The first cell of each side, for each contrast."""
        return [(left[0], right[0]) for left, right in self.first_contrasts]

    @property
    def contrast_count(self) -> int:
        """The number of contrasts on the first task."""
        return len(self.first_contrasts)

    @property
    def metric_title(self) -> str:
        """The metric's name in sentences."""
        return format_metric(self.column)

    @cached_property
    def single_differences(self) -> list[Difference]:
        """The difference of each contrast alone."""
        return [
            gap
            for contrast in self.first_contrasts
            if (gap := self.compute_single_difference(contrast)) is not None
        ]

    def describe_single_verdicts(self, so: str, not_so: str) -> str:
        """Describes how many contrasts on one task hold on their own; "" if unknown."""
        one_sided = (Difference.above, Difference.below)
        single_expect = self.expect if self.expect in one_sided else Difference.better
        p_values = (
            []
            if len(self.strata) > 1 or self.contrast_count < 2
            else list(map(single_expect, self.single_differences))
        )
        verdicts = list_holm_verdicts([p_value for p_value in p_values if p_value])
        if not p_values or len(verdicts) < len(p_values):
            return ""
        counts = f"{verdicts.count(HOLDS)} {so}, {verdicts.count(DOES_NOT_HOLD)} {not_so}"
        return f"; one by one {counts}, the rest open"

    @property
    def holding_place_count_text(self) -> str:
        """The number of judged places at which the claim holds, of all, such as ``5 of 6``."""
        return (
            f"{list_holm_verdicts(self.place_p_values).count(HOLDS)} of {len(self.place_p_values)}"
        )

    @property
    def best_trees_text(self) -> str:
        """The best tree of each side, if there is one contrast on one task; else ""."""
        if self.contrast_count > 1 or len(self.strata) > 1:
            return ""
        return " against ".join(
            format_picked_tree(side, self.column) for side in self.first_contrasts[0]
        )

    @property
    def pick_method_text(self) -> str:
        """How trees were picked, if some were and there are intervals; else ""."""
        gaps: list[Difference | None] = [*self.gaps_by_place.values()] or [self.gap]
        is_paired = all(gap is not None and gap.ends_on_value_scale is not None for gap in gaps)
        is_paired = is_paired and not self.ask.records.printed
        if not is_paired or not any(map(has_choice, self.first_contrasts)):
            return ""
        return "; each tree picked on one half of the prompts and compared on the other"

    @property
    def gaps_by_place_text(self) -> str:
        """The difference at each place, as text."""
        return ", ".join(f"{place}: {gap}" for place, gap in self.gaps_by_place.items())

    def list_count_pairs(self, against: str = "") -> list[tuple[str, float, float]]:
        """Lists the tree and both sides' counts of each contrast that has both; with ``against``,
        the right count is this part of the left cell's shorthand.
        """
        counts = []
        for left, right in self.first_cells_of_sides:
            left_count: Any = left.get(self.column)
            right_count: Any = (
                self.ask.get_value(left, against) if against else right.get(self.column)
            )
            if not pd.isna([left_count, right_count]).any():
                counts.append((str(left["spec"]), float(left_count), float(right_count)))
        return counts

    def iter_comparisons_by_label(
        self, metric: str, cases_by_group: _Cases
    ) -> Iterator[Comparison]:
        """Yields each label's comparisons by task, then pooled over tasks of the same settings."""
        settings = _list_distinguishing_setting_texts(
            self.ask, [group for group, _ in cases_by_group]
        )
        for label in dict.fromkeys(label for _, cases in cases_by_group for label in cases):
            parts: dict[str, list[tuple[Group, Contrasts]]] = {}
            for (group, cases), setting in zip(cases_by_group, settings, strict=True):
                if label not in cases:
                    continue
                parts.setdefault(setting, []).append((group, cases[label]))
                comparison = replace(self, group=group, label=label, strata=[cases[label]])
                for column in resolve_metric_columns(group, metric):
                    yield replace(comparison, column=column)
            for setting, part in parts.items() if self.pooled else ():
                groups, strata = zip(*part, strict=True)
                if 1 < len(part) == len({str(group.rows.task.iloc[0]) for group in groups}):
                    place = f"all tasks, pair {groups[0].rows.pair.iloc[0]}"
                    place = self.pooled if isinstance(self.pooled, str) else place
                    place = ", ".join(filter(None, [place, setting]))
                    comparison = replace(self, group=groups[0], column=metric, label=label)
                    yield replace(comparison, strata=strata, all_tasks=place)

    def iter_incomparable_checks(self, metric: str, cases_by_group: _Cases) -> Checks:
        """Yields checks of tasks on which the sides' settings differ, with these settings."""
        tasks = group_by_key((str(group.rows.task.iloc[0]), group) for group, _ in cases_by_group)
        done_tasks = {str(group.rows.task.iloc[0]) for group, cases in cases_by_group if cases}
        for task, groups in tasks.items():
            if len(groups) < 2 or task in done_tasks:
                continue
            merged_group = Group(task, pd.concat([group.rows for group in groups]))
            for label, contrasts in [*self.find_contrasts_by_label(merged_group).items()][:1]:
                comparison = replace(
                    self, group=merged_group, column=metric, label=label, strata=[contrasts]
                )
                settings_text = _describe_differing_settings(contrasts, self.ask.across)
                evidence = f"{NOT_COMPARABLE}: {settings_text}"
                yield replace(comparison.make_check(NOT_COMPARABLE), evidence=evidence)

    def iter_unjudged_checks(
        self, metric: str, group: Group, sound_contrasts: Mapping[Label, Contrasts]
    ) -> Checks:
        """Yields checks of a group's labels that have no comparison without unreliable times; the
        evidence names a cell with such times and the reason.
        """
        contrasts_by_label = self.find_contrasts_by_label(group)
        missing_labels = [label for label in contrasts_by_label if label not in sound_contrasts]
        if self.has_one_check_per_group:
            missing_labels = [] if sound_contrasts else missing_labels[:1]
        for label in missing_labels:
            contrasts = contrasts_by_label[label]
            comparison = replace(self, group=group, column=metric, label=label, strata=[contrasts])
            doubts = describe_doubted_rows(chain(*chain(*contrasts)), metric)
            yield replace(comparison.make_check(NOT_JUDGED), evidence=doubts)


def describe_doubted_rows(rows: Iterable[Row], column: str) -> str:
    """Describes how many rows have an unreliable number, and the first reason; "" if none has."""
    doubted_rows = {str(row["run_id"]): row for row in rows if get_timing_doubt(row, column)}
    return "; ".join(summarise_doubts(doubted_rows.values()))


def make_unjudged_check(claim: str, group: Group, rows: Iterable[Row], column: str) -> Check:
    """Makes the check of a claim that needs rows with unreliable times."""
    pair = str(group.rows.pair.iloc[0])
    doubts = describe_doubted_rows(rows, column)
    return Check(claim, group.title, doubts, NOT_JUDGED, pair=pair)


_Cases = Sequence[tuple[Group, dict[Label, Contrasts]]]


def _list_distinguishing_setting_texts(ask: ClaimQuery, groups: Sequence[Group]) -> list[str]:
    """Formats each group's settings that differ from other groups' runs; "" if none differs."""
    columns = [
        c for group in groups[:1] for c in select_must_match_columns(group.rows) if c.apart == "run"
    ]
    texts = [
        [format_setting(column, group.rows.iloc[0][column.name]) for group in groups]
        for column in columns
        if column.name not in ask.across
    ]
    differing_texts = [column_texts for column_texts in texts if len(set(column_texts)) > 1]
    return [
        join_settings_counting_unstated(column_texts[place] for column_texts in differing_texts)
        for place in range(len(groups))
    ]


def _describe_differing_settings(contrasts: Contrasts, across: Sequence[str]) -> str:
    """Describes the settings in which the runs of compared cells differ, with their values."""
    sentences = []
    rows = [*chain(*chain(*contrasts))]
    for column in select_must_match_columns(rows[0]):
        values = dict.fromkeys(format_setting(column, row.get(column.name)) for row in rows)
        if len(values) > 1 and column.name not in across:
            start, *other_values = values
            other_texts = (text.removeprefix(column.title).strip() for text in other_values)
            sentences.append(" and ".join([start, *other_texts]))
    return "; ".join(sentences)
