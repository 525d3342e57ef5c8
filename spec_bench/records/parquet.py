"""Measurements of cells by prompt, in one small file that can be committed with their table.

``<results>/<name>/records.parquet`` has a line per run id, repeat and prompt: how it ended, its
seconds and joules, and the counts of every target call, but no texts and token ids. A report from
it equals a report from the raw runs byte for byte. The file's metadata have each cell's origin and
a digest of the file's bytes (``checksums``), which every reader verifies. Equal records give equal
bytes. ``columns.csv`` defines the columns. Does not interpret the numbers, and imports pyarrow only
when it is needed.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_bench.records import checksums
from spec_bench.records.types import Generation, ServerChunks, StepRecord
from spec_bench.settings.fields import get_first_line
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key

if TYPE_CHECKING:
    import pyarrow as pa

    from spec_bench.records.arrays import GenerationArrays

STEP_PREFIX = "step_"
SCORE_PREFIX = "score_"
PARTS_PREFIX = "parts_"
RETIMED_SUFFIX = "/again"
CATEGORY = "category"
PROMPT_TOKENS = "prompt_tokens"
SERVED_PREFIX = "served_"
CHUNK_LIST_COLUMNS = (f"{SERVED_PREFIX}s", f"{SERVED_PREFIX}tokens")
UNKNOWN_TOKEN = -1
VERSION = 1
_META = b"spec_bench"
_SEAL = b"spec_bench.seal"
_UNPACKED_ORIGIN_KEYS = ("command",)  # contains paths of the machine
Scored = float | Sequence[float]
"""A prompt's score: a number to average, or several numbers that are summed over prompts."""
Scores = Mapping[str, Mapping[str, Scored]]
"""Scores of answers: name of the score -> prompt id -> number or numbers."""
_SCORE_COLUMN = re.compile(f"^(?:{SCORE_PREFIX}|{PARTS_PREFIX})")


@dataclass(frozen=True)
class RecordField:
    """One column of the file."""

    # `step_...` are lists with an entry per target call, `CHUNK_LIST_COLUMNS` lists with an entry
    # per chunk of a server's answer
    name: str
    holds: str  # `text`, `count` or `number`
    unit: str  # of a number, or ""
    definition: str  # one line


with Path(__file__).with_name("columns.csv").open(newline="", encoding="utf-8") as _stream:
    FIELDS = tuple(RecordField(**line) for line in csv.DictReader(_stream))
OPTIONAL_COLUMNS = (
    CATEGORY,
    PROMPT_TOKENS,
    "core_wait",
    "ended_at",
    *(column.name for column in FIELDS if column.name.startswith(SERVED_PREFIX)),
)
"""Columns that a file has only if some line fills them."""


def generation_to_line(
    run_id: str, generation: Generation, scores_by_column: Scores
) -> dict[str, Any]:
    """Converts a generation to a line, with its scores by column."""
    line = {
        **vars(generation),
        "run_id": run_id,
        "tokens": len(generation.tokens),
    }
    for step_field in fields(StepRecord):
        line[f"{STEP_PREFIX}{step_field.name}"] = [
            getattr(step, step_field.name) for step in generation.steps
        ]
    line |= {
        f"{SERVED_PREFIX}counted": "",
        f"{SERVED_PREFIX}proposed": 0,
        f"{SERVED_PREFIX}attempts": 0,
    }
    if (delivery := generation.delivery) is not None:
        line |= {
            f"{SERVED_PREFIX}{name}": getattr(delivery, field)
            for name, field in _DELIVERY_FIELD_BY_COLUMN.items()
        }
        line[f"{SERVED_PREFIX}proposed"] = int(delivery.proposed)
    for column, by_prompt in scores_by_column.items():
        line[column] = None if generation.repeat else by_prompt.get(generation.prompt_id)
    return line


_DELIVERY_FIELD_BY_COLUMN = {
    "s" if part.name == "seconds" else part.name: part.name for part in fields(ServerChunks)
}
_GENERATION_FIELDS = frozenset(part.name for part in fields(Generation))


def generation_from_line(line: Mapping[str, Any]) -> Generation:
    """Converts a line back to a generation; all its token ids are ``UNKNOWN_TOKEN``."""
    names = [step_field.name for step_field in fields(StepRecord)]
    steps = zip(*(line[f"{STEP_PREFIX}{name}"] for name in names), strict=True)
    data = {name: value for name, value in line.items() if name in _GENERATION_FIELDS}
    data["tokens"] = (UNKNOWN_TOKEN,) * line["tokens"]
    data["steps"] = [dict(zip(names, values, strict=True)) for values in steps]
    if line[CHUNK_LIST_COLUMNS[1]]:
        delivery = {
            field: line[f"{SERVED_PREFIX}{name}"]
            for name, field in _DELIVERY_FIELD_BY_COLUMN.items()
        }
        data["delivery"] = {**delivery, "proposed": bool(delivery["proposed"])}
    return Generation.from_json(data)


