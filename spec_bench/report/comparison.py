"""What changed from one results folder to another: cells matched, numbers judged.

A speed-up is over the run's plain decoding, timed in turn with the cell: two machines, or one
machine on two days, differ least in it. Plain decoding has no such ratio: of one machine its own
rate is compared.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log1p
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spec_bench.metrics.interval import TOO_FEW, Interval
from spec_bench.metrics.intervals import RATIOS
from spec_bench.metrics.p_values import adjust_by_holm, two_sided_p_value
from spec_bench.metrics.resampling import bootstrap_intervals
from spec_bench.metrics.score_intervals import score_difference_interval
from spec_bench.report.data.counts import (
    ENOUGH,
    RecordReader,
    compute_metric_from_sums,
    get_paired_timings,
    make_empty_sums,
    stack_counts,
)
from spec_bench.report.data.rows import Row, get_number, get_timing_doubt, group_rows, to_rows
from spec_bench.report.data.seeds import SEEDS
from spec_bench.report.page.build import LoadedResults, load_results
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import make_in_groups
from spec_bench.vocabulary.columns import Column, get_column, get_columns
from spec_bench.vocabulary.numbers import format_count

ALPHA = 0.05
MARGIN = 0.03
RATE_MARGIN = 0.2  # share by which plain decoding's rate differs from day to day on one machine
_ALWAYS = ("pair", "task", "decoder", "spec")
_SETTINGS = ("identity", "setting")
_DIGESTS = ("target_digest", "draft_digest", "code_digest", "token_ids_digest")
_NEVER = (*_DIGESTS, "run_id", "seed", "prompts_digest", "engine", SEEDS)
_NOT_STATED = "not stated"
_OF_TEXTS = ("likelihood", "score")
_COMPARED_COLUMNS = ("speedup", "block_efficiency")
_SPEEDUP = "speedup"
RATE = "token_rate"
_OTHER_PROMPTS = {
    "prompts_digest": "other prompts",
    "token_ids_digest": "other token ids of the same texts",
}
_OTHER_MACHINE = "another machine"
_METRIC_CODE = re.compile(r"\|code:(\w{8})")
_AT_ONCE = 256  # numbers whose intervals are made together
Verdict = Literal["regression", "improvement", "no change shown", "identical", "not judged"]
ORDER: tuple[Verdict, ...] = get_args(Verdict)
Key = tuple[str, ...]
"""The values that identify a cell, in the order of their columns."""
Array = NDArray[np.float64]


class MatchedCell(NamedTuple):
    """A cell that both sides have."""

    name: str  # distinct among the cells, for people
    rows: tuple[Row, Row]  # the first side's, then the second's
    baselines: tuple[Sequence[Row], Sequence[Row]]  # plain decoding of the same groups


class DifferentSetting(NamedTuple):
    """A setting or a fact about the machine that is not the same on both sides."""

    name: str  # of the column, for people
    before: str  # its values on the first side
    after: str  # its values on the second side
    cells: int  # in how many cells


@dataclass(frozen=True)
class NumberChange:
    """A number of a cell on both sides."""

    cell: str  # its name
    column: Column  # the number's
    before: float | None  # on the first side, of the prompts that both have
    after: float | None  # on the second side
    is_relative: bool  # whether the change is a share of `before`
    shift: Interval | None = None  # the change with its interval; None where it is not judged
    p_value: float | None = (
        None  # of no change beyond the margin; ``judge_and_sort_changes`` corrects it
    )
    prompts: int = 0  # that both sides have
    why: str = ""  # why it is not judged, or no change is shown; ""
    is_identical: bool = False  # whether no prompt differs
    verdict: Verdict = "not judged"

    @property
    def is_worse(self) -> bool:
        """Whether the number changed for the worse."""
        assert self.shift is not None
        return self.shift.value < 0 if self.column.better == "up" else self.shift.value > 0


@dataclass(frozen=True)
class ResultsComparison:
    """Comparison of two results folders."""

    before: str  # name of the first
    after: str  # name of the second
    alpha: float  # the chance of any false alarm
    margin: float  # the share by which a speed-up may change and count as the same
    changes: Sequence[NumberChange]  # all changes, regressions first
    # cells that have numbers on the first side and failed on the second, with why
    newly_failed: Sequence[tuple[str, str]]
    one_sided_cells: Sequence[
        tuple[str, Sequence[str]]
    ]  # before or after, and the cells it alone has
    differing: Sequence[DifferentSetting]  # settings, machines and versions that are not the same

    def select_changes(self, verdict: Verdict) -> list[NumberChange]:
        """Selects the changes with this verdict."""
        return [change for change in self.changes if change.verdict == verdict]

    @property
    def regressed(self) -> bool:
        """Whether a number regressed or a cell newly failed."""
        return bool(self.newly_failed or self.select_changes("regression"))

    @property
    def compared_number_count(self) -> int:
        """Number of changes that were judged."""
        return len(self.changes) - len(self.select_changes("not judged"))

    @property
    def inconclusive_reason(self) -> str:
        """Returns why the comparison is not a success although nothing regressed; "" if it is."""
        if not self.compared_number_count:
            return "no number could be compared"
        is_disturbed = any(change.why.startswith("disturbed") for change in self.changes)
        return "speeds are not judged, disturbed" if is_disturbed else ""

    @property
    def has_only_identical_numbers(self) -> bool:
        """Whether both sides are one measurement: times, too, are the same on every prompt."""
        judged_changes = [change for change in self.changes if change.verdict != "not judged"]
        has_speeds = any(change.column.name in (_SPEEDUP, RATE) for change in judged_changes)
        return (
            has_speeds
            and not self.one_sided_cells
            and all(change.verdict == "identical" for change in judged_changes)
            and all(change.before == change.after for change in self.changes)
        )

    @property
    def sentence(self) -> str:
        """The summary in a sentence."""
        if self.has_only_identical_numbers:
            return (
                "These are the same runs: every number, times included, is equal on every prompt. "
                "To measure again, run the job with another --out FOLDER"
            )
        open_count = len(self.select_changes("not judged"))
        doubt = f"{self.inconclusive_reason}; " if self.inconclusive_reason else ""
        parts = [
            format_count(len(self.select_changes("regression")), "regression"),
            format_count(len(self.select_changes("improvement")), "improvement"),
            f"{format_count(self.compared_number_count, 'number')} compared",
        ]
        parts += [f"{open_count} not judged"] if open_count else []
        failure_text = format_count(len(self.newly_failed), "cell")
        parts += [f"{failure_text} failed that had not"] if self.newly_failed else []
        setting_names = (setting.name for setting in self.differing if _NOT_STATED not in setting)
        model_facts = dict.fromkeys(
            name for name in setting_names if name.endswith(("digest", "token ids"))
        )
        parts += [f"another {' and '.join(model_facts)}"] if model_facts else []
        return doubt + ", ".join(parts)


def compare_results(
    before: Path,
    after: Path,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    mixed_models: bool = False,
) -> ResultsComparison:
    """Compares two results folders or tables.

    ``alpha`` is the chance of any false alarm among all numbers. A speed-up that changed by at most
    the share ``margin`` counts as the same, because processes differ by that much from start to
    start. Raises UsageError if there are no rows, if no cell is on both sides, or if ``alpha`` or
    ``margin`` is not a share.
    """
    for name, share, bound in (("alpha", alpha, 0.0), ("margin", margin, -1e-12)):
        if not bound < share < 1:
            raise UsageError(f"{name} is {share}, not a share below 1")
    numbers = (*_COMPARED_COLUMNS, RATE)
    sides = (
        read_comparison_side(before, numbers, mixed_models),
        read_comparison_side(after, numbers, mixed_models),
    )
    pairs, unmatched_names = match_cells(sides, (before, after))
    has_failed = [[str(row["status"]) == "failed" for row in match.rows] for match in pairs]
    failures = [m for m, failed in zip(pairs, has_failed, strict=True) if failed == [False, True]]
    complete_pairs = [
        match for match, failed in zip(pairs, has_failed, strict=True) if not any(failed)
    ]
    columns_both = get_columns(name for side in sides for name in side.rows)
    changes = list(compare_numbers(complete_pairs, columns_both, sides[0].records, margin))
    return ResultsComparison(
        before=str(before),
        after=str(after),
        alpha=alpha,
        margin=margin,
        changes=judge_and_sort_changes(changes, alpha),
        newly_failed=[(match.name, str(match.rows[1]["reason"])) for match in failures],
        one_sided_cells=[(side, names) for side, names in unmatched_names.items() if names],
        differing=list_different_settings(pairs, columns_both, sides),
    )


def judge_and_sort_changes(changes: Sequence[NumberChange], alpha: float) -> list[NumberChange]:
    """Gives verdicts, corrected together; sorts regressions first, and each verdict by p-value.

    Numbers that are the same on every prompt give no alarm and do not count as tests.
    """
    results = []
    with_p = []
    for change in changes:
        if change.is_identical:
            results.append(replace(change, p_value=None, verdict="identical"))
        elif change.p_value is None:
            results.append(_flag_halved_rate(change))
        else:
            with_p.append((change, change.p_value))
    for (change, uncorrected_p), p in zip(
        with_p, adjust_by_holm([p for _, p in with_p]), strict=True
    ):
        ends = change.shift and change.shift.ends
        verdict: Verdict = "regression" if change.is_worse else "improvement"
        why = ""
        if p >= alpha:
            verdict = "no change shown"
            if ends and not ends[0] <= 0 <= ends[1]:
                reason = "not among so many numbers" if uncorrected_p < alpha else "not the margin"
                why = f"its own interval leaves out 0, but {reason}"
        results.append(replace(change, p_value=p, verdict=verdict, why=why))
    return sorted(results, key=lambda change: (ORDER.index(change.verdict), change.p_value or 0.0))


def _flag_halved_rate(change: NumberChange) -> NumberChange:
    """Judges a change without an interval: less than half of plain decoding's rate needs none."""
    is_halved = change.before and change.after and 2 * change.after < change.before
    doubts = (*_OTHER_PROMPTS.values(), _OTHER_MACHINE, "disturbed")
    if not is_halved or change.column.name != RATE or change.why.startswith(doubts):
        return change
    return replace(change, verdict="regression", why=f"{change.why}, but less than half")


