"""Matches the cells of two results folders, and tells the change of each number, prompt by prompt.

A speed-up is that over the run's plain decoding, timed in turn with the cell: two machines, or one
machine on two days, differ least in it. Where prompts were measured three times
or more, each counts with the median over its repeats: a stall that hits one of them is no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log1p
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spec_bench.metrics.interval import TOO_FEW, Interval, p_value
from spec_bench.metrics.intervals import score_difference_interval, studentised_interval
from spec_bench.report.data.counts import Counts, Records, value_of_sums
from spec_bench.report.data.rows import Row, groups_of, rows_of
from spec_bench.report.data.seeds import SEEDS
from spec_bench.report.page.gather import read_cells
from spec_bench.system import files
from spec_bench.vocabulary.columns import Column, column, columns_in

_ALWAYS = ("pair", "task", "decoder", "spec")
_SETTINGS = ("identity", "setting")
_NEVER = ("run_id", "seed", "prompts_digest", "engine", SEEDS)
_UNSTATED = "not stated"
Key = tuple[str, ...]
"""The values that identify a cell, in the order of their columns."""


@dataclass(frozen=True)
class Cell:
    """One cell with its baselines."""

    row: Row  # the cell's
    # plain decoding of the same group, of which one may have been timed in turn with it
    bases: tuple[Row, ...]

    @property
    def failed(self) -> bool:
        """Whether it has no numbers."""
        return str(self.row["status"]) == "failed"


@dataclass(frozen=True)
class Side:
    """A results folder."""

    name: str  # as it was given
    rows: pd.DataFrame  # its cells, those that differ in the seed alone as one
    records: Records  # their counts by prompt
    origins: tuple[dict[str, str], ...]  # machines and versions they were measured with


@dataclass(frozen=True)
class Match:
    """The same cell on both sides."""

    name: str  # distinct among the cells, for people
    before: Cell  # the first side's
    after: Cell  # the second side's


@dataclass(frozen=True)
class Matches:
    """The cells on both sides and on one only."""

    both: tuple[Match, ...]  # in the first side's order
    gone: tuple[str, ...]  # names of cells of the first side alone
    new: tuple[str, ...]  # names of cells of the second side alone


@dataclass(frozen=True)
class Differing:
    """A setting or a fact about the machine that is not the same on both sides."""

    name: str  # of the column, for people
    before: str  # its values on the first side
    after: str  # its values on the second side
    cells: int  # in how many cells


def read_side(path: Path) -> Side:
    """A side from a ``results.csv``, the folder that holds one, or a results folder with several.

    Raises:
        ValueError: there are no rows there.
    """
    if path.is_file():
        tables = [path]
    elif (path / files.RESULTS).is_file():
        tables = [path / files.RESULTS]
    else:
        tables = files.results_files(path)
    if not any(path.is_file() and path.stat().st_size for path in tables):
        raise ValueError(f"no {files.RESULTS} in {str(path)!r} or in the folders below it")
    cells = read_cells(tables)
    return Side(str(path), cells.rows, cells.records, tuple(each for each, _ in cells.origins))


def matches(before: Side, after: Side) -> Matches:
    """The cells that both sides have.

    Two cells are the same where they agree in pair, task, decoder and tree, and in as many other
    settings as it takes to tell the cells of each side apart. They may differ in other settings,
    which ``differing`` lists.

    Raises:
        ValueError: no cell is on both sides.
    """
    keys = _keys(before.rows, after.rows)
    first, second = _by_key(before.rows, keys), _by_key(after.rows, keys)
    names = _names([*first, *second], keys)
    both = tuple(
        Match(names[key], cell, second[key]) for key, cell in first.items() if key in second
    )
    if not both:
        one, other = names[next(iter(first))], names[next(iter(second))]
        raise ValueError(
            f"no cell of {before.name!r} is in {after.name!r}; the first ones are "
            f"{one!r} and {other!r}"
        )
    return Matches(
        both,
        tuple(names[key] for key in first if key not in second),
        tuple(names[key] for key in second if key not in first),
    )


def _keys(*sides: pd.DataFrame) -> list[str]:
    """As few columns as distinguish the cells."""
    there = [each.name for each in columns_in(sides[0].columns) if each.kind in _SETTINGS]
    names = [name for name in (*there, "experiment") if all(name in rows for rows in sides)]
    keys = list(_ALWAYS)
    for name in names:
        if name not in (*keys, *_NEVER) and any(_helps(rows, keys, name) for rows in sides):
            keys.append(name)
    return keys


def _helps(rows: pd.DataFrame, keys: Sequence[str], name: str) -> bool:
    return bool(
        (rows.groupby(list(keys), dropna=False)[name].nunique(dropna=False) > 1).any()
        and rows.duplicated(list(keys)).any()
    )


def _by_key(rows: pd.DataFrame, keys: Sequence[str]) -> dict[Key, Cell]:
    """The cells by their keys; of several with one key the last."""
    cells = {}
    for group in groups_of(rows):
        members = rows_of(group.rows)
        bases = tuple(r for r in members if r["decoder"] == "ar" and r["status"] != "failed")
        for row in members:
            cells[tuple(_text(row.get(key)) for key in keys)] = Cell(row, bases)
    return cells


def _names(every: Sequence[Key], keys: Sequence[str]) -> dict[Key, str]:
    """A cell's name for people: decoder, tree, task, pair, and the settings that others lack."""
    shared: dict[Key, list[set[str]]] = {}
    for key in every:
        values = shared.setdefault(key[:4], [set() for _ in keys])
        for seen, value in zip(values, key, strict=True):
            seen.add(value)
    names = {}
    for key in every:
        pair, task, decoder, spec, *_ = key
        rest = zip(keys[4:], key[4:], shared[key[:4]][4:], strict=True)
        more = [f"{name} {value}" for name, value, seen in rest if len(seen) > 1]
        names[key] = ", ".join([f"{decoder} {spec}", task, pair, *more])
    return names


