"""What cells measured prompt by prompt, in one small file that can be committed with their table.

``<results>/<name>/records.parquet`` has a line per run id, repeat and prompt: how it ended, its
seconds and joules, and what every target call did. The report makes of it what it makes of the raw
runs, to the byte. Texts and token ids are not in it. Where each cell was measured is kept in the
file's metadata, and so is the digest of the file's bytes (``seals``): no reader takes altered ones.
The same records give the same bytes. Each column stands once in ``columns.csv``: name, what it
holds, unit, definition. Knows nothing about what numbers mean, and loads pyarrow only where it is
needed.
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

from spec_bench.records import seals
from spec_bench.records.types import Delivery, Generation, StepRecord
from spec_bench.settings.fields import first_line
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key

if TYPE_CHECKING:
    import pyarrow as pa

    from spec_bench.records.windows import MeasuredLines

STEP = "step_"
SCORE = "score_"
PARTS = "parts_"
AGAIN = "/again"
CATEGORY = "category"
PROMPT_TOKENS = "prompt_tokens"
SERVED = "served_"
LISTED = (f"{SERVED}s", f"{SERVED}tokens")
UNKNOWN_TOKEN = -1
VERSION = 1
_META = b"spec_bench"
_SEAL = b"spec_bench.seal"
_NOT_KEPT = ("command",)  # paths of the machine it ran on
Scored = float | Sequence[float]
"""A number, of which the score is the mean, or numbers that make the score by their sums."""
Scores = Mapping[str, Mapping[str, Scored]]
"""What each prompt's answer scored: name of the score -> prompt id -> number or numbers."""
_NAMED = re.compile(f"^(?:{SCORE}|{PARTS})")


@dataclass(frozen=True)
class RecordField:
    """One column of the file."""

    # in the file; what begins with `step_` is a list with an entry per target call, and `LISTED`
    # are lists with an entry per chunk of a server's answer
    name: str
    holds: str  # `text`, `count` or `number`
    unit: str  # of a number; "" of other columns, and where it has none
    definition: str  # one line


with Path(__file__).with_name("columns.csv").open(newline="", encoding="utf-8") as _stream:
    FIELDS = tuple(RecordField(**line) for line in csv.DictReader(_stream))
OPTIONAL = (
    CATEGORY,
    PROMPT_TOKENS,
    "core_wait",
    "ended_at",
    *(each.name for each in FIELDS if each.name.startswith(SERVED)),
)
"""Columns that a file has where some line says something in them."""


def to_line(run_id: str, generation: Generation, scores: Scores) -> dict[str, Any]:
    """Returns a generation as a line, with its scores by column."""
    line = {**vars(generation), "run_id": run_id, "tokens": len(generation.tokens)}
    for each in fields(StepRecord):
        line[f"{STEP}{each.name}"] = [getattr(step, each.name) for step in generation.steps]
    line |= {f"{SERVED}counted": "", f"{SERVED}proposed": 0, f"{SERVED}attempts": 0}
    if (came := generation.delivery) is not None:
        line |= {f"{SERVED}{name}": getattr(came, field) for name, field in _DELIVERY.items()}
        line[f"{SERVED}proposed"] = int(came.proposed)
    for column, by_prompt in scores.items():
        line[column] = None if generation.repeat else by_prompt.get(generation.prompt_id)
    return line


_DELIVERY = {"s" if each.name == "seconds" else each.name: each.name for each in fields(Delivery)}
_GENERATION = frozenset(each.name for each in fields(Generation))


def from_line(line: Mapping[str, Any]) -> Generation:
    """Inverts ``to_line`` but for the token ids."""
    names = [each.name for each in fields(StepRecord)]
    steps = zip(*(line[f"{STEP}{name}"] for name in names), strict=True)
    data = {name: value for name, value in line.items() if name in _GENERATION}
    data["tokens"] = (UNKNOWN_TOKEN,) * line["tokens"]
    data["steps"] = [dict(zip(names, values, strict=True)) for values in steps]
    if line[LISTED[1]]:
        came = {field: line[f"{SERVED}{name}"] for name, field in _DELIVERY.items()}
        data["delivery"] = {**came, "proposed": bool(came["proposed"])}
    return Generation.from_json(data)


