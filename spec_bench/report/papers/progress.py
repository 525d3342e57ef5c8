"""Other names of ``spec_bench.report.tables.progress``."""

from spec_bench.report.tables.progress import Progress, progress_of, wanted_of

__all__ = ["Progress", "progress_of", "wanted_of"]
