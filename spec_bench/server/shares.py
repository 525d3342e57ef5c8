"""Whose seconds they were, where several requests were under way: a batch's wall time shared out.

At every instant the requests under way have equal parts of it, those that wait for their first
chunk as prefill, the others as decoding. So the shares of a batch add up to the time in which
anything was under way, and those of a request alone are its own seconds. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """A request under way, on one clock.

    Attributes:
        began_s: when it was sent.
        first_s: when its first chunk came.
        ended_s: when its last one came.
    """

    began_s: float
    first_s: float
    ended_s: float


def shares(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """(prefill, decoding) seconds of each request."""
    moments = sorted({moment for span in spans for moment in span})
    seconds = [(0.0, 0.0)] * len(spans)
    for start, end in pairwise(moments):
        under_way = [i for i, s in enumerate(spans) if s.began_s <= start and end <= s.ended_s]
        for index in under_way:
            part = (end - start) / len(under_way)
            prefill, decoding = seconds[index]
            waits = end <= spans[index].first_s
            seconds[index] = (prefill + part, decoding) if waits else (prefill, decoding + part)
    return seconds
