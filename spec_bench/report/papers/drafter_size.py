"""Other names of ``spec_bench.report.pairs``."""

from spec_bench.report.pairs import drafter_size, written

__all__ = ["drafter_size", "written"]
