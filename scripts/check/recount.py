"""Makes the intervals of finished tables anew from their records, and splits off screening.

    python scripts/check/recount.py results/embedded results/quickstart

For tables that an earlier version wrote: values stay as they are and are checked against the
records, the ends of intervals become those of today's definitions. Rows without records lose the
ends of fewer than five prompts. Doing it twice changes nothing.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.interval import FEWEST, TOO_FEW, Interval, limit_to_column
from spec_bench.metrics.intervals import mean_interval, score_interval
from spec_bench.metrics.quality import score_of_sums
from spec_bench.records import parquet
from spec_bench.records.types import Generation
from spec_bench.report.data.counts import read_packed, read_repeats
from spec_bench.sinks.rows import merge_csv, read_rows, write_csv
from spec_bench.system import files
from spec_bench.vocabulary import columns

Row = dict[str, Any]


def recount(path: Path) -> int:
    """One table; how many rows changed.

    Raises:
        ValueError: a value is not that of the records.
    """
    rows = [dict(row) for row in read_rows(path)]
    baselines = {_place(row): row for row in rows if row["decoder"] == "ar"}
    changed = 0
    for row in rows:
        before = dict(row)
        if row["status"] != "failed":
            _recount(path, row, baselines.get(_place(row)))
        changed += row != before
    write_csv(path, rows)
    merge_csv(path, ())  # moves what was screened to its own file
    kept = [str(row["run_id"]) for row in rows if row.get("stage") != "screen"]
    records = files.records_file(path)
    if records.is_file() and len(kept) < len(rows):
        whole = parquet.read(records)
        parquet.write(records, whole.of(kept))
    return changed


def _recount(path: Path, row: Row, baseline: Row | None) -> None:
    """New ends for one row."""
    repeats = read_repeats(path, row["run_id"])
    few = int(float(row.get("prompts") or 0)) < FEWEST
    if few:
        for each in columns.find_columns(row):
            row.update(dict.fromkeys(each.names[1:], ""))
        reasons = [part for part in row.get("reason", "").split("; ") if part]
        if not any(part.startswith("intervals: ") for part in reasons):
            row["reason"] = "; ".join([*reasons, f"intervals: {TOO_FEW}"])
    if few or not repeats:
        return
    again = [_same(repeats[0], each) for each in repeats[1:]]
    plain = _baseline(path, repeats, baseline) if row.get("baseline") == "same job" else None
    cell = CellRecords(
        tuple(repeats[0].values()),
        baseline=plain[0] if plain else None,
        again=again,
        baseline_again=plain[1:] if plain else (),
        draft_calls=int(float(row["draft_calls"])) if row.get("draft_calls") else None,
        parameter_ratio=float(row["parameter_ratio"]) if row.get("parameter_ratio") else None,
    )
    found = summarise(cell).row
    for name, values in read_packed(path, row["run_id"]).scores(row["run_id"]).items():
        own = list(values.values())
        interval = limit_to_column(name, _of_scores(name, own))
        found |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    for each in columns.find_columns(row):
        value = found.get(each.name)
        if not each.interval or not row.get(each.name) or not isinstance(value, float | int):
            continue
        if not isclose(value, float(row[each.name]), rel_tol=1e-6, abs_tol=1e-9):
            where = f"{path}: {row['run_id']}, {each.name}"
            print(f"{where}: {row[each.name]} is {value} by its records", file=sys.stderr)
            continue
        for name in each.names[1:]:
            row[name] = "" if found.get(name) is None else repr(float(found[name]))


def _of_scores(name: str, own: Sequence[Any]) -> Interval:
    if isinstance(own[0], int | float):
        return mean_interval(own)
    made = score_of_sums(name, len(own[0]))
    if made is None:
        return mean_interval([each[0] for each in own], [each[1] for each in own])
    found = score_interval(made, np.asarray(own, dtype=np.float64).T)
    assert found is not None, "a score that was measured has a value"
    return found


def _baseline(
    path: Path, repeats: Sequence[Mapping[str, Generation]], baseline: Row | None
) -> list[tuple[Generation, ...]] | None:
    """Plain decoding's records of the same sittings, repeat by repeat."""
    if baseline is None:
        return None
    own = read_repeats(path, baseline["run_id"])
    timed = {
        (each.repeat, each.prompt_id, each.sitting): each
        for each in (
            *(each for repeat in own for each in repeat.values()),
            *read_packed(path, baseline["run_id"]).generations(f"{baseline['run_id']}/again"),
        )
    }
    found = []
    for number, repeat in enumerate(repeats):
        keys = [(number, name, each.sitting) for name, each in repeat.items()]
        if not all(key in timed for key in keys):
            return found or None
        found.append(tuple(timed[key] for key in keys))
    return found


def _same(first: Mapping[str, Generation], other: Mapping[str, Generation]) -> list[Generation]:
    return [other[name] for name in first]


def _place(row: Row) -> tuple[str, ...]:
    return tuple(
        row.get(name, "") for name in (*(c.name for c in columns.run_columns(row)), "seed")
    )


def main() -> None:
    """Recounts all tables below the folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args().folders:
        own = folder / files.RESULTS
        for path in [own] if own.is_file() else files.results_files(folder):
            print(f"{path}: {recount(path)} rows changed", flush=True)


if __name__ == "__main__":
    main()
