"""Drafting with an EAGLE head: level by level, with a cache of its own.

Pair j is the target's feature f_j with the embedding of token j + 1; it takes slot and position j
of the head's cache, and its output guesses token j + 2. With m tokens before the root, pairs
0..m - 1 come from the target, and the last of them, whose token is the root, gives level 1. So to
the head the root is node 0 of a tree after m - 1 committed pairs, and a node's feature is its
parent's output. After a verification the pairs with features from the target are run again, over
the keys that came from the head's own features, accepted or not (EAGLE-1, arXiv 2401.15077,
section 3.1; its cache is never gathered).

Letters: R rows, P waiting pairs, F frontier nodes, D width of the head, W of what the target
hands over, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.core.transfer import Committed, Followed, Known, places
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, Drafting, Equipment, Verified, drafter
from spec_bench.draft.eagle_network import Eagle1Head
from spec_bench.draft.feature_head import FeatureHead
from spec_bench.engine.model import ForwardOutput, LanguageModel
from spec_bench.engine.slots import index_of
from spec_bench.engine.stopwatch import ForwardTimer
from spec_bench.engine.tree_pass import causal, run_nodes, run_pending

if TYPE_CHECKING:  # it needs transformers, which a refusal does not
    from spec_bench.engine.cache import SlotCache


class _Pass:
    """The head over given features, as the engine's passes see a model; hidden: its outputs."""

    def __init__(
        self, head: FeatureHead, target: LanguageModel, feature: Tensor, zero_first: bool
    ) -> None:
        self._head, self._target, self._feature = head, target, feature
        self._zero_first = zero_first
        self.device = feature.device

    def forward(
        self,
        cache: SlotCache,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        **ignored: Any,
    ) -> ForwardOutput:
        from spec_bench.engine.cache import WritePlan  # needs transformers

        index = index_of(starts, tokens)
        cache.begin(WritePlan(rows, starts, tokens.shape[1], visible.shape[2], index))
        mask = visible.unsqueeze(1)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
        ) -> Tensor:
            keys, values = cache.layers[layer].update(k, v)
            grouped = q.shape[1] != keys.shape[1]
            return scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
            )

        embedded = self._head.embedded(tokens, self._target.embed)
        if self._zero_first:
            embedded = embedded * (positions > 0).unsqueeze(-1)
        output = self._head.step(self._feature, embedded, positions, attend)
        return ForwardOutput(output.new_empty(0), output)


