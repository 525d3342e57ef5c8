"""The number in a judge's reply."""

from __future__ import annotations

import re

LOWEST, HIGHEST = 1.0, 10.0
# As the published judge's replies are read: double brackets, else single ones.
_PATTERNS = (re.compile(r"\[\[(\d+(?:\.\d+)?)\]\]"), re.compile(r"\[(\d+(?:\.\d+)?)\]"))


def rating_of(reply: str) -> float | None:
    """The first rating in ``[[5]]``'s format; None where there is none between 1 and 10."""
    for pattern in _PATTERNS:
        if match := pattern.search(reply):
            rating = float(match.group(1))
            return rating if LOWEST <= rating <= HIGHEST else None
    return None