def list_score_columns(lines: pa.Table) -> list[str]:
    """Lists the names of the columns of scores."""
    return [name for name in lines.column_names if _SCORE_COLUMN.match(name)]


def make_lines_schema(score_columns: Iterable[str] = ()) -> pa.Schema:
    """Builds the schema: the columns of ``FIELDS``, then scores that are numbers, then lists."""
    import pyarrow as pa

    columns = [pa.field(column.name, get_arrow_type(column)) for column in FIELDS]
    parts = pa.list_(pa.field("element", pa.float64()))
    for name in sorted(score_columns, key=lambda name: (name.startswith(PARTS_PREFIX), name)):
        columns.append(pa.field(name, parts if name.startswith(PARTS_PREFIX) else pa.float64()))
    return pa.schema(columns)


def get_arrow_type(column: RecordField) -> pa.DataType:
    """Returns a column's pyarrow type."""
    import pyarrow as pa

    arrow_type = {
        "text": pa.string,
        "count": pa.int32,
        "number": pa.float64,
    }[column.holds]()
    lists = (
        column.name.startswith(STEP_PREFIX)
        + column.name.endswith("widths")
        + (column.name in CHUNK_LIST_COLUMNS)
    )
    for _ in range(lists):
        arrow_type = pa.list_(pa.field("element", arrow_type))
    return arrow_type


def _get_leaf_path(schema: pa.Schema, name: str) -> str:
    """Returns the dotted path of a column's innermost values in the file."""
    arrow_type = schema.field(name).type
    path = name
    while hasattr(arrow_type, "value_type"):
        arrow_type = arrow_type.value_type
        path = f"{path}.list.element"
    return path


@dataclass(frozen=True)
class PackedRecords:
    """Lines of some cells."""

    # the columns of `FIELDS`, then `score_NAME` or `parts_NAME` for each score that some cell has;
    # a cell's lines are consecutive, later timings last and with the run id `RUN_ID/again`
    lines: pa.Table
    # run id -> where the cell was measured, see `measure.provenance`
    origins: Mapping[str, Mapping[str, Any]]
    # digests of the tables in the file's folder, by name
    digest_by_table: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _line_indices(self) -> dict[str, list[int]]:
        """Indices of lines by run id."""
        names = self.lines.column("run_id").to_pylist()
        return group_by_key((name, place) for place, name in enumerate(names))

    @cached_property
    def generation_arrays(self) -> GenerationArrays:
        """The lines as arrays."""
        from spec_bench.records.arrays import GenerationArrays

        return GenerationArrays(self.lines)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._line_indices or run_id in self.origins

    @property
    def run_ids(self) -> list[str]:
        """Run ids with lines, then run ids with an origin only."""
        run_ids = (name.removesuffix(RETIMED_SUFFIX) for name in self._line_indices)
        return list(dict.fromkeys([*run_ids, *self.origins]))

    def select_cells(self, run_ids: Iterable[str]) -> PackedRecords:
        """Selects cells in the order of ``run_ids``; a missing cell has no lines."""
        selected_ids = list(run_ids)
        names = (name for run_id in selected_ids for name in (run_id, f"{run_id}{RETIMED_SUFFIX}"))
        lines = (line for name in names for line in self._line_indices.get(name, ()))
        origins = {
            run_id: self.origins[run_id] for run_id in selected_ids if run_id in self.origins
        }
        return PackedRecords(self._take_lines(lines), origins)

    def get_line_range(self, run_id: str) -> slice:
        """Returns the range of a cell's lines, without later timings; empty if it is missing."""
        lines = self._line_indices.get(run_id)
        return slice(lines[0], lines[-1] + 1) if lines else slice(0, 0)

    def group_line_indices(
        self, run_id: str, *columns: str
    ) -> dict[tuple[Any, ...], dict[str, int]]:
        """Groups a cell's lines by the values of ``columns``: values -> prompt id -> line index."""
        line_range = self.get_line_range(run_id)
        groups = dict[tuple[Any, ...], dict[str, int]]()
        values = (
            getattr(self.generation_arrays, name)[line_range].tolist()
            for name in ("prompt_id", *columns)
        )
        for line, (prompt, *key) in enumerate(zip(*values, strict=True), line_range.start):
            groups.setdefault(tuple(key), {})[prompt] = line
        return groups

    def list_complete_repeats(self, run_id: str) -> list[dict[str, int]]:
        """Lists a cell's repeats, each as prompt id -> line index, up to the first repeat that
        lacks a prompt of repeat 0.
        """
        line_by_repeat = self.group_line_indices(run_id, "repeat")
        first_lines = line_by_repeat.get((0,), {})
        numbers = takewhile(
            lambda n: {*first_lines} <= {*line_by_repeat.get((n,), ())},
            count() if first_lines else (),
        )
        return [{name: line_by_repeat[n,][name] for name in first_lines} for n in numbers]

    def get_generations(self, run_id: str) -> list[Generation]:
        """Returns a cell's records in order, without token ids; none if the cell is missing."""
        return self.take_generations(self._line_indices.get(run_id, ()))

    def take_generations(self, lines: Iterable[int]) -> list[Generation]:
        """Returns the records of the given line indices."""
        return [generation_from_line(line) for line in self._take_lines(lines).to_pylist()]

    def _take_lines(self, lines: Iterable[int]) -> pa.Table:
        import pyarrow as pa

        return self.lines.take(pa.array(lines, pa.int64()))

    @cached_property
    def _columns_by_score(self) -> dict[str, list[pa.ChunkedArray]]:
        """Columns by their score's name."""
        names = list_score_columns(self.lines)
        return group_by_key((_SCORE_COLUMN.sub("", name), self.lines[name]) for name in names)

    def get_score(self, run_id: str, name: str) -> Mapping[str, Scored]:
        """Returns one score of a cell's answers by prompt id; {} if it has none."""
        for column in self._columns_by_score.get(name, ()):
            line_range = self.get_line_range(run_id)
            values = zip(
                self.generation_arrays.prompt_id[line_range],
                column[line_range].to_pylist(),
                strict=True,
            )
            if score_by_prompt := {prompt: value for prompt, value in values if value is not None}:
                return score_by_prompt
        return {}

    def get_scores(self, run_id: str) -> Scores:
        """Returns all scores of a cell's answers."""
        score_by_name = {name: self.get_score(run_id, name) for name in self._columns_by_score}
        return {
            name: score_by_prompt
            for name, score_by_prompt in score_by_name.items()
            if score_by_prompt
        }


