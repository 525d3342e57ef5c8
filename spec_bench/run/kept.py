"""A cell's folder is checked whenever it is read: anything may have written to it last.

What a full disk, a power cut, an editor or a copy from another folder leaves is named in one line,
set aside beside its place (``NAME.bad-1``), and measured again. What is good stays. Knows what a
whole file looks like; nothing about what its numbers mean.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from spec_bench import cell_files, columns, files, lines, packed
from spec_bench.judge.cells import FILE as JUDGED
from spec_bench.judge.cells import read_judged
from spec_bench.lines import Lines
from spec_bench.packed import Packed
from spec_bench.records import CellResult
from spec_bench.sinks.rows import restored

log = logging.getLogger(__name__)
_FAULTS = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, yaml.YAMLError)


@dataclass(frozen=True)
class Kept:
    """A result as its folder keeps it.

    Attributes:
        result: the cell's.
        job: the job that finished it.
        measured: size and digest of the generations it was made of; None for an older version.
    """

    result: CellResult
    job: str | None
    measured: Mapping[str, Any] | None


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A result's content with a checksum of it all, which ``read_result`` verifies."""
    return {**content, "check": files.digest(content)}


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
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        job, check = content.pop("job"), content.pop("check", None)
        made_of = content.pop("generations", None)
        whole = {**content, "job": job, "generations": made_of}
        if check is not None and check != files.digest(whole):
            raise ValueError("its check does not fit: it was altered")
        result = restored(content)
        _hold(result, folder.name)
        _result_adapter().validate_json(json.dumps(asdict(result)), strict=True)
    except _FAULTS as error:
        raise ValueError(_said(error)) from error
    return Kept(result, job, made_of)


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
    """Sets aside what is unusable in a cell's folder, whose lock this process holds.

    Args:
        folder: the cell's.
        settings: what it is, resolved.

    Returns:
        Its generations.
    """
    found = mend_lines(folder)
    _mend_scores(folder)
    _mend_result(folder)
    origins = _mend_records(folder, found)
    _mend_starts(folder, origins)
    _mend_config(folder, settings)
    try:
        read_judged(folder)
    except _FAULTS as error:
        _aside(folder / JUDGED, _said(error))
    return found


def mend_lines(folder: Path, vocabulary: int | None = None) -> Lines:
    """Keeps a file of generations to its whole lines; a last one torn by a kill is cut off.

    Args:
        folder: the cell's.
        vocabulary: size of the target's, if known.
    """
    for path in files.retimed_files(folder):
        _whole_lines(path, vocabulary)
    return _whole_lines(folder / files.GENERATIONS, vocabulary)


def _whole_lines(path: Path, vocabulary: int | None) -> Lines:
    """One file's."""
    found = lines.read(path, vocabulary)
    if found.faults:
        more = f" and {len(found.faults) - 1} more lines" if len(found.faults) > 1 else ""
        _aside(path, f"{found.faults[0]}{more}", copy=True)
        lines.replace(path, found.generations)
    elif found.torn:
        with path.open("rb+") as stream:
            stream.truncate(path.stat().st_size - found.torn)
    return found


def _mend_scores(folder: Path) -> None:
    """Without the answers' scores the result is made again, from the same answers."""
    path = folder / files.SCORES
    try:
        cell_files.read_scores(path)
    except ValueError as error:
        _aside(path, str(error))
        if (result := folder / files.RESULT).exists():
            _aside(result, f"its {files.SCORES} is gone")


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
    own = folder / files.GENERATIONS
    if kept.measured is None:  # an older version's
        asked = kept.result.metrics.get("prompts") or 0
        fits = own.is_file() and own.read_bytes().count(b"\n") >= int(asked)
    else:
        fits = measured(own, int(kept.measured["bytes"])) == kept.measured
    if not fits:
        _aside(path, f"it was made of other generations than {files.GENERATIONS} holds")


def _mend_records(folder: Path, found: Lines) -> Packed | None:
    """Packed records of other generations are packed again, when the cell ends or now."""
    path = folder / files.RECORDS
    if not path.exists():
        return None
    try:
        kept = packed.read(path)
        if set(kept.run_ids) - {folder.name}:
            raise ValueError("it has other runs' records")
    except (ValueError, OSError) as error:
        _aside(path, _said(error))
        return None
    scores = cell_files.read_scores(folder / files.SCORES)
    own = packed.pack(folder.name, found.generations, None, scores, cell_files.read_retimed(folder))
    if (folder / files.RESULT).exists() and not kept.lines.equals(own.lines):
        if kept.own(folder.name).equals(own.own(folder.name)):  # was killed before repacking
            packed.write(path, replace(own, origins=kept.origins))
        else:
            _aside(path, f"its lines are not those of {files.GENERATIONS}")
    return kept


def _mend_starts(folder: Path, kept: Packed | None) -> None:
    """Puts where a cell was measured into its packed records too."""
    path = folder / files.PROVENANCE
    try:
        cell_files.read_starts(path)
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
            _aside(path, _said(error))
        files.write_text(path, text)


def _aside(path: Path, why: str, copy: bool = False) -> None:
    log.warning("%s: %s; it is now %s", path, why, files.set_aside(path, copy).name)


def _said(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split())[:200]
    return f"{text} is missing" if isinstance(error, KeyError) else text or type(error).__name__
