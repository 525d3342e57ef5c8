"""Finds rows that were decoded in another session than their table's plain decoding.

A speed-up is relative to plain decoding of the same session, timed in turn. For a cell that was
added to a finished job, it therefore differs from the ratio of the table's rates.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

OTHER_SESSION_MARK = "another session"
OTHER_SESSION_NOTE = (
    f"{OTHER_SESSION_MARK}: decoded after the others were; times and rates of different sessions "
    "are not comparable, and its speed-up is against plain decoding timed again beside it."
)
ALL_OTHER_SESSIONS_NOTE = (
    "all rows but plain decoding are of later sessions: their speed-ups are against plain decoding "
    "timed again beside them; times and rates of different sessions are not comparable."
)
_MAX_ROUNDING = 1e-3  # relative; above the rounding of rates, below differences of sessions


def make_session_note_per_row(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Makes a note for each row of a seed: ``OTHER_SESSION_NOTE`` if it was decoded in another
    session than plain decoding (``ALL_OTHER_SESSIONS_NOTE`` if every row was), else "".
    """
    rates = [_get_number_or_zero(row, "token_rate") for row in rows]
    baseline_rate = next(
        (rate for row, rate in zip(rows, rates, strict=True) if row["decoder"] == "ar"), 0
    )
    ratios = [
        rate / baseline_rate / speedup
        if baseline_rate and rate and speedup and row["decoder"] != "ar"
        else 0
        for row, rate in zip(rows, rates, strict=True)
        for speedup in [_get_number_or_zero(row, "speedup")]
    ]
    is_other = [bool(ratio) and abs(ratio - 1) > _MAX_ROUNDING for ratio in ratios]
    note = (
        ALL_OTHER_SESSIONS_NOTE if sum(is_other) == sum(map(bool, ratios)) else OTHER_SESSION_NOTE
    )
    return [note * is_marked for is_marked in is_other]


def _get_number_or_zero(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) else 0.0
