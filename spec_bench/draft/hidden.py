"""The target's last hidden state of each row: what draft heads look at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.core.transfer import Committed, places
from spec_bench.draft.base import Drafting, Verified


class HiddenStates:
    """One vector per row: the target's last hidden state at the token before the row's root.

    Args:
        rows: rows of the caches.
        size: D.
        like: gives dtype and device.
    """

    def __init__(self, rows: int, size: int, like: Tensor) -> None:
        self._states = torch.zeros((rows, size), dtype=like.dtype, device=like.device)

    def first(self, rows: int) -> Tensor:
        """[rows, D] of the first rows."""
        return self._states[:rows]

    def put(self, states: Tensor) -> None:
        """Replaces the first rows' states: [R, D]."""
        self._states[: states.shape[0]] = states

    def put_row(self, row: int, state: Tensor | None) -> None:
        """Replaces one row's state [D]; zeros if a prompt of one token has none."""
        self._states[row] = 0 if state is None else state

    def move(self, source: int, target: int) -> None:
        """Copies a row's state over another's."""
        self._states[target] = self._states[source]


class DraftingOnLast(Drafting):
    """Drafting that looks at the target's last hidden state at the token before the root.

    Args:
        hidden: these states of all rows.
    """

    follows = True

    def __init__(self, hidden: HiddenStates) -> None:
        self.hidden = hidden
        self._followed: Tensor | None = None  # the states that were gone on from

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self.hidden.put_row(row, None)

    def see_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        self.hidden.put_row(row, hidden[-1])

    def see_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows = places(path.shape[0], hidden.device)
        self.hidden.put(hidden[rows, path[rows, accepted]])

    def follow(self, verified: Verified, depth: int, following: Committed) -> None:
        self._followed = self.hidden.first(len(verified.lengths)).clone()

    def caught_up(self, row: int, tokens: int, emitted: int) -> None:
        assert self._followed is not None
        self.hidden.put_row(row, self._followed[row])

    def move_row(self, source: int, target: int) -> None:
        self.hidden.move(source, target)