def read_comparison_side(
    path: Path, kept_columns: Sequence[str] = (), mixed_models: bool = False
) -> LoadedResults:
    """Reads a side from a ``results.csv``, its folder, or a results folder with several; of
    measured numbers only ``kept_columns``. Raises UsageError if there are no rows.
    """
    file = path / files.RESULTS
    tables = [
        path_tried for path_tried in (path, file) if path_tried.is_file()
    ] or files.list_results_files(path)
    if path.suffix == ".jsonl":
        raise UsageError(f"{str(path)!r}: answer files are read by spec-bench report answers first")
    if not any(path_tried.stat().st_size for path_tried in tables):
        raise UsageError(f"no {files.RESULTS} in {str(path)!r} or in the folders below it")
    return load_results(tables, None, kept_columns, mixed_models)


def match_cells(
    sides: tuple[LoadedResults, LoadedResults], paths: tuple[Path, Path]
) -> tuple[list[MatchedCell], dict[Literal["before", "after"], list[str]]]:
    """Lists the cells that both sides have, in the first one's order, and the names of those that
    one alone has, ``before`` and ``after``.

    Two cells are the same where they agree in pair, task, decoder and tree, and in as many other
    settings as it takes to tell the cells of each side apart. They may differ in other settings,
    which ``differing`` lists. Raises ValueError: no cell is on both sides.
    """
    keys = _select_distinguishing_columns(*(side.rows for side in sides))
    first, second = (_index_cells(side.rows, keys) for side in sides)
    names = _name_cells([*first, *second], keys)
    pairs = [
        MatchedCell(names[key], (row, second[key][0]), (baselines, second[key][1]))
        for key, (row, baselines) in first.items()
        if key in second
    ]
    if not pairs:
        problem = f"no cell of {str(paths[0])!r} is in {str(paths[1])!r}"
        first_name, second_name = (names[next(iter(cells))] for cells in (first, second))
        is_other_pair = {*sides[0].rows.pair}.isdisjoint(sides[1].rows.pair)
        advice = "; if it is one pair, give both the same --pair" * is_other_pair
        raise UsageError(
            f"{problem}; the first ones are {first_name!r} and {second_name!r}{advice}"
        )
    return pairs, {
        "before": [names[key] for key in first if key not in second],
        "after": [names[key] for key in second if key not in first],
    }


