"""Moves of beams' nodes in the caches: at once on a CPU, elsewhere with the next iteration's copy.

Which nodes stay is known on the host, after the iteration's one transfer. So the indices wait until
something goes to the device anyway, before the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moves:
    """One row's nodes that must move to the front.

    Attributes:
        length: slots before node 0.
        kept: per cache the nodes to keep, in increasing order.
    """

    length: int = 0
    kept: tuple[Sequence[int], ...] = ()

    def carry_out(self, caches: Sequence[Any], row: int) -> None:
        """Moves the nodes of a row in its caches."""
        for cache, nodes in zip(caches, self.kept, strict=False):
            cache.commit(row, self.length, nodes)

    def slots(self, cache: int) -> list[tuple[int, int]]:
        """(from, to) of every node that moves in a cache."""
        nodes = self.kept[cache] if self.kept else ()
        pairs = enumerate(nodes)
        return [(self.length + node, self.length + to) for to, node in pairs if to != node]


def moved_slots(moves: Sequence[Moves], caches: int) -> list[Tensor]:
    """All rows' moves as indices on the host, per cache; none if nothing moves.

    Args:
        moves: of R rows.
        caches: how many.

    Returns:
        [2, R, T] slots from and to; a row that moves fewer repeats its last move, or moves nothing.
    """
    tables = []
    for cache in range(caches):
        pairs = [move.slots(cache) for move in moves]
        most = max(map(len, pairs))
        for slots, move in zip(pairs, moves, strict=True):
            last = slots[-1] if slots else (move.length, move.length)
            slots += [last] * (most - len(slots))
        tables.append(torch.tensor(pairs, dtype=torch.long).view(len(moves), most, 2))
    return [table.permute(2, 0, 1) for table in tables] if any(t.numel() for t in tables) else []
