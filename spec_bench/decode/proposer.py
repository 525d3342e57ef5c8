"""Who grows the tree of an iteration, seen from the loop: one interface, two ways.

Level by level: a drafter's logits and a policy that picks. From beams: a recurrent head's beam
search, its beams merged into a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.prefixes import beams_apart, merge_prefixes
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.draft.recurrent import RecurrentDrafter
from spec_bench.policy.base import Policy
from spec_bench.policy.head_beams import HeadBeams

Observe = Callable[[Tensor], None]


class Drafter(Protocol):
    """What proposes level by level."""

    def start(self, row: int, prompt: Sequence[int]) -> None:
        """Prefills a row with all prompt tokens but the last."""
        ...

    def at_root(self, committed: Sequence[Sequence[int]]) -> Tensor:
        """Logits [R, 1, D, V] below the root."""
        ...

    def at_frontier(self, tree: Tree, committed: Sequence[Sequence[int]]) -> Tensor:
        """Logits [R, F, D, V] below the frontier."""
        ...

    def commit(self, row: int, length: int, nodes: Sequence[int], depth: int) -> None:
        """Keeps an accepted path, root first."""
        ...

    def move_row(self, source: int, target: int) -> None:
        """Moves a row over another one."""
        ...

    def take_forward_s(self) -> float:
        """Seconds of drafting since the last call."""
        ...


class Proposer(Protocol):
    """Grows one tree per row."""

    def start(self, row: int, prompt: Sequence[int]) -> None:
        """Prefills a row with all prompt tokens but the last."""
        ...

    def propose(
        self, committed: Sequence[Sequence[int]], device: torch.device, draws: Draws
    ) -> Tree:
        """A tree per row.

        Args:
            committed: per row all tokens so far; the last one is the root.
            device: where the trees live.
            draws: randomness.
        """
        ...

    def commit(self, row: int, length: int, nodes: Sequence[int], depth: int) -> None:
        """Keeps an accepted path, root first."""
        ...

    def move_row(self, source: int, target: int) -> None:
        """Moves a row over another one."""
        ...

    def take_forward_s(self) -> float:
        """Seconds of drafting since the last call."""
        ...


class LevelProposer:
    """A drafter and a policy, level by level.

    Args:
        drafter: gives logits; None for trees that are only a root.
        policy: picks from them.
        settings: sampling settings; the draft's own temperature applies.
    """

    def __init__(self, drafter: Drafter | None, policy: Policy, settings: SamplingSettings) -> None:
        self._drafter, self._policy, self._settings = drafter, policy, settings

    def start(self, row: int, prompt: Sequence[int]) -> None:
        if self._drafter:
            self._drafter.start(row, prompt)

    def propose(
        self, committed: Sequence[Sequence[int]], device: torch.device, draws: Draws
    ) -> Tree:
        root = torch.tensor([tokens[-1] for tokens in committed], device=device)
        tree = Tree(self._policy.shape, root)
        for level in range(self._policy.shape.depth):
            assert self._drafter is not None
            logits = (
                self._drafter.at_frontier(tree, committed)
                if level
                else self._drafter.at_root(committed)
            )
            self._policy.grow(tree, self._scores(logits.to(device)), draws)
        return tree

    def _scores(self, logits: Tensor) -> Tensor:
        """What the policy ranks or samples by: warped log-probabilities, or shifted logits."""
        if self._policy.siblings == "deterministic":
            logits = logits.to(self._settings.dtype)
            return logits - logits.amax(dim=-1, keepdim=True)
        return log_probs(logits, self._settings.for_draft())

    def commit(self, row: int, length: int, nodes: Sequence[int], depth: int) -> None:
        if self._drafter:
            self._drafter.commit(row, length, nodes, depth)

    def move_row(self, source: int, target: int) -> None:
        if self._drafter:
            self._drafter.move_row(source, target)

    def take_forward_s(self) -> float:
        return self._drafter.take_forward_s() if self._drafter else 0.0


class BeamProposer:
    """A recurrent head's beams, as a tree.

    Args:
        drafter: the head.
        policy: how many beams, how long, merged or not.
    """

    def __init__(self, drafter: RecurrentDrafter, policy: HeadBeams) -> None:
        self._drafter, self._policy = drafter, policy

    def start(self, row: int, prompt: Sequence[int]) -> None:
        """Nothing of its own to prefill."""

    def propose(
        self, committed: Sequence[Sequence[int]], device: torch.device, draws: Draws
    ) -> Tree:
        roots = [tokens[-1] for tokens in committed]
        beams = self._drafter.beams(roots, self._policy.width, self._policy.shape.depth)
        grow = merge_prefixes if self._policy.merge else beams_apart
        return grow(torch.tensor(roots, device=device), beams.to(device))

    def commit(self, row: int, length: int, nodes: Sequence[int], depth: int) -> None:
        """Nothing of its own to keep."""

    def move_row(self, source: int, target: int) -> None:
        self._drafter.move_row(source, target)

    def take_forward_s(self) -> float:
        return self._drafter.take_forward_s()
