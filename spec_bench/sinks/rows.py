"""An experiment's table: converts a cell's result to a flat row and back, writes the CSV of rows,
and finds the rows of a past state.

Only this module converts the types of ``records`` to text: names joined by commas, ``true`` or
``false``, reasons in one line. The CSV is replaced atomically, so that a reader sees a whole file.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from math import inf
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_origin, get_type_hints

from spec_bench.records.cell_folder import DIGEST_COLUMNS
from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import (
    CellFacts,
    CellResult,
    explain_timing_doubt,
    parse_reasons,
)
from spec_bench.settings.validation import adapter
from spec_bench.system import files
from spec_bench.system.redaction import redact
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
Row = Mapping[str, Any]
REQUIRED_COLUMNS = ("pair", "target", "draft", "task", "decoder", "spec", "status", "run_id")
_ROUNDED_COLUMNS = (
    "nodes_per_call",
    "block_efficiency",
    "mbsu",
    "acceptance_rate",
    "token_rate",
    "speedup",
)
# columns of screened cells
_SCREENED_COLUMNS = ("prompts", "draft_calls", "parameter_ratio", *_ROUNDED_COLUMNS)
STATE_COLUMNS = (
    "target_revision",
    "draft_revision",
    "tree_revision",
    "data_revision",
    "prompts_digest",
    "engine",
)
# Columns that follow from state and machine: a user does not vary them on purpose.
_NOT_VARIED = (
    *STATE_COLUMNS,
    *DIGEST_COLUMNS,
    "code_digest",
    "token_ids_digest",
    "run_id",
    "machine",
    "attention",
)
_RARE_COLUMNS = ("code_digest",)  # written only if a row has a value
_PAST_MODELS_MARK = "-of-"  # between a run id and the digest of its past models


def flatten_facts(facts: CellFacts) -> dict[str, str | int | float]:
    """Converts a cell's facts to texts and numbers by column; "" for None."""
    values = {**vars(facts), **facts.sampling.get_columns()}
    return {
        name: _flatten_and_redact(value)
        for name, value in values.items()
        if name != "sampling" and (value or name not in _RARE_COLUMNS)
    }


@cache
def _get_fact_types() -> dict[str, Any]:
    return get_type_hints(CellFacts)  # cached, as a folder has thousands of cells


def parse_facts(labels: Row) -> CellFacts:
    """Inverts ``flatten_facts``; labels that older records lack get their defaults."""
    types = _get_fact_types()
    values = {name: _unflatten_value(types[name], labels[name]) for name in types.keys() & labels}
    sampling_names = (field.name for field in fields(SamplingSettings))
    sampling = {name: labels[name] for name in sampling_names if labels.get(name, "") != ""}
    return CellFacts(**values, sampling=SamplingSettings(**sampling))


def _flatten_and_redact(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, tuple):
        value = ",".join(
            element if isinstance(element, str) else f"{element:g}" for element in value
        )
    if isinstance(value, str):
        return redact(value)
    return str(value).lower() if isinstance(value, bool) else value


def _unflatten_value(annotation: Any, value: Any) -> Any:
    """Inverts ``_flatten_and_redact`` for a field with this annotation."""
    if get_origin(annotation) is tuple:
        value = [part for part in str(value).split(",") if part]
    elif value == "" and NoneType in get_args(annotation):
        value = None
    return adapter(annotation).validate_python(value)


def result_to_row(result: CellResult) -> dict[str, Any]:
    """Converts a result to a row of the table; ``lossless`` is "" for a failed cell."""
    row = {
        **flatten_facts(result.facts),
        "lossless": result.lossless or "",
        "status": result.status,
        "reason": result.reason,
        "run_id": result.run_id,
        "baseline": result.baseline or "",
        **result.metrics,
    }
    return {name: row[name] for name in columns.order_column_names(row)}


def result_to_json(result: CellResult) -> dict[str, Any]:
    """Converts a result to the cell folder's JSON."""
    return {
        "run_id": result.run_id,
        "labels": {**flatten_facts(result.facts), "baseline": result.baseline or ""},
        "lossless": result.lossless,
        "status": result.status,
        "reason": result.reason,
        "metrics": result.metrics,
    }


def result_from_json(content: Row) -> CellResult:
    """Inverts ``result_to_json``."""
    return CellResult(
        content["run_id"],
        parse_facts(content["labels"]),
        content["status"],
        None if content["status"] == "failed" else content["lossless"],
        parse_reasons(content["reason"]),
        dict(content["metrics"]),
        content["labels"].get("baseline") or None,
    )


