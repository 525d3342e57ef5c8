"""What followed the last few tokens before: indices of n-grams over one row, and their guesses.

Pure Python on token ids. Prompt lookup (github.com/apoorvumang/prompt-lookup-decoding) copies what
followed the first occurrence of the longest of a few short n-grams (``FirstIndex``). ``NgramIndex``
weighs the latest occurrences against each other, token by token; with long n-grams, and going on
only where the past mostly agrees, it is suffix decoding's lookup in one row (arXiv 2411.04975,
section 3; 2411.10666), without its tree over earlier answers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_RECENT = 64  # occurrences of one n-gram that are looked at, the latest


class Guess(NamedTuple):
    """One node of the guessed tree."""

    token: int  # its token
    parent: int  # place of its parent among the nodes of the level above; 0 below the root


@dataclass(frozen=True)
class Bounds:
    """How far guesses may go."""

    width: int  # most nodes of a level
    depth: int  # most levels
    # a node is guessed only if at least this share of its parent's occurrences went on with its
    # token
    share: float = 0.0
    # most nodes in all for each token of the match; None: no such bound
    per_match: float | None = None


class FirstIndex:
    """All tokens of a row so far, and where each n-gram of them first ended."""

    def __init__(self, longest: int, shortest: int = 1) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._first: dict[tuple[int, ...], int] = {}
        self.tokens: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for length in self._lengths:
                if length <= end:
                    self._first.setdefault(tuple(self.tokens[end - length :]), end)

    def guesses(self, bounds: Bounds) -> list[list[Guess]]:
        """The span that followed the first earlier occurrence of the longest n-gram at the end.

        One that begins close to the end is as long as it is, as in transformers'
        ``PromptLookupCandidateGenerator``. Only ``depth`` bounds it; a level has one node.
        """
        end = len(self.tokens)
        for length in self._lengths:
            gram = tuple(self.tokens[end - length :]) if length < end else ()
            if (first := self._first.get(gram, end)) < end:
                return [[Guess(token, 0)] for token in self.tokens[first : first + bounds.depth]]
        return []


class NgramIndex:
    """All tokens of a row so far, and where each n-gram of them ended."""

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
                    gram = tuple(self.tokens[end - length : end])
                    ends = self._ends.setdefault(gram, [])
                    ends.append(end)
                    del ends[:-_RECENT]

    def match(self) -> tuple[int, list[int]]:
        """Length of the longest n-gram at the end that was there before, and where its earlier
        occurrences ended, the latest last; (0, []) if there were none.
        """
        end = len(self.tokens)
        for length in self._lengths:
            if length <= end:
                ends = self._ends.get(tuple(self.tokens[end - length :]), [])
                if len(ends) > 1:
                    return length, ends[:-1]
        return 0, []

    def guesses(self, bounds: Bounds) -> list[list[Guess]]:
        """What followed the match, with occurrences of equal beginnings merged, level by level.

        A level keeps the continuations seen most often, and of equally frequent ones the most
        recent, in that order.
        """
        length, ends = self.match()
        left = bounds.width * bounds.depth
        if bounds.per_match is not None:
            left = min(left, int(bounds.per_match * length))
        levels: list[list[Guess]] = []
        above: list[list[int]] = [ends] if ends else []
        while above and len(levels) < bounds.depth and left > 0:
            level = self._next(above, len(levels), bounds.share)[: min(bounds.width, left)]
            if not level:
                break
            levels.append([guess for guess, _ in level])
            above = [ends for _, ends in level]
            left -= len(level)
        return levels

    def _next(
        self, above: Sequence[list[int]], offset: int, share: float
    ) -> list[tuple[Guess, list[int]]]:
        """The nodes below a level's nodes, best first, each with its occurrences.

        ``above``: per node where the occurrences that run through it ended, ``offset`` tokens
        before.
        """
        ranked: list[tuple[int, int, int, int, list[int]]] = []
        for parent, ends in enumerate(above):
            going: dict[int, list[int]] = {}
            for end in ends:
                if end + offset < len(self.tokens):
                    going.setdefault(self.tokens[end + offset], []).append(end)
            for token, mine in going.items():
                if len(mine) >= share * len(ends):
                    insort(ranked, (-len(mine), -mine[-1], parent, token, mine))
        return [(Guess(token, parent), mine) for _, _, parent, token, mine in ranked]
