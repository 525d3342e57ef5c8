"""A cell's files: ``generations.jsonl``, ``models.json`` (digests of its models) and ``cell.json``
(everything else).

Another process may be appending to them. A line of ``generations.jsonl`` is a generation's JSON
with a checksum: the CRC-32 of the cell's run id and of the line without the checksum. It fails for
a line that was cut, altered or copied from another cell. The JSON files have a digest of their
content. ``parquet`` packs the files.
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
from spec_bench.records.parquet import PackedRecords, pack_generations
from spec_bench.records.types import Generation
from spec_bench.settings.fields import to_one_line
from spec_bench.settings.foreign import MOST_S, StoredCell
from spec_bench.settings.validation import read_settings
from spec_bench.system import files
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
DIGEST_COLUMNS = ("target_digest", "draft_digest")
"""Columns that identify a row's models, see ``compute_digest_columns``."""
CODE_PARTS = ("rule", "tree policy", "drafter", "heads class")
"""Parts of a decoder that another package may define; their code is then part of its digests."""
_DIGEST_DIGITS = 16  # hex digits of a model's digest in a row
_FAULTS = (ValueError, KeyError, TypeError, OSError, RecursionError)
_CHECKSUMMED_LINE = re.compile(rb'(.*),"check":"([0-9a-f]{8})"}', re.DOTALL)


@dataclass(frozen=True)
class GenerationLines:
    """Content of a file of generations."""

    # valid lines in the file's order; only the last line of each repeat and prompt
    generations: tuple[Generation, ...] = ()
    # invalid lines: number and reason
    faults: tuple[str, ...] = ()
    torn_byte_count: int = 0  # bytes of an unfinished last line (of a killed job); not a fault


def format_generation_line(generation: Generation, run_id: str) -> str:
    """Formats a generation as a line of its cell's file, with the newline."""
    text = json.dumps(generation.to_json(), separators=(",", ":"))[:-1]
    return f'{text},"check":"{_compute_line_checksum(text.encode(), run_id)}"}}\n'


def read_generation_lines(
    path: Path, vocabulary_size: int | None = None, max_bytes: int | None = None
) -> GenerationLines:
    """Reads a cell's ``generations.jsonl``, from a folder named by its run id; empty if there is no
    such file. Reads at most ``max_bytes``. Token ids must be below ``vocabulary_size``, if it is
    given.
    """
    try:
        content = checksums.read_regular_file(path)[:max_bytes]
    except FileNotFoundError:
        return GenerationLines()
    except (OSError, ValueError) as error:
        return GenerationLines(faults=(getattr(error, "strerror", None) or str(error),))
    end = content.rfind(b"\n") + 1
    generations: dict[tuple[int, str], Generation] = {}
    faults = []
    for number, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        try:
            generation = _parse_generation_line(line, path.parent.name, vocabulary_size)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            faults.append(f"line {number}: {to_one_line(error, 120)}")
        else:
            generations[generation.repeat, generation.prompt_id] = generation
    return GenerationLines(tuple(generations.values()), tuple(faults), len(content) - end)


def rewrite_generations(path: Path, generations: Iterable[Generation]) -> None:
    """Replaces a cell's file of generations."""
    files.write_text(
        path,
        "".join(format_generation_line(generation, path.parent.name) for generation in generations),
    )


def _compute_line_checksum(text: bytes, run_id: str) -> str:
    return f"{crc32(text, crc32(run_id.encode())):08x}"


def _parse_generation_line(line: bytes, run_id: str, vocabulary_size: int | None) -> Generation:
    if not (match := _CHECKSUMMED_LINE.fullmatch(line)):
        raise UsageError("it has no check, as a whole line has")
    text = match[1]
    check = match[2].decode()
    if check != _compute_line_checksum(text, run_id):
        raise UsageError("its check does not fit: it was altered, or is another run's")
    generation = Generation.from_json(json.loads(text + b"}"))
    for token_id in (min(generation.tokens, default=0), max(generation.tokens, default=0)):
        if not 0 <= token_id < (vocabulary_size or 2**31):
            raise UsageError(f"token id {token_id}")
    for seconds in (generation.prefill_s, generation.decode_s):
        if not 0 <= seconds < MOST_S:
            raise UsageError(f"prefill_s or decode_s is {seconds}")
    return generation


def pack_valid_cell_folder(folder: Path) -> PackedRecords | None:
    """Packs a cell's folder, with the generations that its result was made from. None if the folder
    is missing, or damaged (which is logged).
    """
    path = folder / files.GENERATIONS
    try:
        cell = read_cell_json(folder)
        lines = read_generation_lines(path, max_bytes=(cell.get("generations") or {}).get("bytes"))
        if lines.faults:
            raise UsageError(f"{path}: {lines.faults[0]}")
        require_result_fits_generations(folder, cell)
        if not cell:
            return None
        return pack_cell_with_provenance(folder, cell, lines.generations)
    except _FAULTS as error:
        log.warning("%s", error)
        return None


