"""Other names of ``spec_bench.report.tables.build``."""

from spec_bench.report.tables.build import build_table, check_pair

__all__ = ["build_table", "check_pair"]
