"""Pools cells that differ only in the seed: a table shows them in one row, with the spread over
seeds.

With records by prompt, a ratio of sums is over all seeds and prompts, and its interval is the
studentised bootstrap with prompts as blocks. The tokens of a call depend only on prompt and seed,
so that seeds count as further calls of a prompt. Times also depend on the seed's job, so that seeds
count as repeats; the ends of a speed-up are clipped to the outermost ends of the seeds. Without
records, and for scores, which are no such ratios, the value is the mean over seeds, and its ends
are the means of the seeds' ends, as wide as for one seed; for times they are the outermost ends.
Counts, seconds and bytes are averaged. Seeds are pooled within a results file, because its cells
were measured side by side.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spec_bench.metrics import metric
from spec_bench.metrics.interval import Interval, clip_or_drop_wide_ends
from spec_bench.metrics.intervals import (
    RATIOS,
    interval_where_few_differ,
    ratio_intervals,
    widen_to_tau_width,
)
from spec_bench.metrics.metric import MEASURED_ANEW, clip_and_map_interval
from spec_bench.records.types import explain_timing_doubt
from spec_bench.report.data.counts import RecordReader, Table, make_empty_sums
from spec_bench.report.data.rows import (
    Row,
    defragment_rows,
    list_cell_key_columns,
    select_must_match_columns,
    to_rows,
)
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS, Column, get_columns

SEEDS = "seeds"
POOLED = (
    "Seeds are pooled: over seeds and prompts, prompts as blocks, where records by prompt are "
    "there; else the means over seeds, of times with the outermost ends of the seeds."
)
_PLACE = ("file", "experiment")
_ENDS = ("", *ENDS)
_DISAGREEMENT = "they differ by more than their prompts explain"
_AT_ONCE = 64  # number of rows for which intervals are computed together
_Place = tuple[Any, ...]


def pool_seeds(rows: pd.DataFrame, records: RecordReader | None = None) -> pd.DataFrame:
    """Pools cells that differ only in the seed into one row each, with the records of their prompts
    (None: the records beside each row's ``file``). Returns the same rows if no cells can be pooled.

    A pooled row names all of its seeds in ``seeds`` and all of its runs in ``run_id``, separated by
    commas; its ``seed`` is the lowest. A seed whose cell failed is left out and named in
    ``reason``.
    """
    if rows.empty or "seed" not in rows or SEEDS in rows:
        return rows
    keys = [*list_cell_key_columns(rows), *(name for name in _PLACE if name in rows)]
    parts = rows.groupby(keys, sort=False, dropna=False).indices.values()
    seeds = rows.seed.tolist()
    seed_groups = [part for part in parts if len(part) == len({seeds[n] for n in part}) > 1]
    if not seed_groups:
        return rows
    records = records or RecordReader(Path(files.RESULTS))
    places = _list_baseline_key_by_row(rows)
    run_columns = ("run_id", "seed", "file", "batch_size", "device")  # the last two tell clocks
    runs = to_rows(rows[[name for name in run_columns if name in rows]])
    baseline_places = (place for place, decoder in enumerate(rows.decoder) if decoder == "ar")
    baselines = {places[place]: runs[place] for place in baseline_places}
    names = list(rows.columns)
    pooled_rows = []
    known_columns = get_columns(names)
    values = rows.astype(object).where(rows.notna(), None).to_numpy()
    for start in range(0, len(seed_groups), _AT_ONCE):
        pools = []
        for part in seed_groups[start : start + _AT_ONCE]:
            cells = dict(zip(names, values[part].T.tolist(), strict=True))
            pairs = [(runs[place], baselines.get(places[place])) for place in part]
            pools.append(_make_pool(cells, pairs, known_columns, records))
        pooled_rows += _add_intervals(pools, known_columns)
    replaced = rows.index[[place for part in seed_groups for place in part]]
    table = pd.DataFrame(pooled_rows, index=rows.index[[part[0] for part in seed_groups]]).fillna(
        np.nan
    )
    if len(unpooled_rows := rows.drop(replaced)):
        table = pd.concat([unpooled_rows.assign(**{SEEDS: unpooled_rows.seed.map(str)}), table])
    order = [index for index in rows.index if index in table.index]
    return defragment_rows(table.loc[order].infer_objects())


def format_seed_list(row: Row | pd.Series) -> str:
    """Formats the seeds of a row: ``seed 0``, ``seeds 0, 1``."""
    seeds = str(row.get(SEEDS, row["seed"])).split(",")
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def _list_baseline_key_by_row(rows: pd.DataFrame) -> list[_Place]:
    """Lists a key for each row that it shares with its baseline: file, settings and seed."""
    names = (*(column.name for column in select_must_match_columns(rows)), *_PLACE, "seed")
    settings = rows[[name for name in names if name in rows]]
    return [*settings.astype(object).where(settings.notna(), "").itertuples(index=False, name=None)]


class _SeedPool(NamedTuple):
    """Cells of one decoder that differ only in the seed."""

    row: dict[str, Any]  # the pooled row, at first with the intervals of the first cell
    cells: Mapping[str, Sequence[Any]]  # column -> the cells' values
    tables: Mapping[str, Table]  # column -> counts of its ratio, (2 or 4, seeds, prompts)


def _make_pool(
    all_cells: Mapping[str, Sequence[Any]],
    runs: Sequence[tuple[Row, Row | None]],
    columns: Sequence[Column],
    records: RecordReader,
) -> _SeedPool:
    places_by_seed = sorted(range(len(runs)), key=all_cells["seed"].__getitem__)
    sound_places = [
        place for place in places_by_seed if all_cells["status"][place] != "failed"
    ] or places_by_seed[:1]
    cells = all_cells
    if sound_places != [*range(len(runs))]:
        cells = {
            name: [values[place] for place in sound_places] for name, values in all_cells.items()
        }
    row: dict[str, Any] = {name: values[0] for name, values in cells.items()}
    row[SEEDS] = ",".join(f"{seed:g}" for seed in cells["seed"])
    row["run_id"] = ",".join(map(str, cells["run_id"]))
    row["reason"] = max(
        cells.get("reason", [""]), key=lambda text: len(explain_timing_doubt(str(text)))
    )
    if failed_seeds := [
        f"{all_cells['seed'][place]:g}" for place in places_by_seed if place not in sound_places
    ]:
        failure = f"seed: {', '.join(failed_seeds)} failed and left out"
        row["reason"] = f"{row['reason']}; {failure}" if row.get("reason") else failure
    if len(sound_places) < 2:
        return _SeedPool(row, cells, {})
    if "partial" in cells["status"]:
        row["status"] = "partial"
    separate = ("seed", "run_id", "reason", "status")
    for name in (c.name for c in columns if not c.interval and c.name not in separate):
        values = cells[name]
        if values.count(values[0]) < len(values):
            numbers = all(isinstance(value, int | float) for value in values)
            row[name] = float(np.mean(values)) if numbers else None
    cell_runs, baseline_runs = zip(*(runs[place] for place in sound_places), strict=True)
    count_tables = records.make_table_getter([_join_seeds_and_run_ids(cell_runs)], sum_seeds=True)
    tables = dict[str, Table]()
    for column in (c for c in columns if c.interval and None not in cells[c.name]):
        name = column.name
        if name == "speedup" and None not in baseline_runs:  # with baselines timed in turn
            table = records.make_table_getter(
                [_join_seeds_and_run_ids(cell_runs), _join_seeds_and_run_ids(baseline_runs)],
                sum_seeds=True,
            )("token_rate")
        else:
            table = count_tables(name) if name in metric and name != "speedup" else None
        if table is not None:
            table = table[:, :2].reshape(-1, *table.shape[2:])
            is_new = column.kind in MEASURED_ANEW
            tables[name] = table if is_new else table.sum(axis=1, keepdims=True)
    return _SeedPool(row, cells, tables)


def _join_seeds_and_run_ids(runs: Sequence[Row]) -> Row:
    """Joins several runs' seeds and ids in the first run's row, for ``RecordReader``."""
    seeds, run_ids = (",".join(str(row[name]) for row in runs) for name in ("seed", "run_id"))
    return {**runs[0], SEEDS: seeds, "run_id": run_ids}


def _add_intervals(pools: Sequence[_SeedPool], columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Adds intervals to the pooled rows, computed together, and returns the rows."""
    interval_columns = [c for c in columns if c.interval]
    places = [(place, name) for place, pool in enumerate(pools) for name in pool.tables]
    intervals = ratio_intervals([pools[place].tables[name] for place, name in places])
    by_place = dict(zip(places, intervals, strict=True))
    for place, (row, cells, tables) in enumerate(pools):
        if len(cells["seed"]) < 2:
            continue
        first_values = {name: values[0] for name, values in cells.items()}
        if prompts := min(int(count or 0) for count in cells.get("prompts", (0,))):
            row["prompts"] = prompts
        tau = None
        for column in interval_columns:
            name = column.name
            if None in cells[name]:
                row |= dict.fromkeys(f"{name}{end}" for end in _ENDS)
                continue
            seed_interval = _average_over_seeds(cells, name, column.kind in MEASURED_ANEW)
            if interval := by_place.get((place, name)):
                sums = make_empty_sums(first_values, name)
                rare = interval_where_few_differ(RATIOS[2], tables[name], sums.largest_difference)
                interval = clip_and_map_interval(sums, rare or interval)
                tau = interval if name == "block_efficiency" else tau
                interval = widen_to_tau_width(interval, tau, name)
                interval = (
                    interval.clip(*seed_interval.ends)
                    if name == "speedup" and seed_interval.ends
                    else interval
                )
            interval = clip_or_drop_wide_ends(name, interval or seed_interval)
            if name == "speedup" and interval.between_seeds_share > 0.5:
                row["reason"] = f"{row.get('reason') or ''}; {SEEDS}: {_DISAGREEMENT}".removeprefix(
                    "; "
                )
            numbers = (interval.value, interval.low, interval.high)
            row |= zip((f"{name}{end}" for end in _ENDS), numbers, strict=True)
    return [pool.row for pool in pools]


def _average_over_seeds(
    cells: Mapping[str, Sequence[Any]], column: str, outermost: bool
) -> Interval:
    """Averages a column over seeds; its ends are the means of the seeds' ends, or the outermost
    ends. It has no ends if a seed has none.
    """
    value = fmean(cells[column])
    lows, highs = (cells.get(f"{column}{end}", (None,)) for end in ENDS)
    if None in (*lows, *highs):
        return Interval(value)
    return Interval(value, *((min(lows), max(highs)) if outermost else map(fmean, (lows, highs))))
