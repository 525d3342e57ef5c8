"""Pools cells that differ in their seed alone: a table shows one row, with the spread over seeds.

Where the records by prompt are there, every ratio of sums is that over all seeds and prompts, and
its interval is the studentised bootstrap with prompts as blocks and seeds as repeats. Without
records, and for scores, which are no such ratios, it is the mean over seeds (``mean_of_seeds``).
Counts, seconds and bytes are averaged. Seeds are pooled within one results file, whose cells were
measured side by side.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spec_bench.metrics import metric
from spec_bench.metrics.interval import FEWEST, Interval, limit_to_column
from spec_bench.metrics.intervals import ratio_intervals, student_t
from spec_bench.records.types import find_doubt
from spec_bench.report.data.counts import RecordReader, Table, get_mapping
from spec_bench.report.data.rows import (
    Row,
    cell_keys,
    compact,
    max_tokens_per_call,
    run_columns,
    to_rows,
)
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS, Column, find_columns

SEEDS = "seeds"
POOLED = (
    "Seeds are pooled: over seeds and prompts, prompts as blocks, where records by prompt are "
    "there; else the mean over seeds, its variance that over prompts plus that of the seeds' mean."
)
_PLACE = ("file", "experiment")
_ENDS = ("", *ENDS)
_AT_ONCE = 64  # rows whose intervals are made together
_Place = tuple[Any, ...]


def pool_seeds(rows: pd.DataFrame, records: RecordReader | None = None) -> pd.DataFrame:
    """Returns measured cells, those that differ in the seed alone as one, with records of their
    prompts (None: those beside each row's ``file``); the same rows where there are none such.

    A pooled row names all of its seeds in ``seeds`` and all of its runs in ``run_id``, separated by
    commas; its ``seed`` is the lowest. A seed whose cell failed is left out and named in
    ``reason``.
    """
    if rows.empty or "seed" not in rows or SEEDS in rows:
        return rows
    keys = [*cell_keys(rows), *(name for name in _PLACE if name in rows)]
    parts = rows.groupby(keys, sort=False, dropna=False).indices.values()
    seeds = rows.seed.tolist()
    several = [part for part in parts if len(part) == len({seeds[n] for n in part}) > 1]
    if not several:
        return rows
    records = records or RecordReader(Path(files.RESULTS))
    at = _places(rows)
    runs = to_rows(rows[[name for name in ("run_id", "seed", "file") if name in rows]])
    ours = (place for place, decoder in enumerate(rows.decoder) if decoder == "ar")
    baselines = {at[place]: runs[place] for place in ours}
    names = list(rows.columns)
    made = []
    known = find_columns(names)
    values = rows.astype(object).where(rows.notna(), None).to_numpy()
    for start in range(0, len(several), _AT_ONCE):
        pools = []
        for part in several[start : start + _AT_ONCE]:
            cells = dict(zip(names, values[part].T.tolist(), strict=True))
            pairs = [(runs[place], baselines.get(at[place])) for place in part]
            pools.append(_pool(cells, pairs, known, records))
        made += _add_intervals(pools, known)
    taken = rows.index[[place for part in several for place in part]]
    whole = pd.DataFrame(made, index=rows.index[[part[0] for part in several]]).fillna(np.nan)
    if len(alone := rows.drop(taken)):
        whole = pd.concat([alone.assign(**{SEEDS: alone.seed.map(str)}), whole])
    kept = [index for index in rows.index if index in whole.index]
    return compact(whole.loc[kept].infer_objects())


def seeds_text(row: Row | pd.Series) -> str:
    """Returns the seeds behind a row: ``seed 0``, ``seeds 0, 1``."""
    seeds = str(row.get(SEEDS, row["seed"])).split(",")
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def mean_of_seeds(cells: Sequence[Interval], prompts: int) -> Interval:
    """Returns the mean over seeds, with an interval that combines those of the seeds.

    With k seeds of values v on the same n prompts the variance of the mean is e^2 + b: e, the mean
    of the seeds' standard errors over prompts (half widths / t(n - 1)), since all seeds share their
    prompts and nothing is gained by their number; b = var(v) / k, the spread over seeds. The ends
    are mean - t(f) sqrt(e_low^2 + b) and mean + t(f) sqrt(e_high^2 + b), each end with its own
    half widths, where f = (e^2 + b)^2 / (b^2 / (k - 1) + e^4 / (n - 1)) (Satterthwaite, Biometrics
    Bulletin 2, 1946). No ends where some seed has none. ``cells`` are the number of each seed, at
    least two, with intervals over so many prompts.
    """
    mean = fmean(cell.value for cell in cells)
    count = len(cells)
    below = [cell.value - cell.low for cell in cells if cell.low is not None]
    above = [cell.high - cell.value for cell in cells if cell.high is not None]
    if prompts < FEWEST or min(len(below), len(above)) < count:
        return Interval(mean)
    quantile = student_t(prompts - 1)
    low = fmean(below) / quantile
    high = fmean(above) / quantile
    between = variance(cell.value for cell in cells) / count
    error = (low + high) / 2
    whole = between + error**2
    if whole == 0:
        return Interval(mean, mean, mean)
    freedom = whole**2 / (between**2 / (count - 1) + error**4 / (prompts - 1))
    reach = student_t(freedom)
    below_mean, above_mean = (reach * sqrt(end**2 + between) for end in (low, high))
    return Interval(mean, mean - below_mean, mean + above_mean)


def _places(rows: pd.DataFrame) -> list[_Place]:
    """Returns where each cell's baseline is: in its file, with its settings and seed."""
    names = (*(each.name for each in run_columns(rows)), *_PLACE, "seed")
    told = rows[[name for name in names if name in rows]]
    return [*told.astype(object).where(told.notna(), "").itertuples(index=False, name=None)]


class _Pool(NamedTuple):
    """The cells of one decoder and several seeds."""

    row: dict[str, Any]  # that they become, as yet with the first cell's intervals
    cells: Mapping[str, Sequence[Any]]  # the values of each column
    tables: Mapping[str, Table]  # (columns, seeds, prompts) behind the ratios that records have


def _pool(
    whole: Mapping[str, Sequence[Any]],
    runs: Sequence[tuple[Row, Row | None]],
    columns: Sequence[Column],
    records: RecordReader,
) -> _Pool:
    order = sorted(range(len(runs)), key=whole["seed"].__getitem__)
    kept = [each for each in order if whole["status"][each] != "failed"] or order[:1]
    cells = whole
    if kept != [*range(len(runs))]:
        cells = {name: [values[each] for each in kept] for name, values in whole.items()}
    row: dict[str, Any] = {name: values[0] for name, values in cells.items()}
    row[SEEDS] = ",".join(f"{seed:g}" for seed in cells["seed"])
    row["run_id"] = ",".join(map(str, cells["run_id"]))
    row["reason"] = max(cells.get("reason", [""]), key=lambda text: len(find_doubt(str(text))))
    if lost := [f"{whole['seed'][each]:g}" for each in order if each not in kept]:
        failed = f"seed: {', '.join(lost)} failed and left out"
        row["reason"] = f"{row['reason']}; {failed}" if row.get("reason") else failed
    if len(kept) < 2:
        return _Pool(row, cells, {})
    if "partial" in cells["status"]:
        row["status"] = "partial"
    own = ("seed", "run_id", "reason", "status")
    for name in (c.name for c in columns if not c.interval and c.name not in own):
        values = cells[name]
        if values.count(values[0]) < len(values):
            numbers = all(isinstance(value, int | float) for value in values)
            row[name] = float(np.mean(values)) if numbers else None
    ours, theirs = zip(*(runs[each] for each in kept), strict=True)
    of = records.tables([_merge_rows(ours)], whole=True)
    tables = dict[str, Table]()
    for name in (c.name for c in columns if c.interval and None not in cells[c.name]):
        if name == "speedup" and None not in theirs:  # over baselines timed in turn
            table = records.tables([_merge_rows(ours), _merge_rows(theirs)], whole=True)(
                "token_rate"
            )
        else:
            table = of(name) if name in metric and name != "speedup" else None
        if table is not None:
            tables[name] = table[:, :2].reshape(-1, *table.shape[2:])
    return _Pool(row, cells, tables)


def _merge_rows(runs: Sequence[Row]) -> Row:
    """Returns what ``RecordReader`` needs of the row that several runs become."""
    seeds, run_ids = (",".join(str(run[name]) for run in runs) for name in ("seed", "run_id"))
    return {**runs[0], SEEDS: seeds, "run_id": run_ids}


def _add_intervals(pools: Sequence[_Pool], columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Returns the rows with their intervals, which are made together."""
    wanted = [c.name for c in columns if c.interval]
    places = [(place, name) for place, pool in enumerate(pools) for name in pool.tables]
    made = ratio_intervals([pools[place].tables[name] for place, name in places])
    recorded = dict(zip(places, made, strict=True))
    for place, (row, cells, _) in enumerate(pools):
        if len(cells["seed"]) < 2:
            continue
        first = {name: values[0] for name, values in cells.items()}
        if prompts := min(int(each or 0) for each in cells.get("prompts", (0,))):
            row["prompts"] = prompts
        for name in wanted:
            found = recorded.get((place, name))
            if found and (mapped := get_mapping(first, name)):
                found = found.mapped(mapped)
            elif None not in cells[name] and not found:
                none = [None] * len(cells["seed"])
                ends = (cells.get(f"{name}{end}", none) for end in ENDS)
                found = mean_of_seeds([*map(Interval, cells[name], *ends)], prompts)
            if found:
                found = limit_to_column(
                    name, found, max_tokens_per_call(row) if name == "block_efficiency" else None
                )
            told = (found.value, found.low, found.high) if found else (None, None, None)
            row |= zip((f"{name}{end}" for end in _ENDS), told, strict=True)
    return [pool.row for pool in pools]
