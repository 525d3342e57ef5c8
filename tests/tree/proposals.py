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
    def cold(self) -> bool:
        """Whether nothing is drawn."""
        return self.settings.for_draft().temperature == 0

    def law(self, path: Path, draft: int = 0) -> list[float]:
        """The law that is drawn from."""
        return log_probs(self.logits(path, draft), self.settings.for_draft()).exp().tolist()

    def raw(self, path: Path) -> list[float]:
        """The law at temperature 1, nothing cut off."""
        return self.logits(path, 0).softmax(dim=-1).tolist()

    def ranked(self, path: Path, count: int) -> list[int]:
        """The likeliest tokens."""
        return order(self.logits(path, 0).tolist())[:count]

    def chance(self, path: Path) -> float:
        """Of a whole path at temperature 1."""
        return math.prod(self.raw(path[:at])[token] for at, token in enumerate(path))

    def children(self, path: Path, count: int, choose: Choose) -> list[int]:
        """Distinct tokens in the order drawn; the likeliest where nothing is drawn."""
        return self.ranked(path, count) if self.cold else distinct(self.law(path), count, choose)


def order(values: Sequence[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda index: -values[index])


def distinct(law: Sequence[float], count: int, choose: Choose) -> list[int]:
    """Draws one after the other, none twice, until nothing is left."""
    left, found = list(law), list[int]()
    while len(found) < count and sum(left) > 0:
        found.append(choose([mass / sum(left) for mass in left]))
        left[found[-1]] = 0.0
    return found


def trie(paths: Sequence[Path]) -> Forest:
    """Paths with equal beginnings merged, in the order of their first appearance."""
    firsts = dict.fromkeys(path[0] for path in paths if path)
    return tuple((t, trie([path[1:] for path in paths if path[:1] == (t,)])) for t in firsts)


def apart(paths: Sequence[Path]) -> Forest:
    """A chain for every path."""
    return tuple(item for path in paths for item in trie([path]))
