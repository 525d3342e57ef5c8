"""A cell's result as one flat row of the tidy table."""

from __future__ import annotations

from typing import Any

from spec_bench import columns
from spec_bench.records import CellResult


def row_of(result: CellResult) -> dict[str, Any]:
    """Labels first, then metrics; a failed cell claims nothing, not even that it is lossless."""
    own = {
        "lossless": result.lossless if result.status != "failed" else "",
        "status": result.status,
        "reason": result.reason,
        "run_id": result.run_id,
    }
    metrics = result.metrics if result.status != "failed" else {}
    return {**dict.fromkeys(columns.labels(), ""), **result.labels, **own, **metrics}
