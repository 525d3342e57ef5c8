"""What a definition of a policy's trees draws from, and how it writes a tree down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spec_bench.core.warp import SamplingSettings, log_probs

Path = tuple[int, ...]
Forest = tuple[Any, ...]  # of (token, Forest)
Choose = Callable[[Sequence[float]], int]


@dataclass(frozen=True)
class Draft:
    """What is proposed behind every path.

    Attributes:
        prompt: what is continued.
        settings: sampling settings.
        logits: [V] behind a path below the root, of one of the drafts.
        vocab: V.
        drafts: how many share the children of a node.
        drafter: who proposes.
    """

    prompt: Path
    settings: SamplingSettings
    logits: Callable[[Path, int], Tensor]
    vocab: int
    drafts: int
    drafter: str

    @property
    def cold(self):
        """Whether nothing is drawn."""
        return self.settings.for_draft().temperature == 0

    def law(self, path, draft=0):
        """The law that is drawn from."""
        return log_probs(self.logits(path, draft), self.settings.for_draft()).exp().tolist()

    def raw(self, path):
        """The law at temperature 1, nothing cut off."""
        return self.logits(path, 0).softmax(dim=-1).tolist()

    def ranked(self, path, count):
        """The likeliest tokens."""
        return order(self.logits(path, 0).tolist())[:count]

    def chance(self, path):
        """Of a whole path at temperature 1."""
        return math.prod(self.raw(path[:at])[token] for at, token in enumerate(path))

    def children(self, path, count, choose):
        """Distinct tokens in the order drawn; the likeliest where nothing is drawn."""
        return self.ranked(path, count) if self.cold else distinct(self.law(path), count, choose)


def order(values):
    return sorted(range(len(values)), key=lambda index: -values[index])


def distinct(law, count, choose):
    """Draws one after the other, none twice, until nothing is left."""
    left, found = list(law), list[int]()
    while len(found) < count and sum(left) > 0:
        found.append(choose([mass / sum(left) for mass in left]))
        left[found[-1]] = 0.0
    return found


def trie(paths):
    """Paths with equal beginnings merged, in the order of their first appearance."""
    firsts = dict.fromkeys(path[0] for path in paths if path)
    return tuple((t, trie([path[1:] for path in paths if path[:1] == (t,)])) for t in firsts)


def apart(paths):
    """A chain for every path."""
    return tuple(item for path in paths for item in trie([path]))
