"""Other names of ``tests.report.rows``."""

from functools import partial

from tests.report.rows import SQUAD, around, dsbd_fronts, row

__all__ = ["around", "cell", "fronts"]

cell = partial(row, half=0.1, **SQUAD)
fronts = dsbd_fronts
