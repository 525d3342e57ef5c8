"""A cell's result as one flat row of plain values, and back.

Here alone what is typed in ``records`` becomes text: names joined by commas, ``true`` or ``false``,
reasons in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from spec_bench.records.reasons import parse_reasons
from spec_bench.records.types import CellFacts, CellResult
from spec_bench.vocabulary import columns

Row = dict[str, Any]


def labels_of(facts: CellFacts) -> dict[str, str | int | float]:
    """What a cell is, flat; what it does not have is ""."""
    return {
        **vars(facts),
        "draft": ",".join(facts.draft),
        "tree_attention": str(facts.tree_attention).lower(),
        "simulated_acceptance": ",".join(f"{share:g}" for share in facts.simulated_acceptance),
        "later_turns": facts.later_turns or "",
        "draft_revision": ",".join(facts.draft_revision),
        "threads": "" if facts.threads is None else facts.threads,
        "draft_temperature": "" if facts.draft_temperature is None else facts.draft_temperature,
    }


def facts_of(labels: Mapping[str, Any]) -> CellFacts:
    """Inverts ``labels_of``; labels that older records lack have their defaults."""
    known = {each.name: labels[each.name] for each in fields(CellFacts) if each.name in labels}
    stated = str(known.get("simulated_acceptance", ""))
    drafted = str(known.get("draft_temperature", ""))
    return CellFacts(
        **{
            **known,
            "draft": _split(str(known["draft"])),
            "tree_attention": str(known.get("tree_attention", True)).lower() != "false",
            "simulated_acceptance": tuple(map(float, _split(stated))),
            "later_turns": known.get("later_turns") or None,
            "draft_revision": _split(str(known.get("draft_revision", ""))),
            "threads": int(known["threads"]) if known.get("threads") else None,
            "draft_temperature": float(drafted) if drafted else None,
        }
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


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)
