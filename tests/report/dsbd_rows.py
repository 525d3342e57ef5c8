"""Rows of DSBD's experiment as literals: one setting slower and better than the other."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tests.report.frames import frame, row

NO_METER = "energy_j_per_token: no meter"


def cell(decoder: str, spec: str = "-", **values: Any) -> dict[str, Any]:
    """A SQuAD cell; a metric is ``name=value`` or ``name=(value, low, high)``."""
    beams = decoder.startswith(("beam", "dsbd"))
    found = row(
        decoder,
        spec,
        task="squad",
        temperature=1.0,
        top_k=10,
        top_p=0.8,
        lossless="exact_beam" if beams else "exact",
        reason=NO_METER,
    )
    for name, value in values.items():
        if isinstance(value, tuple):
            found[name], found[f"{name}_low"], found[f"{name}_high"] = value
        else:
            found[name] = value
    return found


def around(value: float, half: float) -> tuple[float, float, float]:
    """A value with an interval."""
    return value, value - half, value + half


def fronts(**same: Any) -> pd.DataFrame:
    """Beam sampling of width 1 to 3, three settings of DSBD, SD, and the baseline."""

    def made(decoder: str, spec: str, score: float, speed: float, width: float | None) -> Any:
        return cell(
            decoder,
            spec,
            exact_match=around(score, 0.03),
            token_rate=around(speed, 1.0),
            beam_width=None if width is None else around(width, 0.1),
            perplexity=around(2.0 - score, 0.01),
            **same,
        )

    return frame(
        made("ar", "-", 0.50, 30.0, None),
        made("sd", "3", 0.50, 50.0, None),
        made("beam_sampling", "1", 0.50, 30.0, 1.0),
        made("beam_sampling", "2", 0.60, 20.0, 2.0),
        made("beam_sampling", "3", 0.70, 10.0, 3.0),
        made("dsbd", "3x2@0.9", 0.64, 36.0, 1.5),
        made("dsbd", "4x2@0.9", 0.70, 30.0, 2.5),
        made("dsbd", "4x2@0.7", 0.72, 24.0, 2.75),
    )
