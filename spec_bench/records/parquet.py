"""What cells measured prompt by prompt, in one small file that can be committed with their table.

``<results>/<name>/records.parquet`` has a line per run id, repeat and prompt: how it ended, its
seconds and joules, and what every target call did. The report makes of it what it makes of the raw
runs, to the byte. Texts and token ids are not in it. Where each cell was measured is kept in the
file's metadata, and so is the digest of the file's bytes (``seals``): no reader takes altered ones.
The same records give the same bytes. Knows nothing about what numbers mean, and loads pyarrow only
where a file is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_bench.records import seals
from spec_bench.records.line import (
    AGAIN,
    FIELDS,
    LISTED,
    OPTIONAL,
    PROMPT_TOKENS,
    STEP,
    Scored,
    Scores,
    column_of,
    generation_of,
    kind_of,
    leaf_of,
    line_of,
    schema_of,
    score_of,
    scores_in,
)
from spec_bench.records.types import Generation
from spec_bench.settings.fields import first_line
from spec_bench.system import files

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
_META, _SEAL = b"spec_bench", b"spec_bench.seal"
_MAGIC = b"PAR1"
_SEALS = "python -m spec_bench.report records {} --seal"
_NOT_KEPT = ("command",)  # paths of the machine it ran on


@dataclass(frozen=True)
class Packed:
    """The lines of some cells.

    Attributes:
        lines: the columns of ``FIELDS``, then ``score_NAME`` or ``parts_NAME`` for each score that
            some cell has; the lines of a cell stand together, those of later timings last and
            below ``RUN_ID/again``.
        origins: run id -> where the cell was measured, as ``measure.provenance`` tells it.
    """

    lines: pa.Table
    origins: Mapping[str, Mapping[str, Any]]

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Run id -> its first line and how many it has."""
        places, start = {}, 0
        for run_id, same in groupby(self.lines.column("run_id").to_pylist()):
            count = sum(1 for _ in same)
            places[run_id] = (start, count)
            start += count
        return places

    @property
    def run_ids(self) -> list[str]:
        """Cells that have lines or an origin, those with lines first."""
        run_ids = (each.removesuffix(AGAIN) for each in self._places)
        return list(dict.fromkeys([*run_ids, *self.origins]))

    def cell(self, run_id: str) -> Packed:
        """One cell alone; empty where it is not here."""
        import pyarrow as pa

        origin = {run_id: self.origins[run_id]} if run_id in self.origins else {}
        both = [self.lines_of(run_id), self.lines_of(f"{run_id}{AGAIN}")]
        return Packed(pa.concat_tables(both) if len(both[1]) else both[0], origin)

    def lines_of(self, run_id: str) -> pa.Table:
        """A cell's own lines, those of later timings left out."""
        start, count = self._places.get(run_id, (0, 0))
        return self.lines.slice(start, count)

    def generations(self, run_id: str) -> list[Generation]:
        """A cell's records in their order, none where it is not here.

        Of the tokens only the number was kept: each is ``UNKNOWN_TOKEN``.
        """
        return [generation_of(line) for line in self.lines_of(run_id).to_pylist()]

    def retimed(self, run_id: str) -> list[Generation]:
        """A baseline's records of later sittings, which timed it again beside added cells."""
        return self.generations(f"{run_id}{AGAIN}")

    def scores(self, run_id: str) -> Scores:
        """What the answers of a cell scored."""
        lines = self.lines_of(run_id)
        prompts, scores = lines["prompt_id"].to_pylist(), dict[str, Mapping[str, Scored]]()
        for column in scores_in(lines):
            values = zip(prompts, lines[column].to_pylist(), strict=True)
            if known := {prompt: value for prompt, value in values if value is not None}:
                scores[score_of(column)] = known
        return scores


def pack(
    run_id: str,
    done: Iterable[Generation],
    origin: Mapping[str, Any] | None,
    scores: Scores | None = None,
    retimed: Iterable[Generation] = (),
) -> Packed:
    """The lines of one cell."""
    import pyarrow as pa

    by_column = {
        column_of(name, by_prompt): by_prompt for name, by_prompt in (scores or {}).items()
    }
    lines = [line_of(run_id, each, by_column) for each in done]
    lines += [line_of(f"{run_id}{AGAIN}", each, {}) for each in retimed]
    schema = schema_of(by_column)
    columns = [
        pa.array([line.get(name) for line in lines], schema.field(name).type)
        for name in schema.names
    ]
    kept = {k: v for k, v in (origin or {}).items() if k not in _NOT_KEPT}
    return Packed(pa.table(columns, schema=schema), {run_id: kept} if kept else {})


def joined(parts: Iterable[Packed]) -> Packed:
    """The lines of several, one after the other."""
    import pyarrow as pa

    every = list(parts)
    tables = [schema_of().empty_table(), *(part.lines for part in every)]
    lines = pa.concat_tables(tables, promote_options="default")
    return Packed(lines, {k: v for part in every for k, v in part.origins.items()})


