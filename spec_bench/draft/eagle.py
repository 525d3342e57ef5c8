"""Drafts with an EAGLE head, level by level, with a cache for the head.

Pair j is the target's feature f_j with the embedding of token j + 1. It takes slot and position j
of the head's cache, and its output guesses token j + 2. With m tokens before the root, pairs 0..m -
1 come from the target; the last pair, which has the root's token, gives level 1. So for the head
the root is node 0 of a tree after m - 1 committed pairs, and a node's feature is its parent's
output. After a verification the pairs with features from the target are run and overwrite the keys
computed from the head's own features, accepted or not (EAGLE-1, arXiv 2401.15077, section 3.1; its
cache is never gathered).

Letters: R rows, P pending pairs, F frontier nodes, K levels, D width of the head, W width of the
target's hidden states that it reads, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts, cached_arange
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.cached_head import FeatureHead, HeadCacheDraftState, make_cache_attention
from spec_bench.draft.eagle_network import Eagle1Head, Eagle3Head
from spec_bench.draft.levels import OnePassDraftState, append_masks, gather_consecutive
from spec_bench.draft.network import DraftHeads
from spec_bench.engine.cache import SlotCache, WritePlan
from spec_bench.engine.model import ForwardOutput, LanguageModel, Layers
from spec_bench.engine.tree_pass import run_causal_tokens, run_nodes
from spec_bench.system.errors import UsageError


@dataclass
class _HeadAsLogitlessModel:
    """A head over given features with a model's interface, for the engine's passes. Its hidden
    states are the outputs.
    """

    head: FeatureHead
    target: LanguageModel
    feature: Tensor  # [R, T, D]
    zero_first: bool  # whether the first pair's embedding is zeros

    @property
    def device(self) -> torch.device:
        """Device of tokens and outputs."""
        return self.feature.device

    def forward(
        self,
        cache: SlotCache,
        starts: Sequence[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        row: int = 0,
        **kwargs: Any,
    ) -> ForwardOutput:
        cache.begin_pass(WritePlan(row, starts, tokens.shape[1], visible.shape[2]))
        mask = visible.unsqueeze(1)

        embeddings = self.head.get_embeddings(tokens, self.target.embed)
        if self.zero_first:
            embeddings = embeddings * (positions > 0).unsqueeze(-1)
        output = self.head.compute_outputs(
            self.feature, embeddings, positions, make_cache_attention(cache, mask)
        )
        return ForwardOutput(output.new_empty(0), output)


class EagleDraftState(HeadCacheDraftState):
    """State of an EAGLE or MTP head on the target's features.

    With ``zero_first`` the first pair's embedding is zeros, as in some engines for MTP.
    """

    def __init__(self, resources: DraftResources, zero_first: bool = False) -> None:
        super().__init__(resources)
        self._zero_first = zero_first
        self._prompts: list[Sequence[int]] = [()] * resources.rows

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        """Resets a row. A prompt of one token has no feature, so zeros take slot 0 until the first
        feature comes.
        """
        self._prompts[row] = prompt
        self._cached_counts[row] = 0
        self._pending_counts[row] = 1
        self._pending_hidden[row] = 0

    @torch.inference_mode()
    def observe_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        """Runs the pairs of a prompt's chunk, except the prompt's last pair, which the first tree's
        pass runs.
        """
        prompt = self._prompts[row]
        hidden = hidden.to(self._pending_hidden.dtype)
        count = hidden.shape[0]
        if start + count == len(prompt) - 1:
            count -= 1
            self._pending_hidden[row, 0] = hidden[-1]
            self._cached_counts[row] = start + count
        if not count:
            return
        tokens = torch.tensor([prompt[start + 1 : start + 1 + count]], device=hidden.device)
        head_pass = self._wrap_head(self._head.fuse_hidden_states(hidden[:count].unsqueeze(0)))
        run_causal_tokens(head_pass, self._cache, [start], tokens, row=row)

    def device_inputs(
        self,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        pending_counts = self._pending_counts[: len(committed)]
        width = self.count_max_pending(len(committed), fixed)
        # A row with fewer pairs runs fillers after its root; the tree then overwrites these.
        self._pending_tokens = HostDeviceInts(
            [
                [*row[-count:], *[row[-1]] * (width - count)]
                for row, count in zip(committed, pending_counts, strict=True)
            ]
        )
        self._pending_starts = HostDeviceInts(self._cached_counts[: len(committed)])
        self._root_index = HostDeviceInts([count - 1 for count in pending_counts])
        self._root_slots = HostDeviceInts([max(length - 1, 0) for length in committed.lengths])
        return self._pending_tokens, self._pending_starts, self._root_index, self._root_slots

    @torch.inference_mode()
    def root_logits(self, committed: CommittedTokens) -> Tensor:
        """Runs the pending pairs; returns logits [R, 1, 1, V] below the root."""
        self._timer.start()
        rows = len(committed)
        pending = len(self._pending_tokens[0])
        tokens = self._pending_tokens.get_tensor(self._pending_hidden.device)
        output = self._run_pending_pairs(tokens, self._pending_hidden[:rows, :pending])
        if pending > 1:
            index = cached_arange(rows, output.device).unsqueeze(1)
            output = output[index, self._root_index.get_tensor(output.device).unsqueeze(1)]
        return self._keep_outputs_and_compute_logits(output)

    @torch.inference_mode()
    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        """Runs the frontier, each node on its parent's output; returns logits [R, F, 1, V]."""
        self._timer.start()
        nodes = tree.frontier
        parent = tree.parent[:, nodes].unsqueeze(-1).expand(-1, -1, self._outputs.shape[-1])
        feature = self._head.to_next_feature(self._outputs.gather(1, parent))
        head_pass = self._wrap_head(feature)
        output: Any = run_nodes(head_pass, self._cache, tree, self._root_slots, nodes).hidden
        return self._keep_outputs_and_compute_logits(output, self._outputs)

    def _wrap_head(self, feature: Tensor) -> Any:
        """Wraps the head for a pass over features [R, T, D]."""
        return _HeadAsLogitlessModel(self._head, self._target, feature, self._zero_first)

    def _run_pending_pairs(self, tokens: Tensor, hidden: Tensor) -> Any:
        """Runs pairs of tokens [R, P] and the target's hidden states [R, P, W] from the cached ones
        on; returns outputs [R, P, D].
        """
        head_pass = self._wrap_head(self._head.fuse_hidden_states(hidden))
        return run_causal_tokens(
            head_pass, self._cache, self._pending_starts, tokens, logits_to_keep=0
        ).hidden

    def _keep_outputs_and_compute_logits(
        self, output: Tensor, earlier_outputs: Tensor | None = None
    ) -> Tensor:
        """Keeps a level's outputs; returns its logits [R, F, 1, V]."""
        self._outputs = (
            output if earlier_outputs is None else torch.cat([earlier_outputs, output], dim=1)
        )
        return self.finish_pass(output).unsqueeze(2)

    def move_row(self, source: int, target: int) -> None:
        super().move_row(source, target)
        self._prompts[target] = self._prompts[source]


