"""The run id: a hash of the settings that change the numbers, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spec_bench.files import digest


def run_id(settings: Mapping[str, Any]) -> str:
    """The id of one cell.

    Args:
        settings: pair, task, prompts, generation, engine, decoder, energy, warm-up and seed, all
            resolved; output folder, sinks and names are no part of it.
    """
    return digest(settings)


def job_id(run_ids: Iterable[str]) -> str:
    """The id of a job: the set of its cells, so that a job resumed after a kill is the same job."""
    return digest(sorted(run_ids))