def differing(both: Sequence[Match], before: Side, after: Side) -> list[Differing]:
    """Settings, machines and versions that are not the same, the most cells first."""
    counts: dict[tuple[str, str, str], int] = {}
    for match in both:
        one, other = match.before.row, match.after.row
        for each in columns_in({**one, **other}):
            if each.kind in _SETTINGS and each.name not in ("run_id", *_ALWAYS):
                values = _text(one.get(each.name)), _text(other.get(each.name))
                if values[0] != values[1]:
                    key = (each.title, *values)
                    counts[key] = counts.get(key, 0) + 1
    for fact in dict.fromkeys(name for side in (before, after) for o in side.origins for name in o):
        values = _facts(before, fact), _facts(after, fact)
        if values[0] != values[1] and fact != "day":
            counts.setdefault((fact, *values), len(both))
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [Differing(*key, cells) for key, cells in ordered]


def _facts(side: Side, name: str) -> str:
    values = dict.fromkeys(origin[name] for origin in side.origins if origin.get(name))
    return ", ".join(values) or _UNSTATED


def _text(value: object) -> str:
    """A setting as a text that does not depend on how its file was read."""
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return _UNSTATED
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:g}"


Array = NDArray[np.float64]
Runs = Mapping[str, Counts]
_SPEEDUP, _OTHER_PROMPTS = "speedup", "other prompts"
_TIMES = "token_rate"
_ENOUGH = 3  # repeats whose median leaves out one that stalled


@dataclass(frozen=True)
class Change:
    """One number of one cell on both sides."""

    cell: str  # its name
    column: Column  # the number's
    before: float | None  # on the first side, of the prompts that both have
    after: float | None  # on the second side
    # the change with its interval, a share of `before` where `relative`; None where it is not
    # judged
    shift: Interval | None
    relative: bool  # whether it is a share
    # uncorrected p-value of no change beyond the margin; None where it is not judged
    p: float | None
    prompts: int = 0  # that both sides have
    why: str = ""  # why it is not judged; ""
    identical: bool = False  # whether no prompt differs

    @property
    def worse(self) -> bool:
        """Whether it goes the wrong way."""
        assert self.shift is not None
        return self.shift.value < 0 if self.column.better == "up" else self.shift.value > 0


def changes(match: Match, before: Side, after: Side, margin: float) -> Iterator[Change]:
    """The changes of a cell that both sides have: speed-up, block efficiency, quality; a speed-up
    that changed by ``margin``, a share, is as good as the same.
    """
    if match.before.failed or match.after.failed:
        return
    for each in _columns(match):
        if each.kind != "score" and match.before.row["decoder"] == "ar":
            continue  # 1 by definition
        change = _change(match, each, before.records, after.records, margin)
        if change.shift is not None or None not in (change.before, change.after):
            yield change


def _columns(match: Match) -> Iterator[Column]:
    yield column(_SPEEDUP)
    yield column("block_efficiency")
    for each in columns_in({**match.before.row, **match.after.row}):
        if each.kind in ("likelihood", "score"):
            yield each