def pack_generations(
    run_id: str,
    generations: Iterable[Generation],
    origin: Mapping[str, Any] | None,
    scores: Scores | None = None,
    retimed_generations: Iterable[Generation] = (),
) -> PackedRecords:
    """Packs the lines of one cell."""
    import pyarrow as pa

    by_column = {}
    for name, by_prompt in (scores or {}).items():
        is_list = any(isinstance(value, Sequence) for value in by_prompt.values())
        by_column[f"{PARTS_PREFIX if is_list else SCORE_PREFIX}{name}"] = by_prompt
    lines = [generation_to_line(run_id, generation, by_column) for generation in generations]
    lines += [
        generation_to_line(f"{run_id}{RETIMED_SUFFIX}", generation, {})
        for generation in retimed_generations
    ]
    schema = make_lines_schema(by_column)
    stored_origin = {k: v for k, v in (origin or {}).items() if k not in _UNPACKED_ORIGIN_KEYS}
    return PackedRecords(
        pa.Table.from_pylist(lines, schema), {run_id: stored_origin} if stored_origin else {}
    )


def concat_records(cells: Iterable[PackedRecords]) -> PackedRecords:
    """Concatenates the lines of several cells."""
    import pyarrow as pa

    all_cells = list(cells)
    tables = [make_lines_schema().empty_table(), *(cell.lines for cell in all_cells)]
    lines = pa.concat_tables(tables, promote_options="default")
    return PackedRecords(lines, {k: v for cell in all_cells for k, v in cell.origins.items()})