def score_columns(lines: pa.Table) -> list[str]:
    """Returns the columns of scores."""
    return [name for name in lines.column_names if _NAMED.match(name)]


def make_schema(scores: Iterable[str] = ()) -> pa.Schema:
    """Returns the columns with their types, then those of scores, one number before several."""
    import pyarrow as pa

    columns = [pa.field(each.name, arrow_type(each)) for each in FIELDS]
    parts = pa.list_(pa.field("element", pa.float64()))
    for name in sorted(scores, key=lambda name: (name.startswith(PARTS), name)):
        columns.append(pa.field(name, parts if name.startswith(PARTS) else pa.float64()))
    return pa.schema(columns)


def arrow_type(column: RecordField) -> pa.DataType:
    """Returns a column's type."""
    import pyarrow as pa

    kind = {"text": pa.string, "count": pa.int32, "number": pa.float64}[column.holds]()
    lists = column.name.startswith(STEP) + column.name.endswith("widths") + (column.name in LISTED)
    for _ in range(lists):
        kind = pa.list_(pa.field("element", kind))
    return kind


def _leaf_path(schema: pa.Schema, name: str) -> str:
    """Returns a column's place in the file's nesting."""
    kind = schema.field(name).type
    path = name
    while hasattr(kind, "value_type"):
        kind = kind.value_type
        path = f"{path}.list.element"
    return path


@dataclass(frozen=True)
class PackedRecords:
    """The lines of some cells."""

    # the columns of `FIELDS`, then `score_NAME` or `parts_NAME` for each score that some cell has;
    # the lines of a cell stand together, those of later timings last and below `RUN_ID/again`
    lines: pa.Table
    # run id -> where the cell was measured, as `measure.provenance` tells it
    origins: Mapping[str, Mapping[str, Any]]
    # digests of the tables beside the file, by their names
    tables: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Run id -> its lines."""
        names = self.lines.column("run_id").to_pylist()
        return group_by_key((name, place) for place, name in enumerate(names))

    @cached_property
    def windows(self) -> MeasuredLines:
        """The lines as arrays."""
        from spec_bench.records.windows import MeasuredLines

        return MeasuredLines(self.lines)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._places or run_id in self.origins

    @property
    def run_ids(self) -> list[str]:
        """Cells that have lines or an origin, those with lines first."""
        run_ids = (each.removesuffix(AGAIN) for each in self._places)
        return list(dict.fromkeys([*run_ids, *self.origins]))

    def of(self, run_ids: Iterable[str]) -> PackedRecords:
        """Returns some cells in this order; one that is not here has no lines."""
        named = list(run_ids)
        names = (name for each in named for name in (each, f"{each}{AGAIN}"))
        lines = (line for name in names for line in self._places.get(name, ()))
        origins = {each: self.origins[each] for each in named if each in self.origins}
        return PackedRecords(self._take_lines(lines), origins)

    def place(self, run_id: str) -> slice:
        """Returns where a cell's own lines stand, those of later timings left out."""
        lines = self._places.get(run_id)
        return slice(lines[0], lines[-1] + 1) if lines else slice(0, 0)

    def apart(self, run_id: str, *columns: str) -> dict[tuple[Any, ...], dict[str, int]]:
        """Returns a cell's lines by prompt, apart by what some columns have."""
        place = self.place(run_id)
        apart = dict[tuple[Any, ...], dict[str, int]]()
        values = (getattr(self.windows, name)[place].tolist() for name in ("prompt_id", *columns))
        for line, (prompt, *key) in enumerate(zip(*values, strict=True), place.start):
            apart.setdefault(tuple(key), {})[prompt] = line
        return apart

    def repeats(self, run_id: str) -> list[dict[str, int]]:
        """A cell's lines by prompt, of each repeat that has all prompts of the first."""
        whole = self.apart(run_id, "repeat")
        first = whole.get((0,), {})
        numbers = takewhile(lambda n: {*first} <= {*whole.get((n,), ())}, count() if first else ())
        return [{name: whole[n,][name] for name in first} for n in numbers]

    def generations(self, run_id: str) -> list[Generation]:
        """A cell's records in their order, none where it is not here; tokens are unknown."""
        return self.take_generations(self._places.get(run_id, ()))

    def take_generations(self, lines: Iterable[int]) -> list[Generation]:
        """Returns the records in some lines."""
        return [from_line(line) for line in self._take_lines(lines).to_pylist()]

    def _take_lines(self, lines: Iterable[int]) -> pa.Table:
        import pyarrow as pa

        return self.lines.take(pa.array(lines, pa.int64()))

    @cached_property
    def _columns_by_score(self) -> dict[str, list[pa.ChunkedArray]]:
        """Columns by the score that they are of."""
        names = score_columns(self.lines)
        return group_by_key((_NAMED.sub("", name), self.lines[name]) for name in names)

    def get_score(self, run_id: str, name: str) -> Mapping[str, Scored]:
        """Returns one score of a cell's answers by prompt id; {} where it has none."""
        for column in self._columns_by_score.get(name, ()):
            place = self.place(run_id)
            values = zip(self.windows.prompt_id[place], column[place].to_pylist(), strict=True)
            if known := {prompt: value for prompt, value in values if value is not None}:
                return known
        return {}

    def scores(self, run_id: str) -> Scores:
        """Returns what the answers of a cell scored."""
        every = {name: self.get_score(run_id, name) for name in self._columns_by_score}
        return {name: scored for name, scored in every.items() if scored}


