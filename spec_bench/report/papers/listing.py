"""Other names of ``spec_bench.report.tables.listing``."""

from spec_bench.report.tables.listing import list_paper

__all__ = ["list_paper"]