def _select_distinguishing_columns(*sides: pd.DataFrame) -> list[str]:
    """Selects as few columns as possible that tell the cells of each side apart."""
    present = [column.name for column in get_columns(sides[0].columns) if column.kind in _SETTINGS]
    keys = list(_ALWAYS)
    for name in (*present, "experiment"):
        if name in (*keys, *_NEVER) or not all(name in rows for rows in sides):
            continue
        for rows in sides:
            values = rows.groupby(keys, dropna=False)[name].nunique(dropna=False)
            if (values > 1).any() and rows.duplicated(keys).any():
                keys.append(name)
                break
    return keys


def _index_cells(rows: pd.DataFrame, keys: Sequence[str]) -> dict[Key, tuple[Row, list[Row]]]:
    """Returns the cells by their keys, each with plain decoding of its group, which may be timed in
    turn with it; of several with one key the last.
    """
    cells = {}
    for group in group_rows(rows):
        members = to_rows(group.rows)
        baselines = [r for r in members if r["decoder"] == "ar" and r["status"] != "failed"]
        for row in members:
            cells[tuple(_format_setting(row.get(key)) for key in keys)] = row, baselines
    return cells


def _name_cells(all_keys: Sequence[Key], keys: Sequence[str]) -> dict[Key, str]:
    """Names cells for people: decoder, tree, task, pair, and the settings that tell them apart."""
    facts = {
        (key[:4], name, value) for key in all_keys for name, value in zip(keys, key, strict=True)
    }
    values = Counter((cell, name) for cell, name, _ in facts)
    names = {}
    for key in all_keys:
        pair, task, decoder, spec, *values_left = key
        settings = [
            (n, v) for n, v in zip(keys[4:], values_left, strict=True) if values[key[:4], n] > 1
        ]
        names[key] = ", ".join(
            [f"{decoder} {spec}", task, pair, *(f"{n} {v}" for n, v in settings)]
        )
    return names


