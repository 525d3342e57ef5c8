"""Pools cells that differ in their seed alone: a table shows one row, with the spread over seeds.

Where the records by prompt are there, every ratio of sums is that over all seeds and prompts, and
its interval is the studentised bootstrap with prompts as blocks and seeds as repeats. Without
records, and for scores, which are no such ratios, it is the mean over seeds (``mean_of_seeds``).
Counts, seconds and bytes are averaged. Seeds are pooled within one results file, whose cells were
measured side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import numpy as np
import pandas as pd

from spec_bench.metrics import metric
from spec_bench.metrics.interval import FEWEST, Interval, limited
from spec_bench.metrics.intervals import rate_ratio_interval, ratio_interval
from spec_bench.report.data.counts import Counts, Records, arrays, summed, value_of
from spec_bench.report.data.rows import Row, apart_in, cell_keys, interval_in, most_of, rows_of
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS, columns_in

SEEDS = "seeds"
POOLED = (
    "Seeds are pooled: over seeds and prompts, prompts as blocks, where records by prompt are "
    "there; else the mean over seeds, its variance that over prompts plus that of the seeds' mean."
)
_PLACE = ("file", "experiment")
_Place = tuple[Any, ...]


def pooled(rows: pd.DataFrame, records: Records | None = None) -> pd.DataFrame:
    """Returns measured cells, those that differ in the seed alone as one, with records of their
    prompts (None: those beside each row's ``file``); the same rows where there are none such.

    A pooled row names all of its seeds in ``seeds`` and all of its runs in ``run_id``, separated by
    commas; its ``seed`` is the lowest. A seed whose cell failed is left out and named in
    ``reason``.
    """
    if rows.empty or "seed" not in rows or SEEDS in rows:
        return rows
    keys = [*cell_keys(rows), *(name for name in _PLACE if name in rows)]
    # Numbers and not frames of the groups: most are one row, and a frame costs a millisecond.
    places: dict[int, list[int]] = {}
    for place, group in enumerate(rows.groupby(keys, sort=False, dropna=False).ngroup()):
        places.setdefault(group, []).append(place)
    several = [part for part in places.values() if len(part) > 1 and rows.seed.iloc[part].is_unique]
    if not several:
        return rows
    records = records or Records(Path(files.RESULTS))
    baselines = {_place(row): row for row in rows_of(rows[rows.decoder == "ar"])}
    taken = {place for part in several for place in part}
    indexed = zip(rows.index, rows_of(rows), strict=True)
    lines: dict[Any, dict[str, Any]] = {
        index: {**row, SEEDS: str(row["seed"])}
        for place, (index, row) in enumerate(indexed)
        if place not in taken
    }
    for part in several:
        lines[rows.index[part[0]]] = _pool(rows.iloc[part], records, baselines)
    order = [index for index in rows.index if index in lines]
    return pd.DataFrame([lines[index] for index in order], index=order).infer_objects()


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
    from scipy.special import stdtrit

    mean, count = fmean(cell.value for cell in cells), len(cells)
    below = [cell.value - cell.low for cell in cells if cell.low is not None]
    above = [cell.high - cell.value for cell in cells if cell.high is not None]
    if prompts < FEWEST or min(len(below), len(above)) < count:
        return Interval(mean)
    quantile = float(stdtrit(prompts - 1, 0.975))
    low, high = fmean(below) / quantile, fmean(above) / quantile
    between, error = variance(cell.value for cell in cells) / count, (low + high) / 2
    whole = between + error**2
    if whole == 0:
        return Interval(mean, mean, mean)
    freedom = whole**2 / (between**2 / (count - 1) + error**4 / (prompts - 1))
    reach = float(stdtrit(freedom, 0.975))
    below_mean, above_mean = (reach * sqrt(end**2 + between) for end in (low, high))
    return Interval(mean, mean - below_mean, mean + above_mean)


def _place(row: Row) -> _Place:
    """Returns where a cell's baseline is: in its file, with its settings and seed."""
    values = (row.get(name) for name in (*(c.name for c in apart_in(row)), *_PLACE, "seed"))
    return tuple("" if value is None or pd.isna(value) else value for value in values)


def _pool(part: pd.DataFrame, records: Records, baselines: Mapping[_Place, Row]) -> dict[str, Any]:
    """Returns the cells of one decoder and several seeds as one row."""
    whole = part.sort_values("seed")
    good = whole[whole.status != "failed"]
    kept = good if not good.empty else whole.iloc[:1]
    cells = rows_of(kept)
    row: dict[str, Any] = {**cells[0]}
    row[SEEDS] = ",".join(f"{each:g}" for each in kept.seed)
    row["run_id"] = ",".join(kept.run_id.astype(str))
    lost = [f"{each:g}" for each in whole.seed if each not in set(kept.seed)]
    if lost:
        failed = f"seed: {', '.join(lost)} failed and left out"
        reason = "" if pd.isna(row.get("reason")) else str(row["reason"])
        row["reason"] = f"{reason}; {failed}" if reason else failed
    if len(cells) < 2:
        return row
    if (kept.status == "partial").any():
        row["status"] = "partial"
    known_columns, own = columns_in(kept.columns), ("seed", "run_id", "reason", "status")
    for name in (name for each in known_columns for name in each.names if name in cells[0]):
        if (
            name not in own
            and len({None if pd.isna(cell[name]) else cell[name] for cell in cells}) > 1
        ):
            numbers = pd.api.types.is_numeric_dtype(kept[name]) and kept[name].notna().all()
            row[name] = kept[name].mean() if numbers else None
    prompts = int(kept.prompts.min()) if "prompts" in kept and kept.prompts.notna().all() else 0
    if prompts:
        row["prompts"] = prompts
    for name in (each.name for each in known_columns if each.interval):
        known = [interval for cell in cells if (interval := interval_in(cell, name))]
        found = None
        if len(known) == len(cells):
            found = _recorded(name, cells, records, baselines) or mean_of_seeds(known, prompts)
            found = limited(name, found, most_of(cells[0]) if name == "block_efficiency" else None)
        ends = (found.value, found.low, found.high) if found else (None, None, None)
        for end, number in zip(("", *ENDS), ends, strict=True):
            row[f"{name}{end}"] = float("nan") if number is None else number
    return row


def _recorded(
    name: str, rows: Sequence[Row], records: Records, baselines: Mapping[_Place, Row]
) -> Interval | None:
    """Returns a ratio of sums over seeds and prompts; None where some cell has no records of it.

    None of a score, too: its ratio has no logarithm to work on. A speed-up is that over the
    baselines that were timed in turn with the cells.
    """
    if name not in metric:
        return None
    if name != "speedup":
        sums = _sums([records.counts(row, name) for row in rows])
        interval = None if sums is None else ratio_interval(*sums)
        return interval and interval.mapped(
            lambda ratio: float(value_of(np.array([ratio]), rows[0], name)[0])
        )
    pairs: list[list[Counts | None]] = []
    for row in rows:
        base = baselines.get(_place(row))
        both = None if base is None else records.interleaved([row, base], "token_rate")
        pairs.append([summed(list(each.values())) for each in both] if both else [None, None])
    sums = _sums([each[side] for side in (0, 1) for each in pairs])
    if sums is None:
        return None
    (ours, theirs), (seconds, their_seconds) = (np.split(part, 2) for part in sums)
    return rate_ratio_interval(ours, seconds, theirs, their_seconds)


def _sums(cells: Sequence[Counts | None]) -> tuple[np.ndarray, np.ndarray] | None:
    """[cells, prompts] numerators and denominators of the prompts that all cells have."""
    known = [cell for cell in cells if cell is not None]
    if len(known) < len(cells) or not known:
        return None
    common = [prompt for prompt in known[0] if all(prompt in cell for cell in known)]
    return arrays(known, common) if common else None