def build_past_models_id(row: Row) -> str:
    """Builds the id under which a row is kept after its models' files have changed: the run id with
    a hash of the row's digests; "" if the row has no digests.
    """
    digests = [_flatten_and_redact(row.get(name)) for name in DIGEST_COLUMNS]
    digests += [row["code_digest"]] if row.get("code_digest") else []
    return f"{row['run_id']}{_PAST_MODELS_MARK}{files.hash_json(digests, 8)}" if digests[0] else ""


def strip_past_models_suffix(run_id: str) -> str:
    """Returns the run id of a row, without the suffix of ``build_past_models_id``."""
    return run_id.partition(_PAST_MODELS_MARK)[0]


def read_results_rows(path: Path) -> list[dict[str, str]]:
    """Reads the rows of a results file as text; empty if there is no file. Raises UsageError if it
    is no results file.
    """
    return files.read_csv(path, REQUIRED_COLUMNS)


def write_results_csv(path: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Writes rows with all known columns, then the rows' other columns. Returns the rows with a
    value, or "", for every column.
    """
    names = columns.order_column_names(
        [*columns.define_all_column_names(), *(name for row in rows for name in row)]
    )
    for name in _RARE_COLUMNS:
        if not any(row.get(name) for row in rows):
            names.remove(name)
    full_rows = [{name: row.get(name, "") for name in names} for row in rows]
    files.write_csv(path, full_rows, names)
    return full_rows


def merge_results_csv(
    path: Path,
    new_rows: Iterable[Row],
    order: Iterable[str] = (),
    end_times: Mapping[str, float] = MappingProxyType({}),
    job_end_times: Mapping[str, Mapping[int, float]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Merges new rows into a results file; returns the written rows, the screened ones first.

    A new row replaces the row with its run id; merging twice changes nothing. There is no lock: a
    caller that writes at the same time as others must check again (``jobs.store.experiment``). Rows
    of a past state move to the archive next to the file, and back when their state returns.
    Screened rows of a search are written to a separate file, without intervals.

    ``order`` lists run ids. Earlier rows that it lacks come first, in their old order; then rows in
    ``order``; then other new rows. ``end_times``, run id -> Unix seconds when the cell's last job
    ended, and ``job_end_times``, run id -> the same by the jobs' places in sweeps, distinguish past
    states from the present one.
    """
    screening_path = files.get_screening_path(path)
    earlier_rows = (*read_results_rows(screening_path), *read_results_rows(path))
    rows: dict[str, Row] = {row["run_id"]: row for row in earlier_rows}
    ordered_ids = dict.fromkeys(order)
    new_by_id = {str(row["run_id"]): row for row in new_rows}
    for row in earlier_rows:  # rename rows of other models than the cell has now
        row_past_id = build_past_models_id(row)
        new_past_id = build_past_models_id(new_by_id.get(row["run_id"], row))
        if row_past_id in new_by_id or (row_past_id and new_past_id not in ("", row_past_id)):
            rows[row_past_id] = {**rows.pop(row["run_id"]), "run_id": row_past_id}
    unordered_ids = [run_id for run_id in rows if run_id not in ordered_ids]
    rows.update(new_by_id)
    all_ids = dict.fromkeys([*unordered_ids, *ordered_ids, *rows])
    run_ids = [run_id for run_id in all_ids if run_id in rows]
    past_ids = find_superseded_ids(list(rows.values()), end_times, job_end_times)
    past_ids |= {run_id for run_id in run_ids if strip_past_models_suffix(run_id) != run_id}
    present = [rows[run_id] for run_id in run_ids if run_id not in past_ids]
    _update_archive(path, [rows[run_id] for run_id in run_ids if run_id in past_ids], present)
    screened_rows = [row for row in present if row.get("stage") == "screen"]
    if screened_rows or screening_path.exists():
        _write_screened_rows(screening_path, screened_rows)
    written_rows = write_results_csv(path, [row for row in present if row.get("stage") != "screen"])
    return [*map(dict, screened_rows), *written_rows]


def _write_screened_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes screened rows: the columns that identify cells, and some numbers, rounded to 5
    significant digits.
    """
    shown_names = {
        *columns.list_value_column_names("identity", "setting", "state", "score"),
        *_SCREENED_COLUMNS,
    }
    filled_names = {name for row in rows for name, value in row.items() if value not in (None, "")}
    names = columns.order_column_names({*REQUIRED_COLUMNS, *(shown_names & filled_names)})
    screened_rows = [{name: row.get(name, "") for name in names} for row in rows]
    for screened_row in screened_rows:
        if "reason" in screened_row and screened_row["status"] == "complete":
            doubt = explain_timing_doubt(str(screened_row["reason"]))
            screened_row["reason"] = f"speedup: {doubt}" if doubt else ""
        for name in _ROUNDED_COLUMNS:
            if screened_row.get(name) not in (None, ""):
                screened_row[name] = f"{float(screened_row[name]):.5g}"
    files.write_csv(path, screened_rows, names)


def _update_archive(path: Path, past_rows: Sequence[Row], present_rows: Sequence[Row]) -> None:
    """Adds past rows to the archive next to a results file, each once; removes rows that are
    present.
    """
    present_ids = {
        name for row in present_rows for name in (row["run_id"], build_past_models_id(row))
    }
    archive = files.get_archive_path(path)
    archived_rows: dict[str, Row] = {row["run_id"]: row for row in read_results_rows(archive)}
    rows = {**archived_rows, **{str(row["run_id"]): row for row in past_rows}}
    rows = {run_id: row for run_id, row in rows.items() if run_id not in present_ids}
    if rows.keys() == archived_rows.keys():
        return
    if added_count := len(rows.keys() - archived_rows.keys()):
        log.info(
            "%d rows of earlier jobs, of other weights, data or code, are now in %s",
            added_count,
            archive,
        )
    write_results_csv(archive, list(rows.values()))


def find_superseded_ids(
    rows: Sequence[Row],
    end_times: Mapping[str, float],
    job_end_times: Mapping[str, Mapping[int, float]] = MappingProxyType({}),
) -> set[str]:
    """Finds the run ids of an experiment's rows that a newer row replaces.

    A changed checkpoint, data set or engine makes new cells with equal labels, which would be two
    answers to one question. A newer row replaces an older row if all labels agree (pair, models,
    task, decoder, spec, and all settings that a user varies on purpose, such as temperature, batch
    size, seed or dtype) and the number of prompts too, and if one of ``STATE_COLUMNS`` differs or a
    later job at the same place of its sweep made the newer row; in the latter case a file without a
    column has changed, such as a chat template. A failed row replaces no row. ``end_times`` maps
    run ids to the Unix seconds when a cell's last job ended; a row that it lacks is older.
    ``job_end_times`` maps run ids to these seconds by the jobs' places. For a decoder with another
    package's code, only rows of the latest code stay, whatever their number of prompts.
    """
    labels_and_settings = columns.list_value_column_names("identity", "setting")
    names = [name for name in labels_and_settings if name not in _NOT_VARIED]

    # Rows must agree in labels, and in prompts unless one failed.
    row_keys = [
        (
            row,
            tuple(_get_csv_text(row, name) for name in names),
            _get_csv_text(row, "prompts"),
            tuple(_get_csv_text(row, name) for name in STATE_COLUMNS),
            end_times.get(str(row["run_id"]), -1.0),
            job_end_times.get(str(row["run_id"]), {}),
        )
        for row in rows
    ]
    latest: dict[tuple[tuple[str, ...], str], dict[Any, float]] = defaultdict(dict)
    for row, labels, prompts, state, end_s, place_ends in row_keys:
        if _get_csv_text(row, "status") != "failed":
            for key in ((labels, f"{prompts} prompts"), (labels, "")):
                for mark, mark_end_s in ((state, end_s), *place_ends.items()):
                    latest[key][mark] = max(mark_end_s, latest[key].get(mark, mark_end_s))
    codes: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row, labels, _, _, end_s, _ in row_keys:
        if (code := _get_csv_text(row, "code_digest")) and row.get("status") != "failed":
            codes[labels][code] = max(end_s, codes[labels].get(code, end_s))
    past_ids = set()
    for row, labels, prompts, state, end_s, place_ends in row_keys:
        latest_ends = latest.get((labels, prompts and f"{prompts} prompts"), {})
        if any(
            latest_end_s > (place_ends.get(mark, inf) if isinstance(mark, int) else end_s)
            for mark, latest_end_s in latest_ends.items()
            if mark != state
        ):
            past_ids.add(str(row["run_id"]))
        row_code = _get_csv_text(row, "code_digest")
        if any(other > end_s for code, other in codes[labels].items() if code != row_code):
            past_ids.add(str(row["run_id"]))
    return past_ids


def _get_csv_text(row: Row, name: str) -> str:
    """Returns a value as text, as the CSV has it."""
    value = row.get(name)
    return "" if value is None else str(value)