@drafter("eagle")
@dataclass(frozen=True)
class Eagle(Drafter):
    """An EAGLE-1 head, which EAGLE-2 uses too."""

    heads = Eagle1Head

    def make_state(self, resources: DraftResources) -> DraftState:
        return EagleDraftState(resources)


class ParallelEagleDraftState(OnePassDraftState, EagleDraftState):
    """State of a P-EAGLE head on the target's features.

    P-EAGLE (arXiv 2602.01469): the pairs with features from the target, the last of which has the
    root's token, are followed by K - 1 rows of a mask token with a learned feature, `mask_hidden`,
    under the same causal attention. Row d guesses the token d after the next. The masks' cache
    entries are overwritten.
    """

    def __init__(self, resources: DraftResources, levels: int) -> None:
        super().__init__(resources)
        self._level_count = levels

    def compute_level_logits(self, committed: CommittedTokens) -> Tensor:
        self._timer.start()
        pending = len(self._pending_tokens[0])
        mask_count = self._level_count - 1
        device = self._pending_hidden.device
        mask = self._head.shape.mask_token
        root_index = self._root_index.get_tensor(device).unsqueeze(1)
        tokens = append_masks(self._pending_tokens.get_tensor(device), root_index, mask_count, mask)
        features_in = self._pending_hidden[: len(committed), :pending]
        features_in = append_masks(features_in, root_index, mask_count, self._head.mask_hidden)
        output = self._run_pending_pairs(tokens, features_in)
        return self.finish_pass(gather_consecutive(output, root_index, self._level_count))


@drafter("eagle3")
@dataclass(frozen=True)
class Eagle3(Drafter):
    """An EAGLE-3 head."""

    # whether the config's layer ids name a block's `input` or `output`; `auto`: as in its family
    layer_ids: Literal["auto", "input", "output"] = "auto"
    # K, levels that a head with masks guesses in one pass (P-EAGLE); 0: level by level
    parallel: Annotated[int, Interval(ge=0, le=64)] = 0

    heads = Eagle3Head

    def get_target_layers(self, heads: DraftHeads | None, blocks: int) -> Layers:
        assert isinstance(heads, Eagle3Head)
        return heads.shape.find_hidden_state_indices(blocks, self.layer_ids)

    def count_draft_calls(self, depth: int) -> int:
        return 1 if self.parallel else depth

    def find_max_depth(self, heads: DraftHeads | None) -> int | None:
        assert isinstance(heads, Eagle3Head)
        has_masks = heads.shape.mask_token is not None
        if has_masks != (self.parallel > 0):
            method = "all levels at once (P-EAGLE)" if has_masks else "level by level"
            hint = "" if has_masks else ": it is no P-EAGLE head, its weights have no mask_hidden"
            raise UsageError(
                f"drafter.parallel is {self.parallel}, the EAGLE-3 head was trained to guess "
                f"{method}{hint}"
            )
        return self.parallel or None

    def extra_slots(self, heads: DraftHeads | None) -> int:
        return self.parallel

    def make_state(self, resources: DraftResources) -> DraftState:
        if self.parallel:
            return ParallelEagleDraftState(resources, self.parallel)
        return EagleDraftState(resources)
