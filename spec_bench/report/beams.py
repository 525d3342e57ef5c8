"""How beams are written: DSBD's ``4x2@0.9`` is W_S x gamma @ t (arXiv:2409.16560, 4.2).

ReDrafter's ``8x5`` is width x length (arXiv:2403.09919, Section 2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DSBD, BEAM_SAMPLING = "dsbd", "beam_sampling"
REDRAFTER, MEDUSA = "redrafter", "medusa"


@dataclass(frozen=True)
class DraftBeams:
    """A setting of DSBD.

    Attributes:
        width: W_S, draft beams.
        depth: gamma, layers of the draft forest.
        threshold: t, of the dynamic width.
    """

    width: int
    depth: int
    threshold: float


def draft_beams(spec: str) -> DraftBeams:
    """Reads DSBD's shorthand.

    Raises:
        ValueError: it is written in another way.
    """
    found = re.fullmatch(r"(\d+)x(\d+)@(\d*\.?\d+)", spec)
    if found is None:
        raise ValueError(f"dsbd has no setting {spec!r}: they are written like 4x2@0.9")
    return DraftBeams(int(found[1]), int(found[2]), float(found[3]))


def head_beams(spec: str) -> tuple[int, int]:
    """(width, length) of ReDrafter's beams.

    Raises:
        ValueError: they are written in another way.
    """
    found = re.fullmatch(r"(\d+)x(\d+)", spec)
    if found is None:
        raise ValueError(f"redrafter has no beams {spec!r}: they are written like 8x5")
    return int(found[1]), int(found[2])