def list_different_settings(
    pairs: Sequence[MatchedCell],
    columns_both: Sequence[Column],
    sides: Sequence[LoadedResults],
) -> list[DifferentSetting]:
    """Lists settings, machines and versions that differ, by number of cells, descending."""
    counts: Counter[tuple[str, str, str]] = Counter()
    setting_columns = [
        c for c in columns_both if c.kind in _SETTINGS and c.name not in ("run_id", *_ALWAYS)
    ]
    for match in pairs:
        for setting in setting_columns:
            before, after = (_format_setting(row.get(setting.name)) for row in match.rows)
            counts[setting.title, before, after] += before != after
        codes = [
            ", ".join(_METRIC_CODE.findall(str(row.get("quality_signature")))) for row in match.rows
        ]
        if all(codes):
            counts["code of own metrics", codes[0], codes[1]] += codes[0] != codes[1]
    origins = [[origin for origin, _ in side.origins] for side in sides]
    for fact in dict.fromkeys(name for side in origins for origin in side for name in origin):
        values_known = [dict.fromkeys(filter(None, (o.get(fact) for o in s))) for s in origins]
        texts = [", ".join(values) or _NOT_STATED for values in values_known]
        if texts[0] != texts[1] and fact != "day":
            counts.setdefault((fact, texts[0], texts[1]), len(pairs))
    return [DifferentSetting(*key, cells) for key, cells in counts.most_common() if cells]


def _format_setting(value: Any) -> str:
    """Formats a setting as text that does not depend on how its file was read."""
    if pd.isna(value):
        return _NOT_STATED
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if number else str(value)


def compare_numbers(
    matches: Sequence[MatchedCell],
    columns_both: Sequence[Column],
    records: RecordReader,
    margin: float,
) -> Iterator[NumberChange]:
    """Yields the changes of cells that both sides have: speed-up, block efficiency, and the scores
    among ``columns_both``. Speed-ups that differ by at most the share ``margin`` count as equal.
    """
    score_columns = [
        number_column for number_column in columns_both if number_column.kind in _OF_TEXTS
    ]
    changes: list[NumberChange | _PairedChange] = []
    for match in matches:
        known_columns = [
            c for c in score_columns if all(get_number(r, c.name) is not None for r in match.rows)
        ]
        is_baseline = match.rows[0]["decoder"] == "ar"  # whose other numbers are 1 by definition
        of_cell = [c for c in known_columns if c.kind == "score" or not is_baseline]
        for number_column in (
            *map(get_column, [RATE] if is_baseline else _COMPARED_COLUMNS),
            *of_cell,
        ):
            changes.append(_pair_counts(match, number_column, records))
    for start in range(0, len(changes), _AT_ONCE):
        batch = changes[start : start + _AT_ONCE]
        pairs = [
            number_column for number_column in batch if isinstance(number_column, _PairedChange)
        ]
        intervals = iter(
            make_in_groups(
                _compute_change_intervals, pairs, lambda number_column: number_column.statistic
            )
        )
        for change_or_pair in batch:
            change = (
                _make_number_change(change_or_pair, next(intervals), margin)
                if isinstance(change_or_pair, _PairedChange)
                else change_or_pair
            )
            if change.shift is not None or None not in (change.before, change.after):
                yield change


