"""The row's own past where it has a match, a draft model elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from spec_bench.core.transfer import Committed, Known
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafting, Equipment, drafter
from spec_bench.draft.language_model import LanguageModelDrafting, drafting_of
from spec_bench.draft.lookup import Lookup, LookupDrafting
from spec_bench.draft.ngrams import Guess


class LookupOrModelDrafting(Drafting):
    """Two drafters side by side; the model runs only where it is asked, and then catches up.

    Args:
        lookup: the index of each row's past.
        model: one draft model.
    """

    def __init__(self, lookup: LookupDrafting, model: LanguageModelDrafting) -> None:
        self._lookup, self._model = lookup, model
        self._ran = False
        self.vocab_size = model.models[0].vocab_size

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self._lookup.start(row, prompt)
        self._model.start(row, prompt)

    def needs(self, committed: Committed) -> Sequence[Known]:
        return self._model.needs(committed)

    def guesses(
        self, committed: Sequence[Sequence[int]], width: int, depth: int
    ) -> list[list[list[Guess]]]:
        return self._lookup.guesses(committed, width, depth)

    def at_root(self, committed: Committed) -> Tensor:
        self._ran = True
        return self._model.at_root(committed)

    def at_frontier(self, tree: Tree, committed: Committed) -> Tensor:
        return self._model.at_frontier(tree, committed)

    def commit(
        self,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        path: Tensor,
        depth: int,
    ) -> None:
        if self._ran:
            self._model.commit(lengths, nodes, path, depth)
        self._ran = False

    def move_row(self, source: int, target: int) -> None:
        self._lookup.move_row(source, target)
        self._model.move_row(source, target)

    def take_forward_s(self) -> float:
        return self._model.take_forward_s()


@drafter("lookup_or_model")
@dataclass(frozen=True)
class LookupOrModel(Lookup):
    """The row's own n-grams, and the pair's draft model where none of them occurred before."""

    policies = ("guess_or_draft",)

    @property
    def models(self) -> int:
        return 1

    def calls(self, depth: int) -> int:
        """At most one pass per level: an iteration in which all rows find a match takes none."""
        return depth

    def drafting(self, equipment: Equipment) -> Drafting:
        model = drafting_of(equipment)
        return LookupOrModelDrafting(LookupDrafting(self.index, self.bounds, equipment.rows), model)
