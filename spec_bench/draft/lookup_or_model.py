"""Drafts by look-up, and with a draft model for rows without a match."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Tree
from spec_bench.draft.base import DraftResources, DraftState, drafter
from spec_bench.draft.language_model import LanguageModelDraftState, make_language_model_state
from spec_bench.draft.lookup import Lookup, LookupDraftState


class FallbackModelDraftState(LookupDraftState):
    """State that looks up guesses, and runs a draft model if there are none. The model reads the
    tokens that it has missed when it runs.
    """

    recordable = False

    def __init__(self, model: LanguageModelDraftState, *args: Any) -> None:
        super().__init__(*args)
        self._model = model
        self._model_ran = False
        self.vocab_size = model.models[0].vocab_size

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        super().start_row(row, prompt)
        self._model.start_row(row, prompt)

    def device_inputs(
        self,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        return self._model.device_inputs(committed)

    def root_logits(self, committed: CommittedTokens) -> Tensor:
        self._model_ran = True
        return self._model.root_logits(committed)

    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        return self._model.frontier_logits(tree, committed)

    def commit(
        self,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        path: Tensor,
        cached_levels: int,
    ) -> None:
        if self._model_ran:
            self._model.commit(lengths, nodes, path, cached_levels)

    def update_cached_counts(
        self, lengths: Sequence[int], kept_counts: Sequence[int], cached_levels: int
    ) -> None:
        if self._model_ran:
            self._model.update_cached_counts(lengths, kept_counts, cached_levels)
        self._model_ran = False

    def move_row(self, source: int, target: int) -> None:
        super().move_row(source, target)
        self._model.move_row(source, target)

    def take_forward_s(self) -> float:
        return self._model.take_forward_s()


@drafter("lookup_or_model")
@dataclass(frozen=True)
class LookupOrModel(Lookup):
    """The row's own n-grams, and the pair's draft model where none of them occurred before."""

    policies = ("guess_or_draft",)
    passes = None  # at most one per level; none if all rows find a match

    @property
    def model_count(self) -> int:
        return 1

    def make_state(self, resources: DraftResources) -> DraftState:
        args = (self.make_index, resources.rows, self.share, self.per_match)
        return FallbackModelDraftState(make_language_model_state(resources), *args)
