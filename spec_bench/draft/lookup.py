"""Drafts by look-up: finds earlier occurrences of the row's last n-gram, and proposes what
followed.

Proposals are one-hot and depend only on the row's tokens so far, so every rule for deterministic
siblings keeps the target's distribution. Other rows of the batch change nothing.

The code is pure Python on token ids. Prompt lookup (github.com/apoorvumang/prompt-lookup-decoding)
copies the tokens after the first occurrence of the longest matching n-gram (``FirstMatchIndex``).
``NgramIndex`` merges the latest occurrences into a tree, token by token. With long n-grams and a
least share of occurrences it is suffix decoding's lookup within a row (arXiv 2411.04975, section 3;
2411.10666). Suffix decoding's tree over earlier answers is ``SuffixIndex``.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Interval

from spec_bench.draft.base import Drafter, DraftResources, DraftState, GuessedNode, drafter
from spec_bench.settings.fields import Count, Share
from spec_bench.system.errors import UsageError

_RECENT = 64  # number of an n-gram's latest occurrences that are kept


@dataclass(frozen=True)
class GuessBounds:
    """Limits on the size of guesses."""

    width: int  # most nodes of a level
    depth: int  # most levels
    # a token is guessed if it follows at least this share of its parent's occurrences
    min_share: float = 0.0
    # most nodes of the tree per token of the match; None: unlimited
    nodes_per_match_token: float | None = None


class NgramIndex:
    """A row's tokens so far, with the positions where each n-gram ended."""

    _dropped = slice(None, -_RECENT)  # occurrences of an n-gram to forget

    def __init__(self, longest: int, shortest: int = 1) -> None:
        self._ngram_lengths = range(longest, shortest - 1, -1)
        self._ends_by_ngram: dict[tuple[int, ...], list[int]] = {}
        self.tokens: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens and indexes their n-grams."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for length in self._ngram_lengths:
                if length <= end:
                    ends = self._ends_by_ngram.setdefault(tuple(self.tokens[end - length :]), [])
                    ends.append(end)
                    del ends[self._dropped]

    def find_longest_match(self) -> tuple[int, list[int]]:
        """Finds the longest n-gram at the end that occurred before; returns its length and the ends
        of its earlier occurrences, in order. Returns (0, []) if there is none.
        """
        end = len(self.tokens)
        for length in self._ngram_lengths:
            if length <= end:
                ends = self._ends_by_ngram.get(tuple(self.tokens[end - length :]), [])
                if len(ends) > 1:
                    return length, ends[:-1]
        return 0, []

    def guess_tree(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Merges the match's continuations into a tree; returns its levels, the most frequent nodes
        first. Ties go to the most recent.
        """
        length, ends = self.find_longest_match()
        budget = bounds.width * bounds.depth
        if bounds.nodes_per_match_token is not None:
            budget = min(budget, int(bounds.nodes_per_match_token * length))
        levels: list[list[GuessedNode]] = []
        parent_ends: list[list[int]] = [ends] if ends else []
        while parent_ends and len(levels) < bounds.depth and budget > 0:
            level = self._find_next_nodes(parent_ends, len(levels), bounds.min_share)[
                : min(bounds.width, budget)
            ]
            if not level:
                break
            levels.append([guess for guess, _ in level])
            parent_ends = [ends for _, ends in level]
            budget -= len(level)
        return levels

    def _find_next_nodes(
        self,
        parent_ends: Sequence[list[int]],
        offset: int,
        min_share: float,
    ) -> list[tuple[GuessedNode, list[int]]]:
        """Finds the nodes below a level's nodes, best first, each with its occurrences.
        ``parent_ends`` holds, for each node of the level, the ends of its matches; the nodes'
        tokens come ``offset`` tokens after these.
        """
        candidates: list[tuple[int, int, int, int, list[int]]] = []
        for parent, ends in enumerate(parent_ends):
            ends_by_token: dict[int, list[int]] = {}
            for end in ends:
                if end + offset < len(self.tokens):
                    ends_by_token.setdefault(self.tokens[end + offset], []).append(end)
            for token, child_ends in ends_by_token.items():
                if len(child_ends) >= min_share * len(ends):
                    insort(
                        candidates, (-len(child_ends), -child_ends[-1], parent, token, child_ends)
                    )
        return [
            (GuessedNode(token, parent), child_ends)
            for _, _, parent, token, child_ends in candidates
        ]


class FirstMatchIndex(NgramIndex):
    """N-gram index that keeps only the first and the last occurrence."""

    _dropped = slice(1, -1)

    def guess_tree(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Copies the span after the first earlier occurrence of the longest n-gram at the end.

        The text's end cuts the span, as in transformers' ``PromptLookupCandidateGenerator``. Of
        ``bounds`` only ``depth`` applies; every level has one node.
        """
        _, ends = self.find_longest_match()
        span = self.tokens[ends[0] : ends[0] + bounds.depth] if ends else []
        return [[GuessedNode(token, 0)] for token in span]


class LookupDraftState(DraftState):
    """State with an index per row, updated before each guess. ``bounds`` are the fields of
    ``GuessBounds`` after width and depth.
    """

    recordable = True  # guesses are made before the recorded part

    def __init__(self, make_index: Callable[[], Any], rows: int, *bounds: Any) -> None:
        self._make_index = make_index
        self._bounds = bounds
        self._row_indexes = [make_index() for _ in range(rows)]

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        self._row_indexes[row] = self._make_index()
        self._row_indexes[row].extend(prompt)

    def guess_trees(
        self,
        committed: Sequence[Sequence[int]],
        width: int,
        depth: int,
    ) -> list[list[list[GuessedNode]]]:
        bounds = GuessBounds(width, depth, *self._bounds)
        guesses = []
        for index, tokens in zip(self._row_indexes, committed, strict=False):
            index.extend(tokens[len(index.tokens) :])
            guesses.append(index.guess_tree(bounds))
        return guesses

    def move_row(self, source: int, target: int) -> None:
        self._row_indexes[target] = self._row_indexes[source]
        self._row_indexes[source] = self._make_index()


@drafter("first_match")
@dataclass(frozen=True)
class FirstMatch(Drafter):
    """A copy of what followed the first earlier occurrence of the row's last n-gram."""

    # length of the longest n-gram at the row's end that is looked up
    longest: Annotated[int, Interval(ge=1, le=64)] = 3
    shortest: Count = 1  # length of the shortest

    policies = ("guessed",)
    single = True
    passes: ClassVar[int | None] = 0

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise UsageError(
                f"shortest must be at most longest, {self.longest}, got {self.shortest}"
            )

    def make_index(self) -> NgramIndex:
        """Makes an empty index for a row."""
        return FirstMatchIndex(self.longest, self.shortest)

    def make_state(self, resources: DraftResources) -> DraftState:
        return LookupDraftState(self.make_index, resources.rows)


@drafter("lookup")
@dataclass(frozen=True)
class Lookup(FirstMatch):
    """The row's own n-grams, their latest occurrences weighed against each other."""

    share: Share = 0.0  # least share of occurrences that a proposed token must follow
    # most tokens proposed per token of the match; null: bounded by the tree only
    per_match: Annotated[float, Interval(ge=0.01, le=64)] | None = None

    single = False

    def make_index(self) -> NgramIndex:
        return NgramIndex(self.longest, self.shortest)

    def make_state(self, resources: DraftResources) -> DraftState:
        return LookupDraftState(self.make_index, resources.rows, self.share, self.per_match)