class _PairedChange(NamedTuple):
    """Both sides' counts of a number on the same prompts."""

    change: NumberChange  # without its interval
    statistic: Callable[[Array], Array]  # the number of one side, from its sums
    table: Array  # (counts of the first side, then of the second, seeds, prompts)


def _pair_counts(
    match: MatchedCell,
    column: Column,
    records: RecordReader,
) -> NumberChange | _PairedChange:
    """Pairs a number's counts of both sides; returns an unjudged change if that is not possible."""
    is_speedup = column.name == _SPEEDUP
    name = column.name
    row, row_after = match.rows
    values = get_number(row, name), get_number(row_after, name)
    change = NumberChange(match.name, column, *values, is_relative=column.kind != "score")
    for digest_name, why in _OTHER_PROMPTS.items():
        digests = [row.get(digest_name) for row in match.rows]
        if len({str(digest) for digest in digests if not pd.isna(digest) and digest != ""}) > 1:
            return replace(change, why=why)
    if name == RATE and len({_format_setting(row.get("machine")) for row in match.rows}) > 1:
        return replace(change, why=_OTHER_MACHINE)
    doubt = get_timing_doubt(row) or get_timing_doubt(row_after)
    is_settled = row.get("repeats", 1) >= ENOUGH and "stalled" in doubt
    if doubt and name in (_SPEEDUP, RATE) and not is_settled:
        return replace(change, why=doubt)
    first_counts, second = (
        get_paired_timings(row, baselines, records)
        if is_speedup
        else records.get_counts_by_seed_and_repeat(row, name)
        for row, baselines in zip(match.rows, match.baselines, strict=True)
    )
    if not first_counts or not second:
        return replace(change, why="no records by prompt, or none timed in turn")
    if (table := stack_counts([first_counts, second])) is None:
        return replace(change, why="no seed or prompt in common: run both with one --seed")
    # of a speed-up: tokens, seconds, plain decoding's tokens and seconds
    statistic = RATIOS[4 if is_speedup else 2]
    if not is_speedup and (column.kind == "score" or make_empty_sums(row, name).mapped):
        statistic = partial(compute_metric_from_sums, row=row, name=name)
    return _PairedChange(change, statistic, table.reshape(-1, *table.shape[2:]))


def _compute_change_intervals(pairs: Sequence[_PairedChange]) -> list[Interval | None]:
    """Computes intervals of the sides' log-ratios, or of scores' differences; of one statistic."""
    change, statistic, _ = pairs[0]
    tables = [paired_change.table for paired_change in pairs]
    if change.is_relative:
        return bootstrap_intervals(partial(_compute_log_ratio, statistic), tables)
    ratio_of_pairs = partial(_subtract_first_from_second, statistic)
    return [score_difference_interval(ratio_of_pairs, table.sum(axis=1)) for table in tables]


def _make_number_change(
    paired_change: _PairedChange, interval: Interval | None, margin: float
) -> NumberChange:
    """Completes a change with its interval, p-value and values on both sides."""
    change, statistic, table = paired_change
    if interval is None:
        return replace(change, why="no value")
    margins = {_SPEEDUP: margin, RATE: RATE_MARGIN}
    p = two_sided_p_value(interval, log1p(margins.get(change.column.name, 0.0)))
    shares = interval.map(lambda value: float(np.expm1(value)))
    # Of the prompts that both have; rows of an earlier engine, which show no times, have them too.
    side_width = len(table) // 2
    sums = table.sum(axis=(1, 2))[:, None]
    return replace(
        change,
        before=float(statistic(sums[:side_width])[0]),
        after=float(statistic(sums[side_width:])[0]),
        shift=shares if change.is_relative else interval,
        p_value=p,
        prompts=table.shape[-1],
        why="" if p is not None else TOO_FEW,
        is_identical=bool((table[:side_width] == table[side_width:]).all()),
    )


def _compute_log_ratio(statistic: Callable[[Array], Array], sums: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _subtract_first_from_second(lambda part: np.log(statistic(part)), sums)


def _subtract_first_from_second(statistic: Callable[[Array], Array], sums: Array) -> Array:
    first_sums, second = np.split(sums, 2)
    return statistic(second) - statistic(first_sums)
