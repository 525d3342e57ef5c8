"""Which of several decoders to use, by their speed-ups over plain decoding: whatever answer is
printed, of a table, a page, a category or a search, comes from ``choose``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import NamedTuple

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.many import at_once
from spec_bench.vocabulary.numbers import ends_of

CLOSE = 0.05  # speeds that differ by no more are as good as equal
_FIRST, _MOST = 20, 10_000  # prompts: suggested where no spread is known; at most


class Choice(NamedTuple):
    """Places of the cells that are surely faster; where none is, the answer and its reason."""

    faster: tuple[int, ...] = ()
    answer: str = ""
    why: str = ""


def choose(speeds: Sequence[tuple[str, Interval, float]], hint: str = "prompts={}") -> Choice:
    """Looks at every cell.

    The fastest of several is partly luck: that one is faster must hold by intervals that cover all
    at once (Bonferroni). That none is faster needs each of their own 95% intervals at or below 1.

    ``speeds`` has the title, speed-up over plain decoding and number of prompts of each; ``hint``
    says how to ask for a number of prompts.
    """
    own, wide = (
        [at_once((s.value, s.low or 0.0, s.high or 0.0), n, of) for _, s, n in speeds]
        for of in (1, len(speeds))
    )
    if not speeds or (faster := tuple(n for n, ends in enumerate(wide) if ends and ends[0] > 1)):
        return Choice(faster) if speeds else Choice((), "AR", "nothing else has a speed")
    maybe = [n for n, ends in enumerate(own) if ends is None or ends[1] > 1]
    near = {n for n, ends in enumerate(wide) if ends and max(1 / ends[0], ends[1]) <= 1 + CLOSE}
    best = max({*maybe} - near or maybe or range(len(own)), key=lambda n: speeds[n][1].value)
    (title, speed, prompts), ends = speeds[best], (wide if maybe else own)[best]
    told = f"{speed.value:.2f}×{ends_of(*ends, '.2f', ' [{} to {}]') if ends else ''}"
    if not maybe:
        return Choice((), "AR", f"the fastest other one, {title}, reaches {told} of its speed")
    if best in near:
        return Choice((), "a tie", f"{title} is as fast as AR within {CLOSE:.0%}, {told}")
    looks = f"looks {'' if speed.value > 1 else 'no '}faster, {told}"
    more = hint.format(_deciding(speed.value, ends, prompts))
    return Choice((), "cannot decide yet", f"{title} {looks}; try {more}")


def _deciding(value: float, ends: tuple[float, float] | None, prompts: float) -> int:
    """Twice the prompts, since the next estimate may be nearer to 1, whose interval would leave out
    1 or lie within ``CLOSE`` of it: its logarithm shrinks with the square root of their number.
    """
    if ends is None:
        return max(_FIRST, ceil(2 * prompts))
    reach = log(value / ends[0]) if value > 1 else log(ends[1] / value)
    needed = 2 * prompts * (reach / max(abs(log(value)), log(1 + CLOSE))) ** 2
    return min(_MOST, 10 * ceil(max(needed, prompts + 1) / 10))
