"""A cell's folder is checked whenever it is read: anything may have written to it last.

What a full disk, a power cut, an editor or a copy from another folder leaves is named in one line,
set aside beside its place (``NAME.bad-1``), and measured again. What is good stays. Knows what a
whole file looks like; nothing about what its numbers mean.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from spec_bench.records import cell_folder, parquet, seals
from spec_bench.records.cell_folder import Lines
from spec_bench.records.parquet import Packed
from spec_bench.records.types import CellResult
from spec_bench.settings.fields import one_line
from spec_bench.sinks.rows import restored
from spec_bench.system import files
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
_FAULTS = (
    *(ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, OverflowError),
    yaml.YAMLError,
)


@dataclass(frozen=True)
class Kept:
    """A result as its folder keeps it."""

    result: CellResult  # the cell's
    job: str | None  # the job that finished it
    # size and digest of the generations it was made of; None for an older version
    measured: Mapping[str, Any] | None
    # the seal of what its answers scored; None for an older version, and a failed cell
    scores: str | None


def measured(path: Path, size: int | None = None) -> dict[str, Any]:
    """What tells generations from others: their size in bytes and SHA-256.

    Args:
        path: the file; a missing one counts as empty.
        size: of the part that is meant, from the start; None: all of it.
    """
    data = path.read_bytes() if path.is_file() else b""
    part = data[:size]
    return {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}


def read_result(folder: Path) -> Kept | None:
    """A cell's result; None if it has none.

    Raises:
        ValueError: the file cannot be used; the message says why.
    """
    path = folder / files.RESULT
    if not os.path.lexists(path):
        return None
    try:
        content = seals.opened(path)
        job, made_of, scores = content["job"], content.get("generations"), content.get("scores")
        result = restored(content)
        _hold(result, folder.name)
        _result_adapter().validate_json(json.dumps(asdict(result)), strict=True)
    except _FAULTS as error:
        raise ValueError(_message(error)) from error
    return Kept(result, job, made_of, scores)


def _hold(result: CellResult, run_id: str) -> None:
    """Checks that it is this cell's and its metrics are of the columns' types.

    Raises:
        ValueError: it is not.
    """
    if result.run_id != run_id:
        raise ValueError(f"it is of run {result.run_id!r}")
    for name, value in result.metrics.items():
        if isinstance(value, int | float) and not isfinite(value):
            raise ValueError(f"{name} is {value}")
    for column in columns.columns_in(result.metrics):
        for name in column.names:
            value = result.metrics.get(name)
            if value is not None and isinstance(value, str) == (column.holds == "number"):
                raise ValueError(f"{name} is {value!r}")


@cache
def _result_adapter() -> TypeAdapter[CellResult]:
    return TypeAdapter(CellResult)


def mend(folder: Path, settings: Mapping[str, Any]) -> Lines:
    """Sets aside what is unusable in a cell's folder, whose lock this process holds; its
    generations.
    """
    lines = mend_lines(folder)
    _mend_result(folder)
    records = _usable_records(folder)
    _mend_scores(folder, records)
    _mend_starts(folder, records)
    _mend_records(folder, lines, records)
    _mend_config(folder, settings)
    return lines


def mend_lines(folder: Path, vocabulary: int | None = None) -> Lines:
    """Keeps a file of generations to its whole lines; a last one torn by a kill is cut off."""
    for path in files.retimed_files(folder):
        _whole_lines(path, vocabulary)
    return _whole_lines(folder / files.GENERATIONS, vocabulary)


def _whole_lines(path: Path, vocabulary: int | None) -> Lines:
    """One file's."""
    lines = cell_folder.read(path, vocabulary)
    if lines.faults:
        more = f" and {len(lines.faults) - 1} more lines" if len(lines.faults) > 1 else ""
        _aside(path, f"{lines.faults[0]}{more}", copy=True)
        cell_folder.replace(path, lines.generations)
    elif lines.torn:
        with path.open("rb+") as stream:
            stream.truncate(path.stat().st_size - lines.torn)
    return lines


