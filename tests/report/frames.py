"""Other names of ``tests.report.rows``."""

from functools import partial

from tests.report import rows
from tests.report.rows import EMBEDDED, frame, record

__all__ = ["frame", "record", "row"]

row = partial(rows.row, half=0.1, **EMBEDDED)
