"""A cell's result as one flat row of plain values, and back.

Here alone what is typed in ``records`` becomes text: names joined by commas, ``true`` or ``false``,
reasons in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from spec_bench.records.types import CellFacts, CellResult, parse_reasons
from spec_bench.vocabulary import columns

Row = dict[str, Any]


def labels_of(facts: CellFacts) -> dict[str, str | int | float]:
    """What a cell is, flat; what it does not have is ""."""
    return {name: _flat(value) for name, value in vars(facts).items()}


def facts_of(labels: Mapping[str, Any]) -> CellFacts:
    """Inverts ``labels_of``; labels that older records lack have their defaults."""
    known = [each for each in fields(CellFacts) if each.name in labels]
    return CellFacts(**{each.name: _typed(str(each.type), labels[each.name]) for each in known})


def _flat(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(each if isinstance(each, str) else f"{each:g}" for each in value)
    return str(value).lower() if isinstance(value, bool) else value


def _typed(kind: str, value: Any) -> Any:
    """Inverts ``_flat``, by a field's annotation."""
    if kind.startswith("tuple"):
        parts = tuple(part for part in str(value).split(",") if part)
        return tuple(map(float, parts)) if "float" in kind else parts
    if kind == "bool":
        return str(value).lower() != "false"
    if not kind.endswith(" | None"):
        return value
    return (
        None if value in ("", None) else {"int": int, "float": float, "str": str}[kind[:-7]](value)
    )


def row_of(result: CellResult) -> Row:
    """A line of the results table; a failed cell claims nothing, not even that it is lossless."""
    status = {
        "lossless": result.lossless or "",
        "status": result.status,
        "reason": result.reason,
        "run_id": result.run_id,
        "baseline": result.baseline or "",
    }
    row = {**labels_of(result.facts), **status, **result.metrics}
    return {name: row[name] for name in columns.ordered(row)}


def stored(result: CellResult) -> Row:
    """A result as its cell's folder keeps it, ready for JSON."""
    return {
        "run_id": result.run_id,
        "labels": {**labels_of(result.facts), "baseline": result.baseline or ""},
        "lossless": result.lossless,
        "status": result.status,
        "reason": result.reason,
        "metrics": result.metrics,
    }


def restored(content: Mapping[str, Any]) -> CellResult:
    """Inverts ``stored``."""
    return CellResult(
        content["run_id"],
        facts_of(content["labels"]),
        content["status"],
        None if content["status"] == "failed" else content["lossless"],
        parse_reasons(content["reason"]),
        dict(content["metrics"]),
        content["labels"].get("baseline") or None,
    )
