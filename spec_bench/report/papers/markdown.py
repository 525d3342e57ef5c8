"""Another name of ``spec_bench.report.tables.render``."""

from spec_bench.report.tables.render import markdown as render

__all__ = ["render"]
