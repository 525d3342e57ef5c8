"""A cell's result as one flat row of the tidy table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_bench.records import CellResult

LABELS = (
    "pair",
    "target",
    "draft",
    "task",
    "decoder",
    "spec",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "batch_size",
    "tree_attention",
    "simulated_acceptance",
    "lossless",
    "status",
    "reason",
    "run_id",
    "baseline",
)


# What has an interval and is no quality score.
EFFICIENCY = frozenset(
    {
        "block_efficiency",
        "mbsu",
        "acceptance_rate",
        "token_rate",
        "token_rate_end_to_end",
        "speedup",
        "host_overhead",
        "energy_j_per_token",
        "beam_width",
        "perplexity",
        "latency_s",
        "token_rate_per_request",
    }
)


def scores_of(row: Mapping[str, Any]) -> list[str]:
    """The columns of a row that hold a quality score, those of metric modules too."""
    return [name for name in row if f"{name}_low" in row and name not in EFFICIENCY]


def row_of(result: CellResult) -> dict[str, Any]:
    """Labels first, then metrics; a failed cell claims nothing, not even that it is lossless."""
    own = {
        "lossless": result.lossless if result.status != "failed" else "",
        "status": result.status,
        "reason": result.reason,
        "run_id": result.run_id,
    }
    labels = {**result.labels, **own}
    metrics = result.metrics if result.status != "failed" else {}
    return {**{name: labels.get(name, "") for name in LABELS}, **labels, **metrics}
