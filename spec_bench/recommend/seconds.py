"""What an iteration should take, from the iterations of a few decoders.

One iteration is a target pass over the nodes of a tree, a draft pass for each of its levels, and
work of the host: seconds = a + b levels + c nodes, no part negative. That leaves out rules and
caches, so it says which decoders are worth timing; how fast these are, the clock says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

PROBES = 8  # for three unknowns: so many that the noise of single ones evens out


class Size(NamedTuple):
    """What an iteration's seconds depend on.

    Attributes:
        levels: draft passes, one after the other.
        nodes: verified beside the root.
    """

    levels: int
    nodes: int


@dataclass(frozen=True)
class Seconds:
    """A line through timed iterations.

    Attributes:
        fixed_s: seconds of any iteration.
        level_s: seconds of a level more.
        node_s: seconds of a node more.
        factor: within this factor, up or down, lie about 95% of what was fitted.
    """

    fixed_s: float
    level_s: float
    node_s: float
    factor: float

    def of(self, size: Size) -> float:
        """Seconds of an iteration."""
        return self.fixed_s + self.level_s * size.levels + self.node_s * size.nodes


def probes(sizes: Sequence[Size]) -> list[int]:
    """Which decoders to time for the line.

    Returns:
        Places of the one with most nodes and of ``PROBES`` others from small to deep, both ends
        included; all where there are no more than that.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    if len(order) <= PROBES:
        return order
    wide = max(order, key=lambda place: sizes[place].nodes)
    steps = np.linspace(0, len(order) - 1, PROBES).round().astype(int)
    return list(dict.fromkeys([wide, *(order[step] for step in steps)]))


def fitted(sizes: Sequence[Size], seconds: Sequence[float]) -> Seconds:
    """The line of least relative squares."""
    from scipy.optimize import nnls

    measured = np.array(seconds)
    terms = np.array([[1.0, *size] for size in sizes]) / measured[:, None]
    (fixed, level, node), _ = nnls(terms, np.ones(len(measured)))
    line = Seconds(float(fixed), float(level), float(node), 1.0)
    misses = [log(s / line.of(size)) for size, s in zip(sizes, seconds, strict=True)]
    spare = max(len(misses) - 3, 1)
    return Seconds(*(line.fixed_s, line.level_s, line.node_s), exp(1.96 * _root(misses, spare)))


def _root(misses: Sequence[float], spare: int) -> float:
    return sqrt(sum(miss**2 for miss in misses) / spare)
