"""Draft states of whole models: the pair's drafts, or blocks of the target.

Letters: R rows, P pending tokens, K levels, F frontier nodes, D drafts, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts, cached_arange
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.engine.mapped_model import VocabularyMappedModel
from spec_bench.engine.tree_pass import commit_paths, prefill, run_causal_tokens, run_nodes
from spec_bench.system.errors import UsageError


class LanguageModelDraftState(DraftState):
    """State of D draft models that run level by level.

    A draft never runs a tree's deepest level nor the bonus token, so after a commit its cache may
    lack the last one or two committed tokens. The next iteration runs them first.
    """

    recordable = is_forgetful = True

    def __init__(self, resources: DraftResources) -> None:
        self.models = resources.models
        self._caches = resources.caches
        self._cached_counts = [0] * resources.rows  # number of tokens of each row in the caches
        # pending tokens [R, P], their first slots [R], and the root's index among them [R]
        self._pending = (HostDeviceInts(), HostDeviceInts(), HostDeviceInts())
        self._max_pending = 1  # most pending tokens of a row after an iteration

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        for model, cache in zip(self.models, self._caches, strict=True):
            prefill(model, cache, row, prompt[:-1])
        self._cached_counts[row] = len(prompt) - 1

    def device_inputs(
        self,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        pending = self._max_pending
        if not fixed:
            pending = max(len(c) - n for c, n in zip(committed, self._cached_counts, strict=False))
        # A row with fewer pending tokens reruns cached ones at their slots. A row that is too short
        # for that runs fillers after its root, which the tree then overwrites.
        self._pending = (
            HostDeviceInts([[*c[-pending:], *[c[-1]] * (pending - len(c))] for c in committed]),
            HostDeviceInts([max(len(c) - pending, 0) for c in committed]),
            HostDeviceInts([min(len(c), pending) - 1 for c in committed]),
        )
        return self._pending

    def root_logits(self, committed: CommittedTokens) -> Tensor:
        tokens, starts, root_index = self._pending
        keep = 1 if root_index.exact and min(root_index) == len(tokens[0]) - 1 else 0
        logits = []
        for model, cache in zip(self.models, self._caches, strict=True):
            ids = tokens.get_tensor(model.device)
            output = run_causal_tokens(model, cache, starts, ids, logits_to_keep=keep).logits
            if not keep:
                rows = cached_arange(len(root_index), output.device).unsqueeze(1)
                output = output[rows, root_index.get_tensor(output.device).unsqueeze(1)]
            logits.append(output)
        return _stack_draft_logits(logits)

    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        return _stack_draft_logits(
            [
                run_nodes(model, cache, tree, committed.lengths, tree.frontier).logits
                for model, cache in zip(self.models, self._caches, strict=True)
            ]
        )

    def commit(
        self,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        path: Tensor,
        cached_levels: int,
    ) -> None:
        self._max_pending = path.shape[1] + 1 - cached_levels
        run_paths = [row[:cached_levels] for row in nodes]
        for cache in self._caches:
            commit_paths(cache, lengths, run_paths, path[:, :cached_levels])

    def update_cached_counts(
        self, lengths: Sequence[int], kept_counts: Sequence[int], cached_levels: int
    ) -> None:
        for row, (length, committed_count) in enumerate(zip(lengths, kept_counts, strict=True)):
            self._cached_counts[row] = length + min(committed_count, cached_levels)

    def move_row(self, source: int, target: int) -> None:
        for cache in self._caches:
            cache.move_row(source, target, self._cached_counts[source])
        self._cached_counts[target] = self._cached_counts[source]

    def take_forward_s(self) -> float:
        return sum(model.timer.take_s() for model in self.models)


class RetokenizedDraftState(LanguageModelDraftState):
    """State of a draft with another tokenizer; its context is the target's text in the draft's
    tokens.

    A context differs in length from the target's if a token has several parts in the draft's
    tokenizer. A tree does not, because every token that the draft can propose has a single part.
    Tokens proposed by another drafter, for example by a look-up, may have several parts. A path is
    kept up to its first such token; the rest is run again.
    """

    recordable = False  # the host looks up the number of a token's parts

    def __init__(self, resources: DraftResources, model: VocabularyMappedModel) -> None:
        super().__init__(resources)
        self._model, self._retokenised = model, CommittedTokens([])
        self._tree_tokens = torch.zeros(0)  # tokens of the last trees
        self._kept_counts = [0]  # number of nodes kept of each row's path

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        super().start_row(row, self._model.retokenise(prompt))

    def device_inputs(
        self,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        self._retokenised = CommittedTokens(self._model.retokenise(tokens) for tokens in committed)
        return (*super().device_inputs(self._retokenised), self._retokenised.lengths)

    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        self._tree_tokens = tree.tokens
        return super().frontier_logits(tree, self._retokenised)

    def commit(
        self,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        path: Tensor,
        cached_levels: int,
    ) -> None:
        paths = [[*row[:1]] for row in nodes]
        if cached_levels > 1:
            for path_nodes, row, tokens in zip(
                paths, nodes, self._tree_tokens.tolist(), strict=True
            ):
                in_parts = [tokens[node] in self._model.pieces for node in row[1:cached_levels]]
                path_nodes += row[1:cached_levels][: [*in_parts, True].index(True)]
        self._kept_counts = [len(row) for row in paths]
        super().commit(self._retokenised.lengths, paths, path, cached_levels)

    def update_cached_counts(
        self, lengths: Sequence[int], kept_counts: Sequence[int], cached_levels: int
    ) -> None:
        super().update_cached_counts(self._retokenised.lengths, self._kept_counts, cached_levels)


def make_language_model_state(resources: DraftResources) -> LanguageModelDraftState:
    """Makes the draft state of the models. Raises UsageError if one of several models has another
    tokenizer.
    """
    models = resources.models
    mapped = [
        model for model in models if isinstance(model, VocabularyMappedModel) and model.pieces
    ]
    if not mapped:
        return LanguageModelDraftState(resources)
    if len(models) > 1:
        raise UsageError("several drafts need the target's tokenizer; one of them has another")
    return RetokenizedDraftState(resources, mapped[0])


@drafter("language_model")
@dataclass(frozen=True)
class LanguageModelDrafter(Drafter):
    """The pair's draft models."""

    # D, the number of draft models; several take turns at the children of a node
    drafts: Annotated[int, Interval(ge=1, le=64)] = 1

    @property
    def model_count(self) -> int:
        return self.drafts

    @classmethod
    def audit_cases(cls, model_count: int) -> tuple[Drafter, ...]:
        return (cls(model_count),)

    def make_state(self, resources: DraftResources) -> DraftState:
        return make_language_model_state(resources)


def _stack_draft_logits(logits: list[Tensor]) -> Tensor:
    """Stacks the logits [R, F, V] of D drafts to [R, F, D, V], without a copy if D = 1."""
    return logits[0].unsqueeze(2) if len(logits) == 1 else torch.stack(logits, dim=2)
