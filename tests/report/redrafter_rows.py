"""Other names of ``tests.report.rows``."""

from typing import Any

from tests.report.rows import MT_BENCH, around, head, redrafter_batches, redrafter_beams, row
from tests.report.rows import redrafter_grid as grid

__all__ = ["around", "batches", "beams", "cell", "grid", "head"]

batches, beams = redrafter_batches, redrafter_beams


def cell(experiment: str, decoder: str, spec: str = "-", **values: Any) -> dict[str, Any]:
    return row(decoder, spec, half=0.1, **{**MT_BENCH, "experiment": experiment, **values})
