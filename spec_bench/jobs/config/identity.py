"""What identifies a cell and a job: hashes of what changes a cell's numbers.

Knows settings as mappings and examples as tasks give them; nothing about models or results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spec_bench.records.sql_reference import SqlReference
from spec_bench.system.files import digest
from spec_bench.tasks import Example
from spec_bench.tasks.spider import databases_digest


def run_id(settings: Mapping[str, Any]) -> str:
    """The id of one cell.

    Args:
        settings: pair, task, prompts, generation, engine, decoder, energy, warm-up and seed, all
            resolved; output folder, sinks and names are not part of it.
    """
    return digest(settings)


def job_id(run_ids: Iterable[str]) -> str:
    """The id of a job: the set of its cells, so that a job resumed after a kill is the same job."""
    return digest(sorted(run_ids))


def stated(examples: tuple[Example, ...]) -> dict[str, Any]:
    """The examples as a cell's settings state them; with the digest of databases they query."""
    described: dict[str, Any] = {"count": len(examples), "digest": examples_digest(examples)}
    if files := {
        gold.database
        for example in examples
        for golds in example.references
        for gold in golds
        if isinstance(gold, SqlReference)
    }:
        described["databases"] = databases_digest(files)
    return described


def examples_digest(examples: tuple[Example, ...]) -> str:
    """What was asked and expected: a data set that changes under its name is another cell."""
    return digest(
        [
            # Answers that later turns continue; present only if a file of them was given.
            [each.id, each.turns, each.references, *([each.answers] if each.answers else [])]
            for each in examples
        ]
    )
