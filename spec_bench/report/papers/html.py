"""Other names of ``spec_bench.report.tables.render``."""

from spec_bench.report.tables.render import html as render
from spec_bench.report.tables.render import html_fragment as fragment

__all__ = ["fragment", "render"]
