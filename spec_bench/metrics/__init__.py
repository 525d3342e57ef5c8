"""Metrics: pure functions of records."""

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.metric import CellRecords, PromptSums, metric
from spec_bench.metrics.quality import (
    SCORES,
    check_references,
    digest_user_code,
    find_score,
    needs_references,
)
from spec_bench.metrics.summary import summarise

__all__ = [
    "SCORES",
    "CellRecords",
    "Interval",
    "PromptSums",
    "check_references",
    "digest_user_code",
    "find_score",
    "metric",
    "needs_references",
    "summarise",
]
