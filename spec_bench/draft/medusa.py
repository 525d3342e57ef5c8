"""Medusa as a drafter: every level's guesses come from one look at the target's hidden state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.core.tree import Tree
from spec_bench.draft.heads.medusa import MedusaHeads
from spec_bench.draft.hidden import HiddenStates
from spec_bench.engine.stopwatch import ForwardTimer


class MedusaDrafter:
    """K heads; all nodes of a level get the same proposals, those of the level's head.

    Args:
        heads: the heads, on the target's device.
        rows: rows of the caches.
        vocab_size: tokens that exist; the heads may have padded rows.
    """

    def __init__(self, heads: MedusaHeads, rows: int, vocab_size: int) -> None:
        self._heads, self._vocab = heads, vocab_size
        weight = next(heads.parameters())
        self.hidden = HiddenStates(rows, heads.shape.hidden, weight)
        self._timer = ForwardTimer(weight.device)
        self._logits = torch.empty(0)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        """Nothing of its own to prefill."""

    def at_root(self, committed: Sequence[Sequence[int]]) -> Tensor:
        """Proposals below the root: [R, 1, 1, V] logits."""
        self._timer.start()
        self._logits = self._heads(self.hidden.first(len(committed)))[..., : self._vocab]
        self._timer.stop()
        return self._logits[:, None, :1]

    def at_frontier(self, tree: Tree, committed: Sequence[Sequence[int]]) -> Tensor:
        """Proposals below the frontier's F nodes, the same for all: [R, F, 1, V] logits."""
        nodes = tree.frontier.stop - tree.frontier.start
        return self._logits[:, None, tree.grown : tree.grown + 1].expand(-1, nodes, -1, -1)

    def commit(self, row: int, length: int, nodes: Sequence[int], depth: int) -> None:
        """Nothing of its own to keep."""

    def move_row(self, source: int, target: int) -> None:
        """Moves a row over another one."""
        self.hidden.move(source, target)

    def take_forward_s(self) -> float:
        """Seconds in the heads since the last call."""
        return self._timer.take_s()
