"""A cell's files: the lines of ``generations.jsonl``, ``models.json`` with the digests of its
models, and ``cell.json`` with all else.

Another process may be adding to them. A line is a generation's JSON with a check, the CRC-32 of its
cell's id and of the line without it, which fails for a line that was cut, altered or is another
cell's. ``cell.json`` has a digest of itself. ``parquet`` packs the files.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from spec_bench.records import checksums
from spec_bench.records.parquet import PackedRecords, pack
from spec_bench.records.types import Generation
from spec_bench.settings.fields import one_line
from spec_bench.settings.foreign import MOST_S, StoredCell
from spec_bench.settings.validation import check
from spec_bench.system import files
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
_FAULTS = (ValueError, KeyError, TypeError, OSError, RecursionError)
_CHECKED = re.compile(rb'(.*),"check":"([0-9a-f]{8})"}', re.DOTALL)


@dataclass(frozen=True)
class GenerationLines:
    """Content of a file of generations."""

    # valid lines in the file's order, the last of each repeat and prompt
    generations: tuple[Generation, ...] = ()
    # invalid lines: number and reason
    faults: tuple[str, ...] = ()
    torn: int = 0  # bytes of an unfinished last line, as a kill leaves it; no fault


def format_line(generation: Generation, run_id: str) -> str:
    """Formats a generation as a line of its cell's file, with the newline."""
    text = json.dumps(generation.to_json(), separators=(",", ":"))[:-1]
    return f'{text},"check":"{_compute_check(text.encode(), run_id)}"}}\n'


def read_generations(
    path: Path,
    vocabulary: int | None = None,
    size: int | None = None,
) -> GenerationLines:
    """Reads a cell's ``generations.jsonl``, in the folder named by its run id; none if it is
    missing. Token ids must be below ``vocabulary``, if it is given; ``size`` limits the bytes.
    """
    try:
        content = checksums.read_regular_file(path)[:size]
    except FileNotFoundError:
        return GenerationLines()
    except (OSError, ValueError) as error:
        return GenerationLines(faults=(getattr(error, "strerror", None) or str(error),))
    end = content.rfind(b"\n") + 1
    generations: dict[tuple[int, str], Generation] = {}
    faults = []
    for number, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        try:
            generation = _parse_line(line, path.parent.name, vocabulary)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            faults.append(f"line {number}: {one_line(error, 120)}")
        else:
            generations[generation.repeat, generation.prompt_id] = generation
    return GenerationLines(tuple(generations.values()), tuple(faults), len(content) - end)


def rewrite_generations(path: Path, generations: Iterable[Generation]) -> None:
    """Replaces a cell's file of generations."""
    files.write_text(
        path, "".join(format_line(generation, path.parent.name) for generation in generations)
    )


def _compute_check(text: bytes, run_id: str) -> str:
    return f"{crc32(text, crc32(run_id.encode())):08x}"


def _parse_line(line: bytes, run_id: str, vocabulary: int | None) -> Generation:
    if not (match := _CHECKED.fullmatch(line)):
        raise UsageError("it has no check, as a whole line has")
    text = match[1]
    check = match[2].decode()
    if check != _compute_check(text, run_id):
        raise UsageError("its check does not fit: it was altered, or is another run's")
    generation = Generation.from_json(json.loads(text + b"}"))
    for token_id in (min(generation.tokens, default=0), max(generation.tokens, default=0)):
        if not 0 <= token_id < (vocabulary or 2**31):
            raise UsageError(f"token id {token_id}")
    for seconds in (generation.prefill_s, generation.decode_s):
        if not 0 <= seconds < MOST_S:
            raise UsageError(f"prefill_s or decode_s is {seconds}")
    return generation


def pack_run(folder: Path) -> PackedRecords | None:
    """Packs a cell's folder, the generations of its result; None if it is missing or (logged)
    damaged.
    """
    path = folder / files.GENERATIONS
    try:
        cell = read_cell(folder)
        lines = read_generations(path, size=(cell.get("generations") or {}).get("bytes"))
        if lines.faults:
            raise UsageError(f"{path}: {lines.faults[0]}")
        check_cell(folder, cell)
        if not cell:
            return None
        return pack_cell(folder, cell, lines.generations)
    except _FAULTS as error:
        log.warning("%s", error)
        return None


def pack_cell(
    folder: Path,
    cell: Mapping[str, Any],
    generations: Sequence[Generation],
) -> PackedRecords:
    """Packs a cell's generations with its origin, scores and later timings."""
    origin = (cell.get("starts") or [None])[-1]
    return pack(folder.name, generations, origin, cell.get("scores"), read_retimed(folder))


def read_lines(path: Path) -> list[Generation]:
    """Reads a cell's generations in order; logs the first of the lines that are damaged."""
    lines = read_generations(path)
    if lines.faults:
        log.warning("%s: %s", path, lines.faults[0])
    return list(lines.generations)


def read_retimed(folder: Path) -> list[Generation]:
    """Reads what later sessions timed again of a baseline, in the order of the files."""
    return [
        generation for path in files.find_retimed_paths(folder) for generation in read_lines(path)
    ]


def read_cell(folder: Path) -> dict[str, Any]:
    """Reads ``<results>/runs/<run_id>/cell.json``; empty if it is missing.

    It has ``settings``, ``starts`` (each one's provenance) and, once the cell is finished,
    ``result``, ``scores`` (by score and prompt id), the ``job`` that finished it, the baseline's
    timings that it was ``compared`` with, and a digest of its ``generations``. Raises UsageError,
    which names the file and the reason.
    """
    return _read_checked_file(folder / files.CELL)


def read_models(folder: Path) -> dict[str, Any]:
    """Reads the cell's ``models.json``, empty if it is missing: digests of the ``models``, by file,
    and of the prompts' ``token_ids``. Raises UsageError as ``read_cell`` does.
    """
    return _read_checked_file(folder / files.MODELS)


def _read_checked_file(path: Path) -> dict[str, Any]:
    """Reads a JSON file of a cell's folder and verifies it; empty if it is missing."""
    try:
        content = checksums.read_checked(path)
        if content["run_id"] != path.parent.name:
            raise UsageError(f"it is of run {content['run_id']!r}")
        check(StoredCell, content)
    except FileNotFoundError:
        return {}
    except _FAULTS as error:
        message = f"{str(path)!r} is not as it was written: {one_line(error, 200)}"
        raise UsageError(f"{message}; run its experiment again") from error
    return content


def measure_file(path: Path, size: int | None = None) -> dict[str, Any]:
    """Returns bytes and SHA-256 of a file, or of its first ``size`` bytes."""
    content = path.read_bytes()[:size] if path.is_file() else b""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def check_cell(folder: Path, cell: Mapping[str, Any], needs_whole: bool = False) -> None:
    """Checks that a cell's result was made of the generations in its folder; with ``needs_whole``
    of all of them, which fails while more repeats are decoded. Raises UsageError.
    """
    path = folder / files.GENERATIONS
    source = cell.get("generations")
    if (
        source is not None
        and measure_file(path, None if needs_whole else source["bytes"]) != source
    ):
        raise UsageError(f"it was made of other generations than {path} holds")


def write_cell(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes ``cell.json``, see ``read_cell``."""
    files.write_json(
        folder / files.CELL, checksums.add_checksum({**content, "run_id": folder.name})
    )


def write_models(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes ``models.json``, see ``read_models``."""
    files.write_json(
        folder / files.MODELS, checksums.add_checksum({**content, "run_id": folder.name})
    )
