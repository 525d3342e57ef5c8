"""Metrics: pure functions of records."""

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.metric import CellRecords, Sums, metric
from spec_bench.metrics.quality import (
    SCORES,
    as_score,
    check_references,
    needs_references,
    own_code,
)
from spec_bench.metrics.summary import summary_of

__all__ = [
    "SCORES", "CellRecords", "Interval", "Sums", "as_score", "check_references", "metric",
    "needs_references", "own_code", "summary_of",
]  # fmt: skip
