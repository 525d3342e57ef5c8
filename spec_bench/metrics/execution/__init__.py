"""What a model wrote, run in isolation: SQL judged by its result set, a program by its tests."""

from spec_bench.metrics.execution.code import PassAt1, check_code
from spec_bench.metrics.execution.sql import ExecutionAccuracy, check_sql

__all__ = ["ExecutionAccuracy", "PassAt1", "check_code", "check_sql"]
