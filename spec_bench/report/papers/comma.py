"""Another name of ``spec_bench.report.tables.render``."""

from spec_bench.report.tables.render import comma as render

__all__ = ["render"]
