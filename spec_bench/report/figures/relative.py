"""Cells relative to autoregressive decoding, and the best tree at each place of an axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from spec_bench import columns

DECODERS = ("sd", "spectr", "rsd_c", "rsd_s")
PANELS = {
    "block_efficiency": "block efficiency",
    "mbsu": "MBSU",
    "speedup": "token rate",
    "accuracy": "accuracy",
}


@dataclass(frozen=True)
class Point:
    """One mark of a series.

    Attributes:
        place: draft length or budget.
        spec: the tree that is shown.
        value: relative to autoregressive decoding.
        low: lower end of the 95% interval; NaN where there is none.
        high: upper end; NaN where there is none.
    """

    place: int
    spec: str
    value: float
    low: float
    high: float


def relative_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One task's cells with every panel's number relative to autoregressive decoding.

    Block efficiency and MBSU are 1 for AR by definition. The token rate's interval is that of
    ``speedup``, paired by prompt. The score's interval is the cell's own, over AR's score as if
    that were known: AR's own noise is a band of its own (``baseline_band``).

    Args:
        rows: comparable cells, the baseline among them.

    Returns:
        decoder, spec and for each of ``PANELS`` value, ``_low`` and ``_high``.
    """
    found = rows[["decoder", "spec"]].copy()
    for name in ("block_efficiency", "mbsu", "speedup"):
        for column in (name, f"{name}_low", f"{name}_high"):
            found[column] = rows.get(column)
    score, baseline = score_column(rows), _baseline(rows)
    own = baseline[score] if score and baseline is not None and baseline[score] else float("nan")
    for end in ("", "_low", "_high"):
        found[f"accuracy{end}"] = rows[f"{score}{end}"] / own if score else float("nan")
    return found


def relative_printed(rows: pd.DataFrame) -> pd.DataFrame:
    """The same of a paper's printed rows, which have no intervals."""
    baseline = rows[rows.decoder == "ar"].iloc[0]
    found = rows[["decoder", "spec"]].copy()
    values = {
        "block_efficiency": rows.block_efficiency,
        "mbsu": rows.mbsu,
        "speedup": rows.token_rate / baseline.token_rate,
        "accuracy": rows.accuracy / baseline.accuracy,
    }
    for name, value in values.items():
        found[name], found[f"{name}_low"], found[f"{name}_high"] = value, float("nan"), float("nan")
    return found


def best_series(
    relative: pd.DataFrame, decoder: str, panel: str, places: Mapping[tuple[str, str], int]
) -> list[Point]:
    """A decoder's best tree at each place, places ascending.

    Accuracy is that of the tree with the best block efficiency: all exact decoders draw from the
    same law, so the highest score of several trees would be the luckiest and not the best.

    Args:
        relative: from ``relative_rows`` or ``relative_printed``.
        decoder: whose.
        panel: a key of ``PANELS``.
        places: (decoder, spec) -> place; trees that are not in it are left out.
    """
    judged = "block_efficiency" if panel == "accuracy" else panel
    columns = ("decoder", "spec", judged, panel, f"{panel}_low", f"{panel}_high")
    best: dict[int, tuple[float, Point]] = {}
    for name, spec, worth, *ends in zip(*(relative[column] for column in columns), strict=True):
        place = places.get((decoder, str(spec))) if name == decoder else None
        if place is None or pd.isna(worth):
            continue
        if place not in best or worth > best[place][0]:
            best[place] = (worth, Point(place, str(spec), *map(float, ends)))
    return [point for _, (_, point) in sorted(best.items()) if not pd.isna(point.value)]


def baseline_band(rows: pd.DataFrame) -> tuple[float, float] | None:
    """AR's own 95% interval of the score, relative to its score; None where there is none."""
    score, baseline = score_column(rows), _baseline(rows)
    if score is None or baseline is None or not baseline[score]:
        return None
    low, high = baseline[f"{score}_low"] / baseline[score], baseline[f"{score}_high"]
    high = high / baseline[score]
    return None if pd.isna(low) or pd.isna(high) else (float(low), float(high))


def score_column(rows: pd.DataFrame) -> str | None:
    """The first quality score that the rows have."""
    names = columns.scores_in(rows.columns)
    return next((name for name in names if rows[name].notna().any()), None)


def _baseline(rows: pd.DataFrame) -> pd.Series | None:
    found = rows[rows.decoder == "ar"]
    return None if found.empty else found.iloc[0]