def pack(
    run_id: str,
    done: Iterable[Generation],
    origin: Mapping[str, Any] | None,
    scores: Scores | None = None,
    retimed: Iterable[Generation] = (),
) -> PackedRecords:
    """Returns the lines of one cell."""
    import pyarrow as pa

    by_column = {}  # a score of one number a prompt, or of several
    for name, by_prompt in (scores or {}).items():
        several = any(isinstance(value, Sequence) for value in by_prompt.values())
        by_column[f"{PARTS if several else SCORE}{name}"] = by_prompt
    lines = [to_line(run_id, each, by_column) for each in done]
    lines += [to_line(f"{run_id}{AGAIN}", each, {}) for each in retimed]
    schema = make_schema(by_column)
    kept = {k: v for k, v in (origin or {}).items() if k not in _NOT_KEPT}
    return PackedRecords(pa.Table.from_pylist(lines, schema), {run_id: kept} if kept else {})


def concat(parts: Iterable[PackedRecords]) -> PackedRecords:
    """Returns the lines of several, one after the other."""
    import pyarrow as pa

    every = list(parts)
    tables = [make_schema().empty_table(), *(part.lines for part in every)]
    lines = pa.concat_tables(tables, promote_options="default")
    return PackedRecords(lines, {k: v for part in every for k, v in part.origins.items()})