def write_records(
    path: Path, packed: PackedRecords, digest_by_table: Mapping[str, str] | None = None
) -> None:
    """Writes a file of records atomically, with its tables' digests; equal content gives equal
    bytes.
    """
    import pyarrow as pa
    from pyarrow import parquet

    # A score without any value (its cells are gone) gets no column.
    score_names = list_score_columns(packed.lines)
    count = len(packed.lines)
    schema = make_lines_schema(
        column for column in score_names if packed.lines[column].null_count < count
    )
    for name in OPTIONAL_COLUMNS:
        if not any(packed.lines[name].to_pylist()):
            schema = schema.remove(schema.get_field_index(name))
    numbers = [part.name for part in schema if part.type == pa.float64()]
    entry_by_origin: dict[str, dict[str, Any]] = {}  # a job's cells share their origin
    for run_id, origin in packed.origins.items():
        entry = entry_by_origin.setdefault(json.dumps(origin), {"cells": [], "origin": origin})
        entry["cells"].append(run_id)
    meta = {
        "version": VERSION,
        "measured": list(entry_by_origin.values()),
        "tables": dict(digest_by_table or {}),
    }
    lines = packed.lines.select(schema.names).combine_chunks()
    with files.atomic_replace(path) as partial:
        with parquet.ParquetWriter(
            partial,
            schema,
            compression="zstd",
            compression_level=9,
            use_dictionary=[
                _get_leaf_path(schema, name) for name in schema.names if name not in numbers
            ],
            # Storing the n-th bytes of all numbers together compresses better.
            use_byte_stream_split=numbers,
            write_statistics=False,
            store_schema=False,
        ) as writer:
            writer.write_table(lines, row_group_size=max(1, len(lines)))
            # ``checksums`` expects the digest at the end.
            text = json.dumps(meta, separators=(",", ":"))
            writer.add_key_value_metadata({_META: text, _SEAL: checksums.BLANK})
        partial.write_bytes(checksums.fill_in_checksum(partial.read_bytes()))


def _make_records_error(path: Path, reason: object) -> ValueError:
    message = f"{str(path)!r} is no file of records: {get_first_line(reason)}"
    return UsageError(f"{message}; restore it, or run its experiment again")


def read_verified_bytes(path: Path) -> bytes:
    """Reads a file of records and verifies its digest."""
    try:
        content = checksums.read_regular_file(path)
        checksums.verify_checksum(content)
    except (OSError, ValueError) as error:
        raise _make_records_error(path, getattr(error, "strerror", None) or error) from error
    return content


def describe_altered_tables(path: Path, digest_by_table: Mapping[str, str]) -> Iterator[str]:
    """Yields a message for each table of the file's folder that was altered."""
    for name, digest in digest_by_table.items():
        table = path.with_name(name)
        if not table.is_file() or files.hash_file(table) != digest:
            yield f"{table}: it is not the table that {path.name} was written with"


def require_unaltered_tables(path: Path) -> None:
    """Raises UsageError if a table was altered since its folder's file of records was written."""
    if path.is_file():
        for fault in describe_altered_tables(path, read_records_cached(path).digest_by_table):
            raise UsageError(f"{fault}; restore it, or run its experiment again")


def read_records_cached(path: Path) -> PackedRecords:
    """Reads a file of records, from a cache if it is unchanged."""
    file_stat = path.lstat()
    return _read_records_of_state(path, file_stat.st_ino, file_stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _read_records_of_state(path: Path, *_: int) -> PackedRecords:
    return read_records(path)


def read_records(path: Path) -> PackedRecords:
    """Reads a file of records. Raises UsageError if it is no such file, or was altered."""
    import pyarrow as pa
    from pyarrow import parquet

    content = read_verified_bytes(path)
    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        meta = json.loads((file.metadata.metadata or {})[_META])
        if meta["version"] != VERSION:
            raise UsageError(f"version {meta['version']}, this one reads {VERSION}")
        lines = _add_missing_columns(file.read(use_threads=False))
        schema = make_lines_schema(list_score_columns(lines))
        lines = lines.select(schema.names).cast(schema)
        origins = {
            run_id: entry["origin"] for entry in meta["measured"] for run_id in entry["cells"]
        }
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError, MemoryError) as error:
        raise _make_records_error(path, error) from error
    return PackedRecords(lines, origins, meta.get("tables", {}))


def _add_missing_columns(lines: pa.Table) -> pa.Table:
    """Adds the columns that older files lack (None, "" or 0) and renames ``sitting``."""
    import pyarrow as pa

    lines = lines.rename_columns(["session" if n == "sitting" else n for n in lines.column_names])

    empty_values = {"text": "", "count": 0, "number": None}
    for column in FIELDS:
        is_required = column.name.startswith(STEP_PREFIX) or column.name.endswith("_id")
        if column.name not in lines.column_names and not is_required:
            is_unknown = column.name in (*CHUNK_LIST_COLUMNS, PROMPT_TOKENS)
            value = None if is_unknown else empty_values[column.holds]
            lines = lines.append_column(
                column.name, pa.array([value] * len(lines), get_arrow_type(column))
            )
    return lines
