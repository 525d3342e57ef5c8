"""Other names of ``spec_bench.report.rows``."""

from spec_bench.report.rows import (
    Group,
    Row,
    generations_of,
    groups_of,
    provenance_of,
    read_results,
    reason_of,
    rows_of,
)

__all__ = [
    "Group",
    "Row",
    "generations_of",
    "groups_of",
    "provenance_of",
    "read_results",
    "reason_of",
    "rows_of",
]
