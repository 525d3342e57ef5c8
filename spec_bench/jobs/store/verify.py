"""``spec-bench check results RESULTS``: checks that a folder of results is as it was written.

Verifies every checksum of its files, each row against its cell or its records, and each cell's
settings (with task and prompts) against its run id. Only reads.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spec_bench.jobs.store import experiment, store
from spec_bench.metrics import CellRecords, summarise
from spec_bench.records import cell_folder, parquet
from spec_bench.records.types import Generation
from spec_bench.settings.fields import to_one_line
from spec_bench.sinks.rows import read_results_rows, strip_past_models_suffix
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.printable import redact_escape_and_cut

_GIVEN_COLUMNS = ("draft_calls", "parameter_ratio")
_CLOSE = 1e-9  # relative, for a number computed again on another machine


def main(options: Namespace) -> int:
    """Runs the command; returns 2 if a file is not as it was written, else 0."""
    results = options.results
    tables = files.list_results_files(results)
    json_paths = sorted((results / files.RUNS).glob("*/*.json*"))
    cells = sorted(
        {file.parent for file in json_paths if file.parent.name not in ("jobs", "texts")}
    )
    if not tables and not cells:
        raise UsageError(f"no such folder, or no NAME/results.csv in it: {str(results)!r}")
    cell_faults: dict[str, list[str]] = {}
    table_faults = [
        line for table in tables for line in _describe_table_faults(results, table, cell_faults)
    ]
    faults = [
        line for cell in cells for line in _describe_cell_faults(cell, cell_faults)
    ] + table_faults
    for path in sorted((results / files.RUNS / "jobs").glob("*/*.json")):
        faults += _describe_refusal(path, experiment.read_job_record, path)
    lines = faults or [f"{len(cells)} cells, {len(tables)} tables: as they were written"]
    print(redact_escape_and_cut("\n".join(lines)), file=sys.stderr if faults else sys.stdout)
    return 2 if faults else 0


def _describe_refusal(path: Path, run_check: Callable[..., Any], *arguments: Any) -> list[str]:
    """Runs a check; returns a line if it raises, [] if it passes."""
    try:
        run_check(*arguments)
    except (*store.FAULTS, UnicodeError) as error:
        return [f"{path}: {to_one_line(error.__cause__ or error, 200)}"]
    return []


def _describe_cell_faults(folder: Path, cell_faults: Mapping[str, list[str]]) -> Iterator[str]:
    """Yields a cell's faults; those of ``cell.json`` come from ``cell_faults`` if its row was
    checked.
    """
    for path in (*files.find_retimed_paths(folder), folder / files.GENERATIONS):
        lines = cell_folder.read_generation_lines(path)
        torn = ("its last line is cut",) * bool(lines.torn_byte_count)
        yield from (f"{path}: {fault}" for fault in (*lines.faults, *torn))
    yield from _describe_refusal(folder / files.MODELS, cell_folder.read_models_json, folder)
    faults = cell_faults.get(str(folder))
    yield from (
        _describe_refusal(folder / files.CELL, _require_valid_cell_folder, folder)
        if faults is None
        else faults
    )


def _require_valid_cell_folder(folder: Path, content: Mapping[str, Any] | None = None) -> None:
    """Raises UsageError if a cell was altered, or if its settings do not give its run id."""
    cell = cell_folder.read_cell_json(folder) if content is None else content
    cell_folder.require_result_fits_generations(folder, cell, compare_whole_file=True)
    if cell and files.hash_json(cell["settings"]) != strip_past_models_suffix(folder.name):
        raise UsageError("its run id is not that of these settings")
    with suppress(LookupError):
        cell_folder.require_row_of_these_models(folder, cell["result"]["labels"])
    if comparison := cell.get("compared"):
        baseline_folder = files.get_run_folder(folder.parents[1], comparison["run_id"])
        # Cells of version 0.2 and before have ``sittings``.
        sessions = comparison.get("sessions", comparison.get("sittings", ()))
        jsonl_paths = baseline_folder.parent.glob(
            f"{baseline_folder.name}*/*.jsonl"
        )  # also of files that have changed since
        recorded_text = b"".join(path.read_bytes() for path in jsonl_paths)
        for session in sessions if baseline_folder.is_dir() else ():
            if session.encode() not in recorded_text:
                raise UsageError(
                    f"it was compared with timings of {session}, which {baseline_folder} lacks"
                )


def _describe_table_faults(
    results: Path, table: Path, cell_faults: dict[str, list[str]]
) -> Iterator[str]:
    path = files.get_records_file(table)
    records = parquet.concat_records([])
    top = files.get_results_folder(table)
    top = results if top.samefile(results) else top
    if path.exists():
        try:
            records = parquet.read_records(path)
        except UsageError as error:
            yield to_one_line(error, 200)
    yield from parquet.describe_altered_tables(path, records.digest_by_table)
    try:
        rows = read_results_rows(table)
    except UsageError as error:
        yield str(error)
        return
    for row in rows:
        yield from _describe_refusal(table, _require_valid_row, top, row, records, cell_faults)


def _require_valid_row(
    results: Path,
    row: Mapping[str, str],
    records: parquet.PackedRecords,
    cell_faults: dict[str, list[str]],
) -> None:
    """Raises UsageError if a row differs from its cell or, without a cell's folder, its records."""
    run_id = row["run_id"]
    expected_values = dict[str, Any]()
    folder = files.get_run_folder(results, run_id)
    if folder.is_dir() and not os.path.lexists(folder / files.CELL):
        raise UsageError(f"run {run_id}: its folder has no {files.CELL}")
    try:
        cell = cell_folder.read_cell_json(folder)
    except UsageError:
        return  # reported as the cell's fault
    cell_folder.require_row_of_these_models(folder, row)
    cell_faults[str(folder)] = _describe_refusal(
        folder / files.CELL, _require_valid_cell_folder, folder, cell
    )
    if (content := cell.get("result")) is not None:
        expected_values = {
            **content,
            **content["labels"],
            **content["metrics"],
            "stage": row.get("stage"),
        }
    elif row["status"] != "failed":
        expected_values = _recount_row(row, records.get_generations(run_id))
    for name, text in row.items():
        if name in expected_values and not _is_same_value(text, value := expected_values[name]):
            raise UsageError(f"run {run_id}: {name} is {text!r}, measured {value!r}")


def _recount_row(row: Mapping[str, str], generations: Sequence[Generation]) -> dict[str, Any]:
    """Computes a row's numbers again from its generations, without the ends of intervals."""
    by_repeat: dict[int, dict[str, Any]] = {}
    for generation in generations:
        by_repeat.setdefault(generation.repeat, {})[generation.prompt_id] = generation
    if not (first_repeat := by_repeat.pop(0, {})):
        return {}
    later_repeats = [
        [r[n] for n in first_repeat] for r in by_repeat.values() if {*first_repeat} <= {*r}
    ]
    calls, ratio = (float(row[n]) if row.get(n) else None for n in _GIVEN_COLUMNS)
    records = CellRecords([*first_repeat.values()], None, None, None, calls, ratio, later_repeats)
    numbers = summarise(records, ends=False).row
    return {n: v for n, v in numbers.items() if row.get(n) and v is not None}


def _is_same_value(text: str, value: Any) -> bool:
    if isinstance(value, float) and text:
        return abs(float(text) - value) <= _CLOSE * abs(value)
    return text == ("" if value is None else str(value))
