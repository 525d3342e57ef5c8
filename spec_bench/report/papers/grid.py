"""Other names of ``spec_bench.report.tables.grid``."""

from spec_bench.report.paper import Column
from spec_bench.report.tables.grid import Cell, Estimate, Grid, Line, Wanted, mark_best

__all__ = ["Cell", "Column", "Estimate", "Grid", "Line", "Wanted", "mark_best"]
