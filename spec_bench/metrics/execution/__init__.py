"""What a model wrote, run in isolation: SQL judged by its result set, a program by its tests."""

from spec_bench.metrics.execution.accuracy import ExecutionAccuracy, check_sql
from spec_bench.metrics.execution.code import PassAt1, check_code

__all__ = ["ExecutionAccuracy", "PassAt1", "check_code", "check_sql"]
