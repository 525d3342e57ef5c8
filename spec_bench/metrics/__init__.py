"""Metrics: pure functions of records."""

from typing import TYPE_CHECKING

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.metric import CellRecords, PromptSums, metric
from spec_bench.metrics.quality import (
    SCORES,
    check_references,
    digest_user_code,
    needs_references,
    refuse_shared_columns,
    register_score_function,
)
from spec_bench.metrics.summary import summarise
from spec_bench.settings.former import make_former_getattr

__all__ = [
    "SCORES",
    "CellRecords",
    "Interval",
    "PromptSums",
    "check_references",
    "digest_user_code",
    "metric",
    "needs_references",
    "refuse_shared_columns",
    "register_score_function",
    "summarise",
]

if not TYPE_CHECKING:
    __getattr__ = make_former_getattr(
        __name__, {"Sums": "PromptSums", "find_score": "register_score_function"}
    )
