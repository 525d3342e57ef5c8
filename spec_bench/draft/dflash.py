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
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.core.transfer import Committed, Known, places
from spec_bench.draft.base import Drafter, Drafting, Equipment, Verified, drafter
from spec_bench.draft.dflash_network import DFlashHead
from spec_bench.draft.layers import Turn
from spec_bench.draft.levels import LevelDrafting
from spec_bench.draft.network import Heads
from spec_bench.engine.cache import index_of
from spec_bench.engine.model import ForwardTimer, LanguageModel, Layers

if TYPE_CHECKING:  # it needs transformers, which a refusal does not
    from spec_bench.engine.cache import SlotCache


class DFlashDrafting(LevelDrafting):
    """One DFlash or DSpark head on the target's hidden states.

    Args:
        head: the head, on the target's device.
        target: gives embeddings and the last layer.
        cache: the head's own.
        rows: rows of the caches.
    """

    follows = True

    def __init__(
        self, head: DFlashHead, target: LanguageModel, cache: SlotCache, rows: int
    ) -> None:
        self._head, self._target, self._cache = head, target, cache
        self.has_term = head.shape.markov_rank > 0
        like = next(head.parameters())
        self._handed = like.new_zeros((rows, 1, head.features))  # by the target, not yet cached
        self._waiting = [0] * rows
        self._cached = [0] * rows  # context entries of each row
        self._starts, self._before = Known(), Known()
        self._followed = self._outputs = like.new_empty(0)
        self._timer = ForwardTimer(like.device)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self._cached[row] = self._waiting[row] = 0

    @torch.inference_mode()
    def see_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        self._keep(hidden.unsqueeze(0), slice(row, row + 1), Known([start]))
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
            self._keep(self._handed[:rows, :waiting], slice(0, rows), self._starts)
        block = head.block(committed.roots.on(device), self._target.embed)
        turn = self._begin(block, slice(0, rows), self._before)
        slots = places(max(self._before) + block.shape[1], device)
        last = self._before.on(device) + (block.shape[1] - 1)
        mask = (slots <= last.unsqueeze(1))[:, None, None]

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
        ) -> Tensor:
            keys, values = self._cache.layers[layer].update(k, v)
            grouped = q.shape[1] != keys.shape[1]
            return scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
            )

        self._outputs = head.outputs(block, turn, attend)
        logits = head.logits(self._outputs, self._target.project, self._target.vocab_size)
        self._timer.stop()
        return logits

    def term(self, tokens: Tensor, level: int) -> Tensor:
        added = self._head.markov_head(tokens, self._outputs[:, level : level + 1])
        return self._head.spread(added, self._target.vocab_size, 0.0)

    def _keep(self, hidden: Tensor, rows: slice, starts: Known) -> None:
        """Writes the context entries of what was handed over [R, P, W], at their slots."""
        entries = self._head.context(hidden.to(self._handed.dtype))
        turn = self._begin(entries, rows, starts)
        for layer, kept in enumerate(self._head.context_kept(entries, turn)):
            self._cache.layers[layer].update(*kept)

    def _begin(self, written: Tensor, rows: slice, starts: Known) -> Turn:
        """Plans a write of [R, P, D] at consecutive slots; the rotation at them."""
        from spec_bench.engine.cache import WritePlan  # needs transformers

        count = written.shape[1]
        index = index_of(starts, written[..., 0])
        self._cache.begin(WritePlan(rows, starts, count, max(starts) + count, index))
        first = starts.on(written.device).unsqueeze(1)
        return self._head.turn(first + places(count, written.device))

    def see_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows, count = path.shape
        room = self._handed
        if count > room.shape[1]:
            self._handed = room.new_zeros((room.shape[0], count, room.shape[2]))
        taken = hidden.gather(1, path.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        self._handed[:rows, :count] = taken.to(room.dtype)

    def commit(
        self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor, depth: int
    ) -> None:
        for row, (length, kept) in enumerate(zip(lengths, nodes, strict=True)):
            self._cached[row], self._waiting[row] = length, len(kept)

    def follow(self, verified: Verified, depth: int, following: Committed) -> None:
        rows, count = verified.path.shape
        self._followed = self._handed[:rows].clone()
        self._waiting[:rows] = [count] * rows  # with fillers
        self._starts, self._before = verified.lengths, following.lengths

    def caught_up(self, row: int, tokens: int, emitted: int) -> None:
        self._handed[row] = self._followed[row]
        self._cached[row], self._waiting[row] = tokens - 1 - emitted, emitted

    def move_row(self, source: int, target: int) -> None:
        self._cache.move_row(source, target, self._cached[source])
        self._handed[target] = self._handed[source]
        self._cached[target], self._waiting[target] = self._cached[source], self._waiting[source]

    def take_forward_s(self) -> float:
        """Seconds in the head since the last call, prompts excluded."""
        return self._timer.take_s()


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
        """As the config names them.

        Raises:
            ValueError: a place that no forward pass returns.
        """
        assert isinstance(heads, DFlashHead)
        return heads.shape.places(blocks, self.layer_ids)

    def drafting(self, equipment: Equipment) -> Drafting:
        return DFlashDrafting(
            equipment.heads, equipment.target, equipment.heads_cache, equipment.rows
        )
