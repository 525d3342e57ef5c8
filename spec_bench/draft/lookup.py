"""No draft model: the row's own past is looked up, and what followed is proposed.

Proposals are one-hot and a function of the row's tokens so far, so every rule for deterministic
siblings keeps the target's distribution. A row looks only at itself: what its neighbours in a batch
hold changes nothing.

Pure Python on token ids. Prompt lookup (github.com/apoorvumang/prompt-lookup-decoding) copies what
followed the first occurrence of the longest of a few short n-grams (``FirstMatchIndex``).
``NgramIndex`` weighs the latest occurrences against each other, token by token; with long n-grams,
and going on only where the past mostly agrees, it is suffix decoding's lookup in one row (arXiv
2411.04975, section 3; 2411.10666), without its tree over earlier answers, which is
``SuffixIndex``.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Interval
from torch import Tensor

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Tree
from spec_bench.draft.base import (
    Drafter,
    DraftResources,
    DraftState,
    GuessedNode,
    drafter,
)
from spec_bench.draft.language_model import LanguageModelDraftState, make_language_model_state
from spec_bench.settings.fields import Count, Share
from spec_bench.system.errors import UsageError

_RECENT = 64  # occurrences of one n-gram that are looked at, the latest


@dataclass(frozen=True)
class GuessBounds:
    """Limits on the size of guesses."""

    width: int  # most nodes of a level
    depth: int  # most levels
    # least share of its parent's occurrences that a guessed node's token must follow
    min_share: float = 0.0
    # most nodes in all for each token of the match; None: no such bound
    nodes_per_match_token: float | None = None


class NgramIndex:
    """All tokens of a row so far, and where each n-gram of them ended."""

    _dropped = slice(None, -_RECENT)  # of an n-gram's occurrences

    def __init__(self, longest: int, shortest: int = 1) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self.tokens: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for length in self._lengths:
                if length <= end:
                    ends = self._ends.setdefault(tuple(self.tokens[end - length :]), [])
                    ends.append(end)
                    del ends[self._dropped]

    def find_longest_match(self) -> tuple[int, list[int]]:
        """Finds the longest n-gram at the end that occurred before; returns its length and the ends
        of its earlier occurrences, the latest last; (0, []) if there is none.
        """
        end = len(self.tokens)
        for length in self._lengths:
            if length <= end:
                ends = self._ends.get(tuple(self.tokens[end - length :]), [])
                if len(ends) > 1:
                    return length, ends[:-1]
        return 0, []

    def guess_tree(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Merges the match's continuations into a tree, level by level, the most frequent first;
        ties go to the most recent.
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
        """Finds the nodes below a level's, best first, each with its occurrences. ``parent_ends``
        holds the ends of each node's matches, ``offset`` tokens before.
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
    """An n-gram index of the first and the last occurrence alone."""

    _dropped = slice(1, -1)

    def guess_tree(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Copies the span after the first earlier occurrence of the longest n-gram at the end.

        The text's end cuts it, as in transformers' ``PromptLookupCandidateGenerator``. Only
        ``depth`` bounds it; a level has one node.
        """
        _, ends = self.find_longest_match()
        span = self.tokens[ends[0] : ends[0] + bounds.depth] if ends else []
        return [[GuessedNode(token, 0)] for token in span]


class LookupDraftState(DraftState):
    """One index per row, updated before each guess; ``bounds`` follow width and depth."""

    recordable = True  # guesses are made before

    def __init__(self, index: Callable[[], Any], rows: int, *bounds: Any) -> None:
        self._index = index
        self._bounds = bounds
        self._rows = [index() for _ in range(rows)]

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        self._rows[row] = self._index()
        self._rows[row].extend(prompt)

    def guess_trees(
        self,
        committed: Sequence[Sequence[int]],
        width: int,
        depth: int,
    ) -> list[list[list[GuessedNode]]]:
        bounds = GuessBounds(width, depth, *self._bounds)
        guesses = []
        for index, tokens in zip(self._rows, committed, strict=False):
            index.extend(tokens[len(index.tokens) :])
            guesses.append(index.guess_tree(bounds))
        return guesses

    def move_row(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]
        self._rows[source] = self._index()


@drafter("first_match")
@dataclass(frozen=True)
class FirstMatch(Drafter):
    """A copy of what followed the first earlier occurrence of the row's last n-gram."""

    # the longest n-gram at the row's end that is looked for
    longest: Annotated[int, Interval(ge=1, le=64)] = 3
    shortest: Count = 1  # the shortest

    policies = ("guessed",)
    single = True
    passes: ClassVar[int | None] = 0

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise UsageError(
                f"shortest must be at most longest, {self.longest}, got {self.shortest}"
            )

    def make_index(self) -> NgramIndex:
        """Makes an empty index of one row."""
        return FirstMatchIndex(self.longest, self.shortest)

    def make_state(self, resources: DraftResources) -> DraftState:
        return LookupDraftState(self.make_index, resources.rows)


@drafter("lookup")
@dataclass(frozen=True)
class Lookup(FirstMatch):
    """The row's own n-grams, their latest occurrences weighed against each other."""

    share: Share = 0.0  # a token is proposed only where it followed in this share of occurrences
    # most tokens proposed per token of the match; null: no bound but the tree's
    per_match: Annotated[float, Interval(ge=0.01, le=64)] | None = None

    single = False

    def make_index(self) -> NgramIndex:
        return NgramIndex(self.longest, self.shortest)

    def make_state(self, resources: DraftResources) -> DraftState:
        return LookupDraftState(self.make_index, resources.rows, self.share, self.per_match)


# The row's own past where it has a match, a draft model elsewhere.


class LookupOrModelDraftState(LookupDraftState):
    """Looks up guesses, and runs a model where there are none; it catches up when it runs."""

    recordable = False

    def __init__(self, model: LanguageModelDraftState, *args: Any) -> None:
        super().__init__(*args)
        self._model = model
        self._ran = False
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
        self._ran = True
        return self._model.root_logits(committed)

    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        return self._model.frontier_logits(tree, committed)

    def commit(
        self,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        path: Tensor,
        depth: int,
    ) -> None:
        if self._ran:
            self._model.commit(lengths, nodes, path, depth)

    def update_cached_counts(
        self, lengths: Sequence[int], accepted: Sequence[int], depth: int
    ) -> None:
        if self._ran:
            self._model.update_cached_counts(lengths, accepted, depth)
        self._ran = False

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
    passes = None  # at most one for each level: where all rows find a match there is none

    @property
    def model_count(self) -> int:
        return 1

    def make_state(self, resources: DraftResources) -> DraftState:
        args = (self.make_index, resources.rows, self.share, self.per_match)
        return LookupOrModelDraftState(make_language_model_state(resources), *args)