def write(path: Path, packed: PackedRecords, tables: Mapping[str, str] | None = None) -> None:
    """Writes a file as a whole, with digests of ``tables``; equal content is equal bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    # A score that no line has, as where its cells are no longer here, is no column.
    named = score_columns(packed.lines)
    count = len(packed.lines)
    schema = make_schema(column for column in named if packed.lines[column].null_count < count)
    for name in OPTIONAL:
        if not any(packed.lines[name].to_pylist()):
            schema = schema.remove(schema.get_field_index(name))
    numbers = [each.name for each in schema if each.type == pa.float64()]
    measured: dict[str, dict[str, Any]] = {}  # a job's cells share their origin: it stands once
    for run_id, origin in packed.origins.items():
        same = measured.setdefault(json.dumps(origin), {"cells": [], "origin": origin})
        same["cells"].append(run_id)
    meta = {"version": VERSION, "measured": list(measured.values()), "tables": dict(tables or {})}
    lines = packed.lines.select(schema.names).combine_chunks()
    with files.atomic_replace(path) as partial:
        with parquet.ParquetWriter(
            partial,
            schema,
            compression="zstd",
            compression_level=9,
            use_dictionary=[
                _leaf_path(schema, name) for name in schema.names if name not in numbers
            ],
            # The bytes of a number are alike by their place in it, which is how they are stored.
            use_byte_stream_split=numbers,
            write_statistics=False,
            store_schema=False,
        ) as writer:
            writer.write_table(lines, row_group_size=max(1, len(lines)))
            # The digest comes last, where ``seals`` looks for it.
            text = json.dumps(meta, separators=(",", ":"))
            writer.add_key_value_metadata({_META: text, _SEAL: seals.BLANK})
        partial.write_bytes(seals.fill_in_checksum(partial.read_bytes()))


def _unusable(path: Path, why: object) -> ValueError:
    message = f"{str(path)!r} is no file of records: {first_line(why)}"
    return UsageError(f"{message}; restore it, or run its experiment again")


def check(path: Path) -> bytes:
    """Returns the bytes of a file that is as it was written."""
    try:
        data = seals.read_regular_file(path)
        seals.check(data)
    except (OSError, ValueError) as error:
        raise _unusable(path, getattr(error, "strerror", None) or error) from error
    return data


def find_altered(path: Path, tables: Mapping[str, str]) -> Iterator[str]:
    """Yields a line for each table beside a file of records whose digest is another."""
    for name, digest in tables.items():
        table = path.with_name(name)
        if not table.is_file() or files.file_digest(table) != digest:
            yield f"{table}: it is not the table that {path.name} was written with"


def check_tables(path: Path) -> None:
    """Raises ValueError: a table beside a file of records was altered since that was written."""
    if path.is_file():
        for fault in find_altered(path, read_once(path).tables):
            raise UsageError(f"{fault}; restore it, or run its experiment again")


def read_once(path: Path) -> PackedRecords:
    """Reads a file unless it is as it was when it was read last."""
    state = path.lstat()
    return _read_state(path, state.st_ino, state.st_mtime_ns)


@lru_cache(maxsize=4)
def _read_state(path: Path, *_: int) -> PackedRecords:
    return read(path)


def read(path: Path) -> PackedRecords:
    """The cells of a file. Raises ValueError: it is none of records, or was altered."""
    import pyarrow as pa
    from pyarrow import parquet

    data = check(path)
    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        meta = json.loads((file.metadata.metadata or {})[_META])
        if meta["version"] != VERSION:
            raise UsageError(f"version {meta['version']}, this one reads {VERSION}")
        lines = _add_missing_columns(file.read(use_threads=False))
        schema = make_schema(score_columns(lines))
        lines = lines.select(schema.names).cast(schema)
        origins = {run_id: each["origin"] for each in meta["measured"] for run_id in each["cells"]}
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError, MemoryError) as error:
        raise _unusable(path, error) from error
    return PackedRecords(lines, origins, meta.get("tables", {}))


def _add_missing_columns(lines: pa.Table) -> pa.Table:
    """Returns the lines with what files of before do not have: no number, no text, repeat 0."""
    import pyarrow as pa

    nothing = {"text": "", "count": 0, "number": None}
    for each in FIELDS:
        needed = each.name.startswith(STEP) or each.name.endswith("_id")
        if each.name not in lines.column_names and not needed:
            unknown = each.name in (*LISTED, PROMPT_TOKENS)
            value = None if unknown else nothing[each.holds]
            lines = lines.append_column(each.name, pa.array([value] * len(lines), arrow_type(each)))
    return lines