def pack_cell_with_provenance(
    folder: Path, cell: Mapping[str, Any], generations: Sequence[Generation]
) -> PackedRecords:
    """Packs a cell's generations with its scores, its later timings and, as their origin, the
    provenance of its last start.
    """
    origin = (cell.get("starts") or [None])[-1]
    return pack_generations(
        folder.name, generations, origin, cell.get("scores"), read_retimed_generations(folder)
    )


def read_generations_skipping_damaged(path: Path) -> list[Generation]:
    """Reads a cell's generations in the file's order, without damaged lines; logs the first of
    these.
    """
    lines = read_generation_lines(path)
    if lines.faults:
        log.warning("%s: %s", path, lines.faults[0])
    return list(lines.generations)


def read_retimed_generations(folder: Path) -> list[Generation]:
    """Reads the baseline's generations that later sessions timed again, file by file."""
    return [
        generation
        for path in files.find_retimed_paths(folder)
        for generation in read_generations_skipping_damaged(path)
    ]


def read_cell_json(folder: Path) -> dict[str, Any]:
    """Reads ``<results>/runs/<run_id>/cell.json``; empty if there is no such file.

    It has ``settings``, ``starts`` (each one's provenance) and, once the cell is finished,
    ``result``, ``scores`` (by score and prompt id), the ``job`` that finished it, the baseline's
    timings that it was ``compared`` with, and a digest of its ``generations``. Raises UsageError,
    with the file and the reason, if it is damaged.
    """
    return _read_optional_json(folder / files.CELL)


def read_models_json(folder: Path) -> dict[str, Any]:
    """Reads the cell's ``models.json``: digests of the ``models``, by file, and of the prompts'
    ``token_ids``; empty if there is no such file. Raises UsageError as ``read_cell_json`` does.
    """
    return _read_optional_json(folder / files.MODELS)


def compute_digest_columns(models: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Computes the columns ``DIGEST_COLUMNS`` from the digests of a cell's models
    (``JobSettings.read_model_and_code_digests``); the target's column covers its tokenizer. Another
    package's code adds a column ``code_digest``.
    """
    if not models:
        return {}
    target_parts = ("target", "tokenizer")
    target = [dict(models[part]) for part in target_parts if part in models]
    code = {part: dict(models[part]) for part in CODE_PARTS if part in models}
    drafts = (dict(models[part]) for part in models if part not in (*target_parts, *CODE_PARTS))
    draft_digests = tuple(files.hash_json(digests, _DIGEST_DIGITS) for digests in drafts)
    return {
        "target_digest": files.hash_json(target, _DIGEST_DIGITS),
        "draft_digest": draft_digests,
        **({"code_digest": files.hash_json(code, _DIGEST_DIGITS)} if code else {}),
    }


def require_row_of_these_models(folder: Path, row: Mapping[str, Any]) -> None:
    """Checks that a row of a results file was measured with the models and token ids of the cell's
    folder, as far as both record them. Raises UsageError, with the digest, if they differ.
    """
    content = read_models_json(folder)
    digests = {
        **compute_digest_columns(content.get("models") or {}),
        "token_ids_digest": content.get("token_ids"),
    }
    for name, digest in digests.items():
        text = ",".join(digest) if isinstance(digest, tuple) else digest
        if text and row.get(name) and row[name] != text:
            raise UsageError(
                f"run {folder.name}: {name} is {row[name]!r}, and {text!r} of the answers in "
                f"{str(folder)!r}: they are of other models"
            )


def _read_optional_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file of a cell's folder and verifies it; empty if it is missing."""
    try:
        content = checksums.read_verified_json(path)
        if content["run_id"] != path.parent.name:
            raise UsageError(f"it is of run {content['run_id']!r}")
        read_settings(StoredCell, content)
    except FileNotFoundError:
        return {}
    except _FAULTS as error:
        message = f"{str(path)!r} is not as it was written: {to_one_line(error, 200)}"
        raise UsageError(f"{message}; run its experiment again") from error
    return content


def compute_size_and_digest(path: Path, max_bytes: int | None = None) -> dict[str, Any]:
    """Returns bytes and SHA-256 of a file, or of its first ``max_bytes`` bytes."""
    content = path.read_bytes()[:max_bytes] if path.is_file() else b""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def require_result_fits_generations(
    folder: Path, cell: Mapping[str, Any], compare_whole_file: bool = False
) -> None:
    """Raises UsageError unless a cell's result was made from the generations in its folder.
    ``compare_whole_file`` requires all of them, which fails while more repeats are decoded.
    """
    path = folder / files.GENERATIONS
    source = cell.get("generations")
    if (
        source is not None
        and compute_size_and_digest(path, None if compare_whole_file else source["bytes"]) != source
    ):
        raise UsageError(f"it was made of other generations than {path} holds")


def write_cell_json(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes ``cell.json`` with its checksum, see ``read_cell_json``."""
    files.write_redacted_json(
        folder / files.CELL, checksums.redact_and_add_checksum({**content, "run_id": folder.name})
    )


def write_models_json(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes ``models.json`` with its checksum, see ``read_models_json``."""
    files.write_redacted_json(
        folder / files.MODELS, checksums.redact_and_add_checksum({**content, "run_id": folder.name})
    )
