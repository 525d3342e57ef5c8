"""All short strings of some texts with how often they occur, and what follows a string most often.

Suffix decoding's trees (Oliaro et al., 2024, arXiv 2411.04975), as ArcticInference and vLLM score
them. Pure Python on token ids.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from spec_bench.draft.base import Drafter, Drafting, Equipment, Memory, drafter
from spec_bench.draft.lookup import LookupDrafting
from spec_bench.draft.ngrams import Bounds, Guess
from spec_bench.settings.fields import Range, Share


@dataclass(slots=True)
class Node:
    """One string."""

    count: int = 0  # its occurrences, those at the end of a text too
    # by the token that follows, in the order first seen
    children: dict[int, Node] = field(default_factory=dict)


class SuffixTrie:
    """The strings of at most ``depth`` tokens of texts that are read one after the other."""

    def __init__(self, depth: int) -> None:
        self.depth, self.root = depth, Node()

    def read(self, tokens: Iterable[int], ends: Sequence[Node] = ()) -> list[Node]:
        """Adds tokens behind a text that ends with the strings ``ends``, by length, () for a new
        one; the strings that it ends with now.
        """
        ends = list(ends)
        for token in tokens:
            ends = [self.root, *ends[: self.depth - 1]]
            for place, node in enumerate(ends):
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = Node()
                child.count += 1
                ends[place] = child
        return ends

    def matches(self, tokens: Iterable[int], ends: Sequence[Node] = ()) -> list[Node]:
        """As ``read`` for a text that is looked up and not added: the strings at its end that there
        are, by length, up to the first that there is not.
        """
        ends = list(ends)
        for token in tokens:
            below = (node.children.get(token) for node in (self.root, *ends[: self.depth - 1]))
            ends = []
            for child in below:
                if child is None:
                    break
                ends.append(child)
        return ends


class Proposal(NamedTuple):
    """What follows a match."""

    score: float  # tokens that would be accepted if frequencies were distributions
    levels: list[list[Guess]]  # per level its nodes, the likelier first


@dataclass
class SuffixIndex:
    """One row's text and the earlier answers, and what they propose."""

    depth: int  # most tokens of a match and its proposal together
    factor: float  # most tokens proposed for each token of the match
    least: float  # the frequencies along a proposed token's path multiply to this much
    answers: SuffixTrie | None  # the earlier ones; None: none are looked at
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._own = SuffixTrie(self.depth)
        self._ends: list[Node] = []  # of the row's own text
        self._ends_there: list[Node] = []  # in earlier answers

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        new = list(tokens)
        self.tokens.extend(new)
        self._ends = self._own.read(new, self._ends)
        if self.answers is not None:
            self._ends_there = self.answers.matches(new, self._ends_there)

    def guesses(self, bounds: Bounds) -> list[list[Guess]]:
        """The proposal of the best score, over lengths of the match and both texts.

        Of equal ones the longer match's, then the row's own. At most ``bounds.width`` nodes a level
        and ``bounds.depth`` levels.
        """
        best = Proposal(0.0, [])
        for ends in (self._ends, self._ends_there):
            longest = Proposal(0.0, [])
            for length, node in enumerate(ends[: len(self.tokens) - 1], 1):
                most = min(bounds.width * bounds.depth, int(self.factor * length + 1e-6))
                found = below(node, most, bounds, self.least)
                if found.score >= longest.score:
                    longest = found
            if longest.score > best.score:
                best = longest
        return best.levels


def below(node: Node, most: int, bounds: Bounds, least: float) -> Proposal:
    """The likeliest strings after a node's, ``most`` of them, best first by the product of
    frequencies, none with one below ``least``.
    """
    levels: list[list[Guess]] = []
    score, taken, order = 0.0, 0, 0
    waiting: list[tuple[float, int, int, int, int, Node]] = []

    def offer(parent: Node, worth: float, level: int, place: int) -> None:
        nonlocal order
        for token, child in parent.children.items():
            share = worth * child.count / parent.count
            if share >= least and level < bounds.depth:
                heapq.heappush(waiting, (-share, order, level, place, token, child))
                order += 1

    if node.count:
        offer(node, 1.0, 0, 0)
    while waiting and taken < most:
        worth, _, level, place, token, child = heapq.heappop(waiting)
        if level == len(levels):
            levels.append([])
        if len(levels[level]) == bounds.width:
            continue
        levels[level].append(Guess(token, place))
        score, taken = score - worth, taken + 1
        offer(child, -worth, level + 1, len(levels[level]) - 1)
    return Proposal(score, levels)


# Suffix decoding: what followed the row's last tokens before, in its own text or earlier answers.
#
# Proposals are one-hot and a function of the row's tokens and of what is remembered, so the
# target's distribution stays. What is remembered hangs on the order of the prompts and is fixed:
# the answers of all prompts that come before in the job, so that a job that was stopped goes on
# alike.


class Answers(Memory):
    """Earlier answers as one tree."""

    def __init__(self, depth: int) -> None:
        self._depth, self._read = depth, list[Sequence[int]]()
        self.trie = SuffixTrie(depth)

    def remember(self, answers: Sequence[Sequence[int]]) -> None:
        known = len(self._read)
        if list(answers[:known]) != self._read:
            self.trie, self._read, known = SuffixTrie(self._depth), [], 0
        for answer in answers[known:]:
            self.trie.read(answer)
            self._read.append(answer)


@drafter("suffix")
@dataclass(frozen=True)
class Suffix(Drafter):
    """Counted strings of the row's own text and of earlier answers."""

    depth: Annotated[int, Range(2, 256)] = 24  # most tokens of a match and its proposal together
    # most tokens proposed for each token of the match
    factor: Annotated[float, Range(0.01, 64)] = 1.0
    least: Share = 0.1  # of the product of frequencies along a proposal
    # `none`, or `finished` answers of the prompts before
    memory: Literal["none", "finished"] = "finished"

    policies = ("guessed",)

    def calls(self, depth: int) -> int:
        """0: no network drafts."""
        return 0

    def remembering(self) -> Answers | None:
        return Answers(self.depth) if self.memory == "finished" else None

    def drafting(self, equipment: Equipment) -> Drafting:
        memory = equipment.memory
        trie = memory.trie if isinstance(memory, Answers) else None

        def index() -> SuffixIndex:
            return SuffixIndex(self.depth, self.factor, self.least, trie)

        return LookupDrafting(index, Bounds, equipment.rows)
