"""Block efficiency by where in the text a target call stands, in columns by powers of two.

A call's position is the number of tokens before it, prompt and answer so far. Texts at different
positions are different texts: a difference between columns is not the drafter's alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import ratio_interval
from spec_bench.records.types import Generation


@dataclass(frozen=True)
class Stretch:
    """Positions from ``first`` up to twice as many.

    Attributes:
        first: a power of two, or 0 for the first position.
        calls: target calls there.
        prompts: whose calls they are.
        emitted: tokens delivered per call, over all of these; 95% over prompts.
    """

    first: int
    calls: int
    prompts: int
    emitted: Interval | None

    @property
    def last(self) -> int:
        """The last position that is in it."""
        return max(2 * self.first - 1, 0)


def by_position(generations: Iterable[Generation]) -> list[Stretch]:
    """Stretches in which some call stands, in order; none where prompts' lengths are not known."""
    found: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for each in generations:
        if each.prompt_tokens is None:
            continue
        place = each.prompt_tokens
        for step in each.steps:
            sums = found[1 << (place.bit_length() - 1) if place else 0][each.prompt_id]
            sums[0] += step.delivered
            sums[1] += 1
            place += step.delivered
    stretches = []
    for first in sorted(found):
        delivered, calls = zip(*found[first].values(), strict=True)
        interval = ratio_interval(delivered, calls)
        stretches.append(Stretch(first, sum(calls), len(calls), interval))
    return stretches
