"""Computes the numbers of tables again from the records beside them, and says which differ.

    python scripts/check/recount.py results            # every results.csv below: some two minutes
    python scripts/check/recount.py results --write    # puts today's intervals in

A table's intervals are those of the code that wrote it. ``--write`` replaces the ends of intervals
where the number itself is the same, and the reasons of ends that are empty; a number that differs
is printed, left as it is, and makes the exit status 1. Scores need texts and are left out.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.jobs.job.session import index_timings, select_paired_timings
from spec_bench.metrics import CellRecords, metric, summarise
from spec_bench.records import parquet
from spec_bench.records.parquet import RETIMED_SUFFIX, PackedRecords
from spec_bench.records.types import Generation, Reason, format_reasons, parse_reasons
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS

# Columns that a cell and the plain decoding that its speed-up divides by have in common.
_SHARED = (
    *("pair", "task", "seed", "temperature", "top_k", "top_p", "batch_size", "max_new_tokens"),
    *("dtype", "device", "threads", "attention", "compile", "stage", "prompts_digest", "engine"),
)
_is_close = partial(isclose, rel_tol=1e-9, abs_tol=1e-12)
TextRow = dict[str, str]


@dataclass(frozen=True)
class RecountedTable:
    """A table's rows as their records make them today."""

    path: Path
    rows: list[TextRow]  # with today's ends of intervals and their reasons
    counted: int  # numbers and ends that were computed again
    changed_ends: list[str]  # one message for each, and for each row with other reasons
    changed_numbers: list[str]


def recount_table(path: Path) -> RecountedTable:
    """Computes a table's numbers again. Raises ValueError if its records cannot be read."""
    table = RecountedTable(path, files.read_csv(path), 0, [], [])
    records = parquet.read_records(files.get_records_file(path))
    counted = 0
    for row in table.rows:
        if row["status"] == "complete" and row["run_id"] in records:
            counted += _recount_row(table, row, _read_cell(records, table.rows, row))
    return RecountedTable(path, table.rows, counted, table.changed_ends, table.changed_numbers)


def write_table(table: RecountedTable) -> None:
    """Writes a table's rows, and its digest into the records beside it."""
    files.write_csv(table.path, table.rows, [*table.rows[0]])
    records_path = files.get_records_file(table.path)
    records = parquet.read_records(records_path)
    digests = {**records.digest_by_table, table.path.name: files.hash_file(table.path)}
    parquet.write_records(records_path, records, digests)


def _recount_row(table: RecountedTable, row: TextRow, cell: CellRecords) -> int:
    """Replaces the ends of a row's intervals and the reasons of empty ones; notes what differs.
    Returns the count of numbers.
    """
    summary = summarise(cell)
    numbers = summary.row
    place = f"{table.path}: {row['decoder']} {row['spec']} ({row['run_id']})"
    counted = 0
    for name, quantity in metric.items():
        if not quantity.column.interval or not row.get(name) or numbers[name] is None:
            continue
        counted += 1
        if not _is_close(float(row[name]), float(numbers[name] or 0.0)):
            table.changed_numbers.append(f"{place}: {name} is {numbers[name]}, not {row[name]}")
            continue
        for column in (f"{name}{end}" for end in ENDS):
            counted += 1
            number = numbers[column]
            text = "" if number is None else str(number)
            if text != row[column] and not (
                text and row[column] and _is_close(float(text), float(row[column]))
            ):
                table.changed_ends.append(f"{place}: {column} is {text}, not {row[column]}")
                row[column] = text
    reasons = [reason for reason in parse_reasons(row["reason"]) if reason.column != "intervals"]
    texts = summary.explain_missing_ends(cell, row)
    reasons += [Reason("intervals", text) for text in texts]
    if {*reasons} != {*parse_reasons(row["reason"])}:
        reason_text = format_reasons(reasons)
        table.changed_ends.append(f"{place}: reason is {reason_text}, not {row['reason']}")
        row["reason"] = reason_text
    return counted


def _read_cell(records: PackedRecords, rows: list[TextRow], row: TextRow) -> CellRecords:
    """Reads what a row's numbers are made of, with the plain decoding timed in turn with it."""
    repeats = [
        records.take_generations(lines.values())
        for lines in records.list_complete_repeats(row["run_id"])
    ]
    baselines = (
        select_paired_timings(repeats, index_timings(_read_timings(records, plain)))
        for plain in rows
        if plain["decoder"] == "ar" and all(plain.get(key) == row.get(key) for key in _SHARED)
    )
    baseline = next(filter(None, baselines), []) if row["baseline"] else []
    return CellRecords(
        repeats[0],
        baseline=baseline[0] if baseline else None,
        later_repeats=repeats[1:],
        later_baseline_repeats=baseline[1:],
        draft_calls=_parse(row, "draft_calls"),
        parameter_ratio=_parse(row, "parameter_ratio"),
        batched=float(row["batch_size"]) > 1,
    )


def _read_timings(records: PackedRecords, row: Mapping[str, str]) -> Iterator[Generation]:
    """Reads a cell's generations, and those that later sessions timed again."""
    for run_id in (row["run_id"], f"{row['run_id']}{RETIMED_SUFFIX}"):
        yield from records.get_generations(run_id)


def _parse(row: Mapping[str, str], column: str) -> float | None:
    return float(row[column]) if row.get(column) else None


def main(words: Sequence[str] | None = None) -> int:
    """Recounts the tables below a folder; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="put today's intervals in")
    asked = parser.parse_args(words)
    tables = [
        recount_table(path)
        for path in tqdm(sorted(asked.folder.rglob(files.RESULTS)), disable=None)
        if files.get_records_file(path).is_file()
    ]
    for table in tables:
        print(*table.changed_numbers, *table.changed_ends, sep="\n")
        if asked.write and table.changed_ends:
            write_table(table)
    counted = sum(table.counted for table in tables)
    changed_numbers = sum(len(table.changed_numbers) for table in tables)
    changed_ends = sum(len(table.changed_ends) for table in tables)
    print(
        f"{counted} numbers and ends of {len(tables)} tables: {changed_numbers} numbers differ, ",
        f"{changed_ends} ends" + " (now written)" * (asked.write and changed_ends > 0),
        sep="",
    )
    return int(changed_numbers > 0 or (changed_ends > 0 and not asked.write))


if __name__ == "__main__":
    sys.exit(main())
