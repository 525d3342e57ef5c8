"""Metrics: pure functions of records."""

from spec_bench.metrics.intervals import Interval
from spec_bench.metrics.quality import METRICS, build_metric, check_references, check_score
from spec_bench.metrics.summary import COLUMNS, quality_names, speedup_interval, summarise

__all__ = [
    "COLUMNS",
    "METRICS",
    "Interval",
    "build_metric",
    "check_references",
    "check_score",
    "quality_names",
    "speedup_interval",
    "summarise",
]
