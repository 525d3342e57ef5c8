"""Drafting with a DFlash head: one pass over a block of masks guesses every level.

With m tokens before the root, the context entries of tokens 0..m - 1 are at slots 0..m - 1 of the
head's cache, made of what the target handed over; the block is written after them at every step,
over what a block before left. No entry is made of a token that the target has not run, so a block
hangs on the committed tokens alone.

Letters: R rows, P context entries that wait, B block, D width of the head, W of what the target
hands over, K levels, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from spec_bench.core.transfer import Committed, Known, places
from spec_bench.draft.base import Drafter, Drafting, Equipment, Verified, drafter
from spec_bench.draft.cached_head import DraftingOnHanded, attending
from spec_bench.draft.dflash_network import DFlashHead
from spec_bench.draft.layers import Turn
from spec_bench.draft.levels import LevelDrafting
from spec_bench.draft.network import Heads
from spec_bench.engine.model import LanguageModel, Layers

if TYPE_CHECKING:  # it needs transformers, which a refusal does not
    from spec_bench.engine.cache import SlotCache


class DFlashDrafting(LevelDrafting, DraftingOnHanded):
    """One DFlash or DSpark head on the target's hidden states."""

    def __init__(
        self, head: DFlashHead, target: LanguageModel, cache: SlotCache, rows: int
    ) -> None:
        super().__init__(head, target, cache, rows, waiting=0)
        self._head, self.has_term = head, head.shape.markov_rank > 0
        self._starts, self._before = Known(), Known()

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self._cached[row] = self._waiting[row] = 0

    @torch.inference_mode()
    def see_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        self._keep(hidden.unsqueeze(0), row, Known([start]))
        self._cached[row] = start + len(hidden)

    def needs(self, committed: Committed) -> Sequence[Known]:
        self._starts = Known(self._cached[: len(committed)])
        self._before = committed.lengths
        return (self._starts,)

    @torch.inference_mode()
    def levels(self, committed: Committed) -> Tensor:
        self._timer.start()
        rows, head, device = len(committed), self._head, self._handed.device
        if waiting := max(self._waiting[:rows]):
            # A row with fewer writes fillers after them, where the block comes next.
            self._keep(self._handed[:rows, :waiting], 0, self._starts)
        block = head.block(committed.roots.on(device), self._target.embed)
        turn = self._begin(block, 0, self._before)
        slots = places(max(self._before) + block.shape[1], device)
        last = self._before.on(device) + (block.shape[1] - 1)
        mask = (slots <= last.unsqueeze(1))[:, None, None]

        self._outputs = head.outputs(block, turn, attending(self._cache, mask))
        logits = head.logits(self._outputs, self._target.project, self._target.vocab_size)
        self._timer.stop()
        return logits

    def term(self, tokens: Tensor, level: int) -> Tensor:
        added = self._head.markov_head(tokens, self._outputs[:, level : level + 1])
        return self._head.spread(added, self._target.vocab_size, 0.0)

    def _keep(self, hidden: Tensor, row: int, starts: Known) -> None:
        """Writes the context entries of what was handed over [R, P, W], at their slots."""
        entries = self._head.context(hidden.to(self._handed.dtype))
        turn = self._begin(entries, row, starts)
        for layer, kept in enumerate(self._head.context_kept(entries, turn)):
            self._cache.layers[layer].update(*kept)

    def _begin(self, written: Tensor, row: int, starts: Known) -> Turn:
        """Plans a write of [R, P, D] at consecutive slots; the rotation at them."""
        from spec_bench.engine.cache import WritePlan  # needs transformers

        count = written.shape[1]
        self._cache.begin(WritePlan(row, starts, count, max(starts) + count))
        first = starts.on(written.device).unsqueeze(1)
        return self._head.turn(first + places(count, written.device))

    def follow(self, verified: Verified, depth: int, following: Committed) -> None:
        rows, count = verified.path.shape
        self._followed = self._handed[:rows].clone()
        self._waiting[:rows] = [count] * rows  # with fillers
        self._starts, self._before = verified.lengths, following.lengths


@drafter("dflash")
@dataclass(frozen=True)
class DFlash(Drafter):
    """A DFlash or DSpark head; it guesses a whole block at once, so L is 1."""

    # what the config's layer ids name: a block's `input`, its `output`, or what they name in the
    # file's family
    layer_ids: Literal["auto", "input", "output"] = "auto"

    heads = DFlashHead

    def calls(self, depth: int) -> int:
        return 1

    def reach(self, heads: Heads | None) -> int:
        assert heads is not None
        return int(heads.shape.levels)

    def more_slots(self, heads: Heads | None) -> int:
        assert isinstance(heads, DFlashHead)
        return heads.shape.block

    def layers(self, heads: Heads | None, blocks: int) -> Layers:
        assert isinstance(heads, DFlashHead)
        return heads.shape.places(blocks, self.layer_ids)

    def drafting(self, equipment: Equipment) -> Drafting:
        return DFlashDrafting(
            equipment.heads, equipment.target, equipment.heads_cache, equipment.rows
        )