def _mend_result(folder: Path) -> None:
    """Removes a result that cannot be read, or was made of other generations than are here."""
    path = folder / files.RESULT
    try:
        kept = read_result(folder)
    except ValueError as error:
        _aside(path, str(error))
        return
    if kept is None or kept.result.status == "failed":
        return
    generations = folder / files.GENERATIONS
    if kept.measured is None:  # an older version's
        asked = kept.result.metrics.get("prompts") or 0
        fits = generations.is_file() and generations.read_bytes().count(b"\n") >= int(asked)
    else:
        fits = measured(generations, int(kept.measured["bytes"])) == kept.measured
    if not fits:
        _aside(path, f"it was made of other generations than {files.GENERATIONS} holds")


def _usable_records(folder: Path) -> Packed | None:
    """A cell's packed records; None where there are none, or none that can be used."""
    path = folder / files.RECORDS
    if not os.path.lexists(path):
        return None
    try:
        kept = parquet.read(path)
        if set(kept.run_ids) - {folder.name}:
            raise ValueError("it has other runs' records")
    except ValueError as error:
        _aside(path, _message(error))
        return None
    return kept


def _mend_scores(folder: Path, records: Packed | None) -> None:
    """Scores that the result was not made with come back from the records, else are made again.

    They are made again, and the result with them, from the same answers; so are those of an older
    version, whose result seals none.
    """
    path, kept = folder / files.SCORES, read_result(folder)
    try:
        scores = cell_folder.read_scores(folder)
    except ValueError as error:
        why = _message(error.__cause__ or error)
        if os.path.lexists(path):
            _aside(path, why)
        else:
            log.warning("%s: %s", path, why)
        packed = {} if records is None else records.scores(folder.name)
        if kept is not None and kept.scores == cell_folder.scores_seal(packed):
            files.write_json(path, packed)
        elif kept is not None:
            _aside(folder / files.RESULT, f"its {files.SCORES} is gone")
        return
    if kept is None or kept.result.status == "failed" or kept.scores is not None:
        return
    if scores or kept.result.metrics.get("quality_signature"):
        _aside(folder / files.RESULT, f"of an older version, which sealed no {files.SCORES}")


def _mend_records(folder: Path, lines: Lines, records: Packed | None) -> None:
    """A finished cell's records are packed again where they are not those of its files."""
    path = folder / files.RECORDS
    if not (folder / files.RESULT).exists():
        return
    if records is not None:
        more = cell_folder.read_scores(folder), cell_folder.read_retimed(folder)
        packed = parquet.pack(folder.name, lines.generations, None, *more)
        if records.lines.equals(packed.lines):
            return
        # Where only later timings are missing, a kill kept them out.
        if not records.lines_of(folder.name).equals(packed.lines_of(folder.name)):
            _aside(path, f"its lines are not those of {files.GENERATIONS}")
    if (again := cell_folder.pack_run(folder)) is not None:
        parquet.write(path, again)


def _mend_starts(folder: Path, kept: Packed | None) -> None:
    """Puts where a cell was measured into its packed records too."""
    path = folder / files.PROVENANCE
    try:
        cell_folder.read_starts(path)
    except ValueError as error:
        _aside(path, str(error))
        if kept is not None and (origin := kept.origins.get(folder.name)):
            files.write_json(path, [origin])


def _mend_config(folder: Path, settings: Mapping[str, Any]) -> None:
    """Rewrites the file of a cell's settings if it differs from the known ones."""
    path = folder / files.CONFIG
    if not path.exists() and not (folder / files.RESULT).exists():
        return
    text = yaml.safe_dump(dict(settings), sort_keys=False)
    try:
        if not path.exists() or yaml.safe_load(path.read_bytes()) != yaml.safe_load(text):
            raise ValueError("it has other settings than its run id stands for")
    except _FAULTS as error:
        if path.exists():
            _aside(path, _message(error))
        files.write_text(path, text)


def _aside(path: Path, why: str, copy: bool = False) -> None:
    log.warning("%s: %s; it is now %s", path, why, files.set_aside(path, copy).name)


def _message(error: BaseException) -> str:
    """An error in one short line."""
    text = one_line(error, 200)
    return f"{text} is missing" if isinstance(error, KeyError) else text
