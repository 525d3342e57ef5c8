"""What a static pass runs over: its kind, and tensors that stay where they are and are refilled.

Letters: R rows, T tokens of one pass, S cache slots read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_LEAST_SLOTS = 64


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


def rounded_rows(count: int) -> int:
    """R of the pass that serves ``count`` rows: 1, 4, 16, 64, ..."""
    return 1 << -(-(count - 1).bit_length() // 2) * 2


def rounded_tokens(count: int) -> int:
    """T of the pass that serves ``count`` tokens: a power of two."""
    return 1 << (count - 1).bit_length()


def rounded_slots(reach: int) -> int:
    """S of the pass that serves ``reach`` slots: 64, 256, and from 1,024 on each power of two."""
    for slots in (_LEAST_SLOTS, 256, 1024):
        if reach <= slots:
            return slots
    return 1 << (reach - 1).bit_length()


def slot_steps(least: int, most: int) -> list[int]:
    """All S of passes that read ``least`` to ``most`` slots, of a cache of ``most``."""
    steps = [min(rounded_slots(least), most)]
    while steps[-1] < most:
        steps.append(min(rounded_slots(steps[-1] + 1), most))
    return steps
