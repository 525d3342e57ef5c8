"""Draft language models: one or several, each with its own cache over the same tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.core.transfer import Committed, Followed, Known, places
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, Drafting, Equipment, Verified, drafter
from spec_bench.engine.mapped_model import MappedModel
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.scoring import commit_paths
from spec_bench.engine.tree_pass import prefill, run_nodes, run_pending
from spec_bench.settings.fields import Range


class _Pending(NamedTuple):
    """What the drafts have not run yet: [R, P] tokens, [R] their first slots, and which of them is
    the [R] root.
    """

    tokens: Known
    starts: Known
    last: Known


class LanguageModelDrafting(Drafting):
    """D draft models that run level by level.

    A draft never runs on a tree's deepest level nor on the bonus token, so after a commit its cache
    may lack the last one or two committed tokens; the next iteration feeds them first.
    """

    def __init__(self, models: Sequence[LanguageModel], caches: Sequence[Any], rows: int) -> None:
        self.models = models
        self._caches = caches
        self._cached = [0] * rows  # tokens of each row that are in the caches
        self._pending = _Pending(Known(), Known(), Known())
        self._ran = 0  # nodes of a path that the drafts ran, at most

    @property
    def cache_bytes(self) -> int:
        """Bytes of all draft caches."""
        return sum(cache.bytes for cache in self._caches)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        for model, cache in zip(self.models, self._caches, strict=True):
            prefill(model, cache, row, prompt[:-1])
        self._cached[row] = len(prompt) - 1

    def needs(self, committed: Committed) -> Sequence[Known]:
        pending = max(len(c) - n for c, n in zip(committed, self._cached, strict=False))
        # A row with fewer pending tokens reruns some that it has: same tokens, same slots. One too
        # short for that runs fillers after its root, where the tree is written next.
        self._pending = _Pending(
            Known([[*c[-pending:], *[c[-1]] * (pending - len(c))] for c in committed]),
            Known([max(len(c) - pending, 0) for c in committed]),
            Known([min(len(c), pending) - 1 for c in committed]),
        )
        return self._pending

    def at_root(self, committed: Committed) -> Tensor:
        tokens, starts, last = self._pending
        keep = 1 if last.exact and min(last) == len(tokens[0]) - 1 else 0
        logits = []
        for model, cache in zip(self.models, self._caches, strict=True):
            ids = tokens.on(model.device)
            output = run_pending(model, cache, starts, ids, logits_to_keep=keep).logits
            if not keep:
                rows = places(len(last), output.device).unsqueeze(1)
                output = output[rows, last.on(output.device).unsqueeze(1)]
            logits.append(output)
        return _by_draft(logits)

    def at_frontier(self, tree: Tree, committed: Committed) -> Tensor:
        return _by_draft(
            [
                run_nodes(model, cache, tree, committed.lengths, tree.frontier).logits
                for model, cache in zip(self.models, self._caches, strict=True)
            ]
        )

    def commit(
        self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor, depth: int
    ) -> None:
        kept = [row[:depth] for row in nodes]
        for cache in self._caches:
            commit_paths(cache, lengths, kept, path[:, :depth])
        self._cached[: len(kept)] = (
            length + len(row) for length, row in zip(lengths, kept, strict=True)
        )

    @property
    def follows(self) -> bool:  # type: ignore[override]
        return all(getattr(model, "follows", False) for model in self.models)

    def follow(self, verified: Verified, depth: int, following: Committed) -> None:
        lengths, path, accepted, emitted = verified
        for cache in self._caches:
            cache.commit_all(lengths, path[:, :depth])
        # What the drafts ran of the path is kept; fillers come after a row's root, where the tree
        # is written next.
        count, kept = path.shape[1] + 1 - depth, (accepted + 1).clamp(max=depth)
        index = kept.unsqueeze(1) - 1 + places(count, path.device)
        tokens = emitted.gather(1, index.clamp(max=path.shape[1] - 1))
        there = lengths.on(path.device) + kept
        self._pending = _Pending(
            Followed([[0] * count for _ in lengths], tokens),
            Followed([length + depth for length in lengths], there, lengths.least + 1),
            Followed([count - 1] * len(lengths), accepted + 1 - kept),
        )
        self._ran = depth

    def caught_up(self, row: int, tokens: int, emitted: int) -> None:
        self._cached[row] = tokens - 1 - emitted + min(emitted, self._ran)

    def move_row(self, source: int, target: int) -> None:
        for cache in self._caches:
            cache.move_row(source, target, self._cached[source])
        self._cached[target] = self._cached[source]

    def take_forward_s(self) -> float:
        """Seconds in draft forward passes since the last call."""
        return sum(model.timer.take_s() for model in self.models)


class RespelledDrafting(LanguageModelDrafting):
    """One draft of another tokenizer: its context is the target's text in its own tokens.

    A context differs from the target's in length where a token has several parts; a tree does not,
    for what the draft can propose it has in one part. What somebody else proposed, a look-up say,
    may have several: it is kept as far as it has one part each, the rest is run again.
    """

    follows = False  # how many parts a token has is the host's to look up

    def __init__(self, model: MappedModel, caches: Sequence[Any], rows: int) -> None:
        super().__init__([model], caches, rows)
        self._model, self._rows = model, Committed([])
        self._tokens = torch.zeros(0)  # of the trees' nodes that were run

    def start(self, row: int, prompt: Sequence[int]) -> None:
        super().start(row, self._model.respelled(prompt))

    def needs(self, committed: Committed) -> Sequence[Known]:
        self._rows = Committed(self._model.respelled(tokens) for tokens in committed)
        return (*super().needs(self._rows), self._rows.lengths)

    def at_root(self, committed: Committed) -> Tensor:
        return super().at_root(self._rows)

    def at_frontier(self, tree: Tree, committed: Committed) -> Tensor:
        self._tokens = tree.tokens
        return super().at_frontier(tree, self._rows)

    def commit(
        self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor, depth: int
    ) -> None:
        kept = [[*row[:1]] for row in nodes]
        if depth > 1:
            for first, row, tokens in zip(kept, nodes, self._tokens.tolist(), strict=True):
                in_parts = [tokens[node] in self._model.pieces for node in row[1:depth]]
                first += row[1:depth][: [*in_parts, True].index(True)]
        super().commit(self._rows.lengths, kept, path, depth)


def drafting_of(equipment: Equipment) -> LanguageModelDrafting:
    """What drafts with the models; several drafts must have the target's tokenizer."""
    models, caches, rows = equipment.models, equipment.caches, equipment.rows
    respelled = [each for each in models if isinstance(each, MappedModel) and each.pieces]
    if not respelled:
        return LanguageModelDrafting(models, caches, rows)
    if len(models) > 1:
        raise ValueError("several drafts need the target's tokenizer; one of them has another")
    return RespelledDrafting(respelled[0], caches, rows)


@drafter("language_model")
@dataclass(frozen=True)
class LanguageModelDrafter(Drafter):
    """The pair's draft models."""

    # D, how many of them; several share the children of a node in turn
    drafts: Annotated[int, Range(1, 64)] = 1

    @property
    def models(self) -> int:
        return self.drafts

    @classmethod
    def audit_cases(cls, models: int) -> tuple[Drafter, ...]:
        return (cls(models),)

    def drafting(self, equipment: Equipment) -> Drafting:
        return drafting_of(equipment)


def _by_draft(logits: list[Tensor]) -> Tensor:
    """[R, F, D, V] from D logits [R, F, V]; nothing is copied if there is one draft."""
    return logits[0].unsqueeze(2) if len(logits) == 1 else torch.stack(logits, dim=2)
