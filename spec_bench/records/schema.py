"""The types of the columns of ``records.parquet``, those of scores included.

Knows ``fields`` and pyarrow, which it loads only when it is asked for a type; nothing about
lines or files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spec_bench.records.fields import FIELDS, LISTED, PARTS, SCORE, STEP, Field

if TYPE_CHECKING:
    import pyarrow as pa

_NAMED = re.compile(f"^(?:{SCORE}|{PARTS})")


def scores_in(lines: pa.Table) -> list[str]:
    """The columns of scores."""
    return [name for name in lines.column_names if _NAMED.match(name)]


def score_of(column: str) -> str:
    """The score that a column holds."""
    return _NAMED.sub("", column)


def schema_of(scores: Iterable[str] = ()) -> pa.Schema:
    """The columns with their types, then those of scores, one number before several."""
    import pyarrow as pa

    found = [pa.field(each.name, kind_of(each)) for each in FIELDS]
    parts = pa.list_(pa.field("element", pa.float64()))
    for name in sorted(scores, key=lambda name: (name.startswith(PARTS), name)):
        found.append(pa.field(name, parts if name.startswith(PARTS) else pa.float64()))
    return pa.schema(found)


def kind_of(field: Field) -> pa.DataType:
    """A column's type."""
    import pyarrow as pa

    kind = {"text": pa.string, "count": pa.int32, "number": pa.float64}[field.holds]()
    lists = field.name.startswith(STEP) + field.name.endswith("widths") + (field.name in LISTED)
    for _ in range(lists):
        kind = pa.list_(pa.field("element", kind))
    return kind


def leaf_of(schema: pa.Schema, name: str) -> str:
    """A column's place in the file's own nesting."""
    kind, path = schema.field(name).type, name
    while hasattr(kind, "value_type"):
        kind, path = kind.value_type, f"{path}.list.element"
    return path