def _change(match: Match, each: Column, before: Records, after: Records, margin: float) -> Change:
    """One number's change."""
    timed = each.name == _SPEEDUP
    relative = each.kind != "score"
    name = each.name
    one, other = _number(match.before.row.get(name)), _number(match.after.row.get(name))
    if _digests(match):
        return Change(match.name, each, one, other, None, relative, None, why=_OTHER_PROMPTS)
    sides = ((match.before, before), (match.after, after))
    first, second = (_timed(*s) if timed else s[1].by_seed(s[0].row, name) for s in sides)
    if timed and first and second:
        first, second = _medians(first), _medians(second)
    table, why = _table(first, second)
    if table is None:
        return Change(match.name, each, one, other, None, relative, None, why=why)
    statistic = partial(_speedup if timed else value_of_sums, row=match.before.row, name=name)
    interval = _interval(statistic, table, each)
    if interval is None:
        return Change(match.name, each, one, other, None, relative, None, why="no value")
    p = p_value(interval, log1p(margin) if timed else 0.0)
    shown = interval.mapped(lambda value: float(np.expm1(value))) if relative else interval
    # Of the prompts that both have; rows of an earlier engine, which show no times, have them too.
    half, sums = len(table) // 2, table.sum(axis=(1, 2))[:, None]
    one, other = float(statistic(sums[:half])[0]), float(statistic(sums[half:])[0])
    why, same = "" if p is not None else TOO_FEW, bool((table[:half] == table[half:]).all())
    prompts = table.shape[-1]
    return Change(match.name, each, one, other, shown, relative, p, prompts, why, same)


def _interval(statistic: Callable[..., Array], table: Array, each: Column) -> Interval | None:
    """Of the log-ratio of the sides' numbers, or of scores their difference."""
    half = len(table) // 2

    def ratio(sums: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(statistic(sums[half:])) - np.log(statistic(sums[:half]))

    def difference(sums: Array) -> Array:
        return statistic(sums[half:]) - statistic(sums[:half])

    if each.kind == "score":
        return score_difference_interval(difference, table.sum(axis=1))
    return studentised_interval(ratio, table)


def _speedup(sums: Array, **_: object) -> Array:
    """sums [4, batch]: tokens, seconds, plain decoding's tokens and seconds."""
    return (sums[0] / sums[1]) / (sums[2] / sums[3])


def _digests(match: Match) -> bool:
    """Whether the sides' digests show that their prompts differ."""
    digests = [cell.row.get("prompts_digest") for cell in (match.before, match.after)]
    known = [str(each) for each in digests if not (each is None or pd.isna(each) or each == "")]
    return len(set(known)) > 1


def _timed(cell: Cell, records: Records) -> Runs | None:
    """By seed and prompt: tokens and seconds, then those of the baseline timed in turn."""
    for base in cell.bases:
        ours, theirs = records.interleaved([cell.row, base], _TIMES) or ({}, {})
        timed = {
            seed: {prompt: (*counts, *theirs[seed][prompt]) for prompt, counts in run.items()}
            for seed, run in ours.items()
        }
        if any(timed.values()):
            return timed
    return None


def _medians(runs: Runs) -> Runs:
    """Runs of ``_timed`` with the repeats of a seed as one, where there are enough of them."""
    by_seed: dict[str, list[Counts]] = {}
    for name, run in runs.items():
        by_seed.setdefault(name.split("/")[0], []).append(run)
    if min(map(len, by_seed.values())) < _ENOUGH:
        return runs
    return {seed: _median(repeats) for seed, repeats in by_seed.items()}


def _median(repeats: Sequence[Counts]) -> Counts:
    """Of each prompt that all have: seconds in the median ratio to plain decoding's, by repeat.

    A repeat's two timings were taken in turn, so the machine's load moves their ratio least.
    """
    medians: Counts = {}
    for prompt in repeats[0]:
        if all(prompt in each for each in repeats):
            tokens, seconds, plain_tokens, plain_s = np.array([each[prompt] for each in repeats]).T
            typical_s = float(np.median(plain_s))
            cell_s = typical_s * float(np.median(seconds / plain_s))
            medians[prompt] = float(tokens[0]), cell_s, float(plain_tokens[0]), typical_s
    return medians


def _table(first: Runs | None, second: Runs | None) -> tuple[Array | None, str]:
    """[counts of both sides, seeds, prompts] of their common prompts; else why there is none."""
    if not first or not second:
        return None, "no records by prompt, or none timed in turn"
    seeds = [seed for seed in first if seed in second]
    runs = [side[seed] for side in (first, second) for seed in seeds]
    common = [name for name in runs[0] if all(name in run for run in runs)] if runs else []
    if not common:
        return None, "no seed or prompt in common"
    width = len(runs[0][common[0]])
    columns = [
        [[side[seed][prompt][end] for prompt in common] for seed in seeds]
        for side in (first, second)
        for end in range(width)
    ]
    return np.array(columns, dtype=np.float64), ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not pd.isna(value) else None
