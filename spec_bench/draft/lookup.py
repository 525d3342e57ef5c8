"""No draft model: the row's own past is looked up, and what followed is proposed.

Proposals are one-hot and a function of the row's tokens so far, so every rule for deterministic
siblings keeps the target's law. A row looks only at itself: what its neighbours in a batch hold
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from spec_bench.draft.base import Drafter, Drafting, Equipment, drafter
from spec_bench.draft.ngrams import Bounds, Guess, NgramIndex
from spec_bench.fields import Count, Range, Share


class LookupDrafting(Drafting):
    """One index per row, brought up to date before it is asked.

    Args:
        plan: how to look up.
        rows: rows of the batch.
    """

    def __init__(self, plan: Lookup, rows: int) -> None:
        self._plan = plan
        self._rows = [self._index() for _ in range(rows)]

    def _index(self) -> NgramIndex:
        return NgramIndex(self._plan.longest, self._plan.shortest)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self._rows[row] = self._index()
        self._rows[row].extend(prompt)

    def guesses(
        self, committed: Sequence[Sequence[int]], width: int, depth: int
    ) -> list[list[list[Guess]]]:
        bounds = Bounds(width, depth, self._plan.share, self._plan.per_match)
        found = []
        for index, tokens in zip(self._rows, committed, strict=False):
            index.extend(tokens[len(index.tokens) :])
            found.append(index.guesses(bounds))
        return found

    def move_row(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]
        self._rows[source] = self._index()


@drafter("lookup")
@dataclass(frozen=True)
class Lookup(Drafter):
    """The row's own n-grams.

    Attributes:
        longest: the longest n-gram at the row's end that is looked for.
        shortest: the shortest.
        share: a token is proposed only where it followed in at least this share of occurrences.
        per_match: most tokens proposed per token of the match; null: no bound but the tree's.
    """

    longest: Annotated[int, Range(1, 64)] = 3
    shortest: Count = 1
    share: Share = 0.0
    per_match: Annotated[float, Range(0.01, 64)] | None = None

    policies = ("guessed",)

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest must be at most longest, {self.longest}, got {self.shortest}"
            )

    def calls(self, depth: int) -> int:
        """0: no network drafts."""
        return 0

    def drafting(self, equipment: Equipment) -> Drafting:
        return LookupDrafting(self, equipment.rows)
