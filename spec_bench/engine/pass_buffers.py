"""What a static pass runs over: tensors that stay where they are and are refilled.

Letters: R rows, T tokens of one pass, S cache slots read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Kind(NamedTuple):
    """What tells one static pass from another.

    Attributes:
        rows: R, fillers included.
        tokens: T, fillers included.
        slots: S.
        needs_hidden: which hidden states come out.
    """

    rows: int
    tokens: int
    slots: int
    needs_hidden: tuple[int, ...]


@dataclass
class Buffers:
    """A pass's input.

    Attributes:
        tokens: [R, T].
        positions: [R, T].
        slots: [R, T] where each token's keys and values go.
        visible: [R, T, S] bool.
        rows: [R, 1] each row's index.
        scratch: the slot where fillers write.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    visible: Tensor
    rows: Tensor
    scratch: int

    @classmethod
    def standing_in(cls, kind: Kind, scratch: int, device: torch.device) -> Buffers:
        """Buffers full of fillers, which write to the slot ``scratch`` and see every slot."""
        shape = (kind.rows, kind.tokens)
        return cls(
            torch.zeros(shape, dtype=torch.long, device=device),
            torch.zeros(shape, dtype=torch.long, device=device),
            torch.full(shape, scratch, device=device),
            torch.ones((*shape, kind.slots), dtype=torch.bool, device=device),
            torch.arange(kind.rows, device=device).unsqueeze(1),
            scratch,
        )

    def fill(self, tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor) -> None:
        """Puts a pass's input first along R and last along T; fillers then see nothing."""
        rows, count = tokens.shape
        # A larger input before this one has left its slots where fillers are now.
        self.slots.fill_(self.scratch)
        for buffer, values in (
            (self.tokens, tokens),
            (self.positions, positions),
            (self.slots, slots),
        ):
            buffer[:rows, -count:].copy_(values)
        self.visible.zero_()
        self.visible[:rows, -count:, : visible.shape[2]].copy_(visible)
