"""Other names of ``spec_bench.report.tables.commands``."""

from spec_bench.report.tables.commands import commands_for

__all__ = ["commands_for"]
