"""A cell's files: the lines of ``generations.jsonl``, ``models.json`` with digests of what it was
decoded with, and ``cell.json`` with all else.

Another process may be adding to them. A line is a generation's JSON with a check, the CRC-32 of its
cell's id and of the line without it: a line that was cut, altered or comes from another cell
differs from a whole one. ``cell.json`` has a digest of itself. ``parquet`` knows what is made of
them.
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

from spec_bench.records import seals
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
    """What a file of generations holds."""

    # its whole lines in their order, of a repeat and prompt the last
    generations: tuple[Generation, ...] = ()
    # what is wrong with the others, one text each: the line's number and why
    faults: tuple[str, ...] = ()
    torn: int = 0  # bytes at the end that are no line yet, as a kill leaves them: no fault


def format_line(generation: Generation, run_id: str) -> str:
    """Returns a generation as a line of its cell's file, its end included."""
    text = json.dumps(generation.to_json(), separators=(",", ":"))[:-1]
    return f'{text},"check":"{_check(text.encode(), run_id)}"}}\n'


def read_generations(
    path: Path, vocabulary: int | None = None, size: int | None = None
) -> GenerationLines:
    """The lines of a cell's ``generations.jsonl``, in the folder that its run id names; none where
    there is no file. Where the size of the target's ``vocabulary`` is known token ids lie below;
    where a ``size`` is given only so many bytes are read.
    """
    try:
        data = seals.read_regular_file(path)[:size]
    except FileNotFoundError:
        return GenerationLines()
    except (OSError, ValueError) as error:
        return GenerationLines(faults=(getattr(error, "strerror", None) or str(error),))
    whole = data.rfind(b"\n") + 1
    generations: dict[tuple[int, str], Generation] = {}
    faults = []
    for number, line in enumerate(data[:whole].split(b"\n")[:-1], start=1):
        try:
            each = _read(line, path.parent.name, vocabulary)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            faults.append(f"line {number}: {one_line(error, 120)}")
        else:
            generations[each.repeat, each.prompt_id] = each
    return GenerationLines(tuple(generations.values()), tuple(faults), len(data) - whole)


def rewrite(path: Path, generations: Iterable[Generation]) -> None:
    """Writes a cell's file anew."""
    files.write_text(path, "".join(format_line(each, path.parent.name) for each in generations))


def _check(text: bytes, run_id: str) -> str:
    return f"{crc32(text, crc32(run_id.encode())):08x}"


def _read(line: bytes, run_id: str, vocabulary: int | None) -> Generation:
    if not (checked := _CHECKED.fullmatch(line)):
        raise UsageError("it has no check, as a whole line has")
    text = checked[1]
    check = checked[2].decode()
    if check != _check(text, run_id):
        raise UsageError("its check does not fit: it was altered, or is another run's")
    generation = Generation.from_json(json.loads(text + b"}"))
    for impossible in (min(generation.tokens, default=0), max(generation.tokens, default=0)):
        if not 0 <= impossible < (vocabulary or 2**31):
            raise UsageError(f"token id {impossible}")
    for seconds in (generation.prefill_s, generation.decode_s):
        if not 0 <= seconds < MOST_S:
            raise UsageError(f"prefill_s or decode_s is {seconds}")
    return generation


def pack_run(run: Path) -> PackedRecords | None:
    """The records of a cell's folder, those that its result was made of; None where it is not here
    or, logged, is damaged.
    """
    path = run / files.GENERATIONS
    try:
        cell = read_cell(run)
        lines = read_generations(path, size=(cell.get("generations") or {}).get("bytes"))
        if lines.faults:
            raise UsageError(f"{path}: {lines.faults[0]}")
        check_cell(run, cell)
        if not cell:
            return None
        return pack_cell(run, cell, lines.generations)
    except _FAULTS as error:
        log.warning("%s", error)
        return None


def pack_cell(run: Path, cell: Mapping[str, Any], done: Sequence[Generation]) -> PackedRecords:
    """Packs a cell's generations, with what its file says of them and what was timed again."""
    origin = (cell.get("starts") or [None])[-1]
    return pack(run.name, done, origin, cell.get("scores"), read_retimed(run))


def read_lines(path: Path) -> list[Generation]:
    """A cell's generations in their order; what is no whole line is left out, and logged."""
    lines = read_generations(path)
    if lines.faults:
        log.warning("%s: %s", path, lines.faults[0])
    return list(lines.generations)


def read_retimed(run: Path) -> list[Generation]:
    """Returns what later sittings timed again of a baseline, in the order of their files."""
    return [each for path in files.find_retimed_paths(run) for each in read_lines(path)]


def read_cell(run: Path) -> dict[str, Any]:
    """Returns what ``<results>/runs/<run_id>/cell.json`` holds, empty where there is none:
    ``settings``, ``starts`` (the provenance of each) and, once the cell is finished, ``result``,
    what each answer scored (``scores``, by score and prompt id), the ``job`` that finished it, the
    baseline's timings that it was ``compared`` with, and the ``generations`` it was made of. Raises
    ValueError: the file cannot be used; the message names it and says why.
    """
    return _read_sealed(run / files.CELL)


def read_models(run: Path) -> dict[str, Any]:
    """Returns what ``models.json`` beside it holds, empty where there is none: digests of the
    ``models`` that decode the cell, by file, and of the ``token_ids`` asked. Raises ValueError: as
    ``read_cell``.
    """
    return _read_sealed(run / files.MODELS)


def _read_sealed(path: Path) -> dict[str, Any]:
    """Returns what a file of a cell's folder holds; nothing where there is none."""
    try:
        content = seals.read_checked(path)
        if content["run_id"] != path.parent.name:
            raise UsageError(f"it is of run {content['run_id']!r}")
        check(StoredCell, content)
    except FileNotFoundError:
        return {}
    except _FAULTS as error:
        why = f"{str(path)!r} is not as it was written: {one_line(error, 200)}"
        raise UsageError(f"{why}; run its experiment again") from error
    return content


def measure(path: Path, size: int | None = None) -> dict[str, Any]:
    """What tells generations from others: bytes and SHA-256 of a file, or of its first ``size``."""
    part = path.read_bytes()[:size] if path.is_file() else b""
    return {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}


def check_cell(run: Path, cell: Mapping[str, Any], whole: bool = False) -> None:
    """Raises ValueError: a cell's result was made of other generations than are in its folder, or,
    where they are to be the ``whole`` file, of fewer, as while more repeats are decoded.
    """
    path = run / files.GENERATIONS
    made_of = cell.get("generations")
    if made_of is not None and measure(path, None if whole else made_of["bytes"]) != made_of:
        raise UsageError(f"it was made of other generations than {path} holds")


def write_cell(run: Path, content: Mapping[str, Any]) -> None:
    """Writes what ``read_cell`` reads."""
    files.write_json(run / files.CELL, seals.add_checksum({**content, "run_id": run.name}))


def write_models(run: Path, content: Mapping[str, Any]) -> None:
    """Writes what ``read_models`` reads."""
    files.write_json(run / files.MODELS, seals.add_checksum({**content, "run_id": run.name}))
