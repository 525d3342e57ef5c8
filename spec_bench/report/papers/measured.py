"""Other names of ``spec_bench.report.tables.measured``."""

from spec_bench.files import results_files
from spec_bench.report.tables.measured import Measured, Row, read_measured

__all__ = ["Measured", "Row", "read_measured", "results_files"]