class EagleDrafting(Drafting):
    """One EAGLE or MTP head on the target's features.

    Args:
        head: the head, on the target's device.
        target: gives embeddings and, for EAGLE-1 and MTP, the last layer.
        cache: the head's own.
        rows: rows of the caches.
        zero_first: whether the first pair's embedding is zeros, as some engines have it for MTP.
    """

    follows = True

    def __init__(
        self,
        head: FeatureHead,
        target: LanguageModel,
        cache: SlotCache,
        rows: int,
        zero_first: bool = False,
    ) -> None:
        self._head, self._target, self._cache = head, target, cache
        self._zero_first = zero_first
        like = next(head.parameters())
        self._features = like.new_zeros((rows, 1, head.features))  # of the waiting pairs
        self._waiting = [1] * rows
        self._cached = [0] * rows  # pairs of each row with features from the target
        self._prompts: list[Sequence[int]] = [()] * rows
        self._outputs = like.new_empty(0)  # [R, nodes so far, D]
        self._followed = like.new_empty(0)  # the features that were gone on from
        self._timer = ForwardTimer(like.device)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        """A prompt of one token has no feature: zeros stand in at slot 0 until the first comes."""
        self._prompts[row] = prompt
        self._cached[row], self._waiting[row] = 0, 1
        self._features[row] = 0

    @torch.inference_mode()
    def see_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        """Runs a chunk's pairs; the prompt's last one waits for the first tree."""
        prompt = self._prompts[row]
        hidden = hidden.to(self._features.dtype)
        count = hidden.shape[0]
        if start + count == len(prompt) - 1:
            count -= 1
            self._features[row, 0] = hidden[-1]
            self._cached[row] = start + count
        if not count:
            return
        tokens = torch.tensor([prompt[start + 1 : start + 1 + count]], device=hidden.device)
        positions = start + torch.arange(count, device=hidden.device).unsqueeze(0)
        self.run(hidden[:count].unsqueeze(0)).forward(
            self._cache,
            slice(row, row + 1),
            [start],
            tokens,
            positions,
            causal(positions, start + count),
        )

    def needs(self, committed: Committed) -> Sequence[Known]:
        waiting = self._waiting[: len(committed)]
        most = max(waiting)
        # A row with fewer pairs runs fillers after its root, where the tree is written next.
        self._tokens = Known(
            [
                [*row[-count:], *[row[-1]] * (most - count)]
                for row, count in zip(committed, waiting, strict=True)
            ]
        )
        self._starts = Known(self._cached[: len(committed)])
        self._last = Known([count - 1 for count in waiting])
        self._before = Known([max(length - 1, 0) for length in committed.lengths])
        return self._tokens, self._starts, self._last, self._before

    @torch.inference_mode()
    def at_root(self, committed: Committed) -> Tensor:
        """Runs the waiting pairs; logits [R, 1, 1, V] below the root."""
        self._timer.start()
        rows, waiting = len(committed), len(self._tokens[0])
        tokens = self._tokens.on(self._features.device)
        features: Any = self.run(self._features[:rows, :waiting])
        output = run_pending(features, self._cache, self._starts, tokens, logits_to_keep=0).hidden
        assert output is not None
        if waiting > 1:
            index = places(rows, output.device).unsqueeze(1)
            output = output[index, self._last.on(output.device).unsqueeze(1)]
        return self._proposed(output)

    @torch.inference_mode()
    def at_frontier(self, tree: Tree, committed: Committed) -> Tensor:
        """Runs the frontier, each node on its parent's output; logits [R, F, 1, V] below it."""
        self._timer.start()
        nodes = tree.frontier
        parent = tree.parent[:, nodes].unsqueeze(-1).expand(-1, -1, self._outputs.shape[-1])
        feature = self._head.fed_back(self._outputs.gather(1, parent))
        passing: Any = _Pass(self._head, self._target, feature, self._zero_first)
        output = run_nodes(passing, self._cache, tree, self._before, nodes).hidden
        assert output is not None
        return self._proposed(output, self._outputs)

    def run(self, hidden: Tensor) -> _Pass:
        """A pass over what the target handed over, [R, P, W]."""
        return _Pass(self._head, self._target, self._head.fuse(hidden), self._zero_first)

    def _proposed(self, output: Tensor, above: Tensor | None = None) -> Tensor:
        """Keeps a level's outputs; its logits [R, F, 1, V]."""
        self._outputs = output if above is None else torch.cat([above, output], dim=1)
        logits = self._head.logits(output, self._target.project, self._target.vocab_size)
        self._timer.stop()
        return logits.unsqueeze(2)

    def see_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows, count = path.shape
        room = self._features
        if count > room.shape[1]:
            self._features = room.new_zeros((room.shape[0], count, room.shape[2]))
            for waiting in range(1, count + 1):  # as many pairs as may wait from now on
                places(waiting, room.device)
        taken = hidden.gather(1, path.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        self._features[:rows, :count] = taken.to(room.dtype)

    def commit(
        self,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        path: Tensor,
        depth: int,
    ) -> None:
        for row, (length, kept) in enumerate(zip(lengths, nodes, strict=True)):
            self._cached[row], self._waiting[row] = length, len(kept)

    def follow(self, verified: Verified, depth: int, following: Committed) -> None:
        lengths, path, accepted, emitted = verified
        rows, count = path.shape
        self._followed = self._features[:rows].clone()
        self._waiting[:rows] = [count] * rows  # with fillers
        self._tokens = Followed([[0] * count for _ in lengths], emitted)
        self._starts = lengths
        self._last = Followed([count - 1] * rows, accepted)
        self._before = following.lengths.plus(-1)

    def caught_up(self, row: int, tokens: int, emitted: int) -> None:
        self._features[row] = self._followed[row]
        self._cached[row], self._waiting[row] = tokens - 1 - emitted, emitted

    def move_row(self, source: int, target: int) -> None:
        self._cache.move_row(source, target, self._cached[source])
        self._features[target] = self._features[source]
        self._cached[target], self._waiting[target] = self._cached[source], self._waiting[source]
        self._prompts[target] = self._prompts[source]

    def take_forward_s(self) -> float:
        """Seconds in the head since the last call, prompts excluded."""
        return self._timer.take_s()


@drafter("eagle")
@dataclass(frozen=True)
class Eagle(Drafter):
    """An EAGLE-1 head, which EAGLE-2 uses too."""

    heads = Eagle1Head

    def drafting(self, equipment: Equipment) -> Drafting:
        return EagleDrafting(
            equipment.heads, equipment.target, equipment.heads_cache, equipment.rows
        )
