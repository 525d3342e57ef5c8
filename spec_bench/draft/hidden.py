"""The target's hidden state behind each row: what draft heads look at."""

from __future__ import annotations

import torch
from torch import Tensor


class HiddenStates:
    """One vector a row: the target's last hidden state at the token before the row's root.

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
        """Replaces one row's state [D]; zeros where a prompt of one token has none."""
        self._states[row] = 0 if state is None else state

    def move(self, source: int, target: int) -> None:
        """Copies a row's state over another's."""
        self._states[target] = self._states[source]