def write(path: Path, packed: Packed) -> None:
    """Writes a file as a whole; equal lines and origins give equal bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    # A score that no line has, as where its cells are no longer here, is no column.
    had = [
        column
        for column in scores_in(packed.lines)
        if packed.lines[column].null_count < len(packed.lines)
    ]
    schema = schema_of(had)
    for name in OPTIONAL:
        if not any(packed.lines[name].to_pylist()):
            schema = schema.remove(schema.get_field_index(name))
    numbers = [each.name for each in schema if each.type == pa.float64()]
    meta = {"version": VERSION, "measured": _by_origin(packed.origins)}
    lines = packed.lines.select(schema.names).combine_chunks()
    with files.replacing(path) as partial:
        with parquet.ParquetWriter(
            partial,
            schema,
            compression="zstd",
            compression_level=9,
            use_dictionary=[leaf_of(schema, name) for name in schema.names if name not in numbers],
            # The bytes of a number are alike by their place in it, which is how they are stored.
            use_byte_stream_split=numbers,
            write_statistics=False,
            store_schema=False,
        ) as writer:
            writer.write_table(lines, row_group_size=max(1, len(lines)))
            # The digest comes last, where ``seals`` looks for it.
            text = json.dumps(meta, separators=(",", ":"))
            writer.add_key_value_metadata({_META: text, _SEAL: seals.BLANK})
        partial.write_bytes(seals.seal(partial.read_bytes()))


def read(path: Path) -> Packed:
    """The cells of a file.

    Raises:
        ValueError: it cannot be read as one, was altered since it was written, or has no digest;
            the message names it and the way out.
    """
    return _parsed(path, _checked(path))


def check(path: Path) -> None:
    """Whether a file is as it was written, without parsing it.

    Raises:
        ValueError: as ``read`` does.
    """
    _checked(path)


def seal(path: Path) -> None:
    """Gives a file of an earlier version its digest; one that has a digest stays as it is.

    Raises:
        ValueError: as ``read`` does, but for a missing digest.
    """
    data = _bytes(path)
    try:
        seals.check(data)
    except seals.UnsealedError:
        write(path, _parsed(path, data))
    except ValueError as error:
        raise _unusable(path, error) from error


def _checked(path: Path) -> bytes:
    """The bytes of a file whose digest fits."""
    data = _bytes(path)
    try:
        seals.check(data)
    except seals.UnsealedError as error:
        if not data.startswith(_MAGIC) or not data.endswith(_MAGIC):
            raise _unusable(path, "it was cut, or is something else") from error
        raise seals.UnsealedError(
            f"{str(path)!r} has no digest, as files of earlier versions: run its experiment again, "
            f"or take it as it is: {_SEALS.format(path.with_name(files.RESULTS))}"
        ) from error
    except ValueError as error:
        raise _unusable(path, error) from error
    return data


def _bytes(path: Path) -> bytes:
    """What a file holds."""
    try:
        return seals.bytes_of(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, getattr(error, "strerror", None) or error) from error


def _unusable(path: Path, why: object) -> ValueError:
    message = f"{str(path)!r} is no file of records: {first_line(why)}"
    return ValueError(f"{message}; restore it, or run its experiment again")


def _parsed(path: Path, data: bytes) -> Packed:
    """The cells of a file's bytes.

    Raises:
        ValueError: they cannot be read as a file of records, or a later version wrote them.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        meta = json.loads((file.metadata.metadata or {})[_META])
        if meta["version"] != VERSION:
            raise ValueError(f"version {meta['version']}, this one reads {VERSION}")
        lines = _completed(file.read(use_threads=False))
        schema = schema_of(scores_in(lines))
        lines = lines.select(schema.names).cast(schema)
        origins = {run_id: each["origin"] for each in meta["measured"] for run_id in each["cells"]}
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError, MemoryError) as error:
        raise _unusable(path, error) from error
    return Packed(lines, origins)


def _completed(lines: pa.Table) -> pa.Table:
    """The lines with what files of before do not have: no number, no text, repeat 0.

    Which cell, which prompt and what its target calls did must be there.
    """
    import pyarrow as pa

    nothing = {"text": "", "count": 0, "number": None}
    for each in FIELDS:
        needed = each.name.startswith(STEP) or each.name.endswith("_id")
        if each.name not in lines.column_names and not needed:
            unknown = each.name in (*LISTED, PROMPT_TOKENS)
            value = None if unknown else nothing[each.holds]
            lines = lines.append_column(each.name, pa.array([value] * len(lines), kind_of(each)))
    return lines


def _by_origin(origins: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cells of a job share their origin, so it is written once."""
    groups: dict[str, dict[str, Any]] = {}
    for run_id, origin in origins.items():
        key = json.dumps(origin)
        groups.setdefault(key, {"cells": [], "origin": origin})["cells"].append(run_id)
    return list(groups.values())
