"""Execution accuracy: SQL that a model wrote, run in isolation and judged by its result set."""

from spec_bench.metrics.execution.accuracy import ExecutionAccuracy, check_sql

__all__ = ["ExecutionAccuracy", "check_sql"]
