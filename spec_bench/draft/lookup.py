"""No draft model: the row's own past is looked up, and what followed is proposed.

Proposals are one-hot and a function of the row's tokens so far, so every rule for deterministic
siblings keeps the target's distribution. A row looks only at itself: what its neighbours in a batch
hold changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from torch import Tensor

from spec_bench.core.transfer import Committed, Known
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, Drafting, Equipment, drafter
from spec_bench.draft.language_model import LanguageModelDrafting, drafting_of
from spec_bench.draft.ngrams import Bounds, FirstIndex, Guess, NgramIndex
from spec_bench.settings.fields import Count, Range, Share


class Index(Protocol):
    """One row's text, looked up at its end."""

    tokens: list[int]  # all so far

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        ...

    def guesses(self, bounds: Bounds) -> list[list[Guess]]:
        """Per level its nodes, best first."""
        ...


class LookupDrafting(Drafting):
    """One index per row, brought up to date before it is asked; ``bounds``: of a tree's width and
    depth.
    """

    def __init__(
        self, index: Callable[[], Index], bounds: Callable[[int, int], Bounds], rows: int
    ) -> None:
        self._index, self._bounds = index, bounds
        self._rows = [index() for _ in range(rows)]

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self._rows[row] = self._index()
        self._rows[row].extend(prompt)

    def guesses(
        self, committed: Sequence[Sequence[int]], width: int, depth: int
    ) -> list[list[list[Guess]]]:
        bounds = self._bounds(width, depth)
        guesses = []
        for index, tokens in zip(self._rows, committed, strict=False):
            index.extend(tokens[len(index.tokens) :])
            guesses.append(index.guesses(bounds))
        return guesses

    def move_row(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]
        self._rows[source] = self._index()


@drafter("first_match")
@dataclass(frozen=True)
class FirstMatch(Drafter):
    """A copy of what followed the first earlier occurrence of the row's last n-gram."""

    # the longest n-gram at the row's end that is looked for
    longest: Annotated[int, Range(1, 64)] = 3
    shortest: Count = 1  # the shortest

    policies = ("guessed",)
    single = True

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest must be at most longest, {self.longest}, got {self.shortest}"
            )

    def index(self) -> FirstIndex | NgramIndex:
        """An empty index of one row."""
        return FirstIndex(self.longest, self.shortest)

    def bounds(self, width: int, depth: int) -> Bounds:
        """How far guesses go within a tree of that size."""
        return Bounds(width, depth)

    def calls(self, depth: int) -> int:
        """0: no network drafts."""
        return 0

    def drafting(self, equipment: Equipment) -> Drafting:
        return LookupDrafting(self.index, self.bounds, equipment.rows)


@drafter("lookup")
@dataclass(frozen=True)
class Lookup(FirstMatch):
    """The row's own n-grams, their latest occurrences weighed against each other."""

    share: Share = 0.0  # a token is proposed only where it followed in this share of occurrences
    # most tokens proposed per token of the match; null: no bound but the tree's
    per_match: Annotated[float, Range(0.01, 64)] | None = None

    single = False

    def index(self) -> NgramIndex:
        return NgramIndex(self.longest, self.shortest)

    def bounds(self, width: int, depth: int) -> Bounds:
        return Bounds(width, depth, self.share, self.per_match)


# The row's own past where it has a match, a draft model elsewhere.


class LookupOrModelDrafting(Drafting):
    """Two drafters side by side; the model runs only where it is asked, and then catches up."""

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
        self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor, depth: int
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
