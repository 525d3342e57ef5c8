"""Suffix decoding's trees (Oliaro et al., 2024, arXiv 2411.04975), scored as in ArcticInference and
vLLM: counts all short strings of the row's own text and of earlier answers, and proposes the most
frequent continuations of the row's last tokens.

The memory holds the answers to all earlier prompts of the job, in the prompts' order, so that a
resumed job decodes the same.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from annotated_types import Interval

from spec_bench.draft.base import (
    Drafter,
    DraftMemory,
    DraftResources,
    DraftState,
    GuessedNode,
    drafter,
)
from spec_bench.draft.lookup import GuessBounds, LookupDraftState
from spec_bench.settings.fields import Share, get_first_line
from spec_bench.system.errors import UsageError
from spec_bench.system.files import hash_json


@dataclass(slots=True)
class SuffixNode:
    """A string of tokens in a trie."""

    count: int = 0  # its occurrences, including those at the end of a text
    # by the following token, in order of first occurrence
    children: dict[int, SuffixNode] = field(default_factory=dict)


class SuffixTrie:
    """Trie of all strings of at most ``depth`` tokens in texts that are read one by one."""

    def __init__(self, depth: int) -> None:
        self.depth, self.root = depth, SuffixNode()

    def append_text(
        self, tokens: Iterable[int], ends: Sequence[SuffixNode] = ()
    ) -> list[SuffixNode]:
        """Appends tokens to a text; returns the nodes of its new last strings, by length. ``ends``
        are the nodes of its last strings before, () for a new text.
        """
        ends = list(ends)
        for token in tokens:
            ends = [self.root, *ends[: self.depth - 1]]
            for place, node in enumerate(ends):
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = SuffixNode()
                child.count += 1
                ends[place] = child
        return ends

    def follow_text(
        self, tokens: Iterable[int], ends: Sequence[SuffixNode] = ()
    ) -> list[SuffixNode]:
        """Follows a text like ``append_text`` but adds nothing; returns the nodes of the strings at
        its end, by length, up to the first unknown string.
        """
        ends = list(ends)
        for token in tokens:
            children = (node.children.get(token) for node in (self.root, *ends[: self.depth - 1]))
            ends = []
            for child in children:
                if child is None:
                    break
                ends.append(child)
        return ends


class ScoredGuess(NamedTuple):
    """A guessed tree after a match, with its score."""

    score: float  # expected number of accepted tokens if frequencies were probabilities
    levels: list[list[GuessedNode]]  # the nodes of each level, the likeliest first


@dataclass
class SuffixIndex:
    """Proposes trees from one row's text and the earlier answers."""

    depth: int  # most tokens of a match and its proposal together
    nodes_per_match_token: float  # most tokens proposed for each token of the match
    min_path_share: float  # least product of the frequencies along a proposed token's path
    answers: SuffixTrie | None  # of earlier answers; None: only the row's text is used
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._own_trie = SuffixTrie(self.depth)
        self._own_ends: list[SuffixNode] = []  # the row's last strings in its own text
        self._answer_ends: list[SuffixNode] = []  # the row's last strings in earlier answers

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens to the row's text."""
        new = list(tokens)
        self.tokens.extend(new)
        self._own_ends = self._own_trie.append_text(new, self._own_ends)
        if self.answers is not None:
            self._answer_ends = self.answers.follow_text(new, self._answer_ends)

    def guess_tree(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Returns the levels of the best-scored proposal over match lengths and both tries; ties go
        to the longer match, then to the row's own text.
        """
        best = ScoredGuess(0.0, [])
        for ends in (self._own_ends, self._answer_ends):
            longest = ScoredGuess(0.0, [])
            for length, node in enumerate(ends[: len(self.tokens) - 1], 1):
                limit = min(
                    bounds.width * bounds.depth, int(self.nodes_per_match_token * length + 1e-6)
                )
                proposal = propose_best_below(node, limit, bounds, self.min_path_share)
                if proposal.score >= longest.score:
                    longest = proposal
            if longest.score > best.score:
                best = longest
        return best.levels


def propose_best_below(
    node: SuffixNode, limit: int, bounds: GuessBounds, min_share: float
) -> ScoredGuess:
    """Proposes at most ``limit`` nodes after a node's string, in descending order of the product of
    frequencies along their path, which is at least ``min_share``.
    """
    levels: list[list[GuessedNode]] = []
    score = 0.0
    count = 0
    order = 0
    heap: list[tuple[float, int, int, int, int, SuffixNode]] = []

    def offer(parent: SuffixNode, probability: float, level: int, place: int) -> None:
        nonlocal order
        for token, child in parent.children.items():
            share = probability * child.count / parent.count
            if share >= min_share and level < bounds.depth:
                heapq.heappush(heap, (-share, order, level, place, token, child))
                order += 1

    if node.count:
        offer(node, 1.0, 0, 0)
    while heap and count < limit:
        probability, _, level, place, token, child = heapq.heappop(heap)
        if level == len(levels):
            levels.append([])
        if len(levels[level]) == bounds.width:
            continue
        levels[level].append(GuessedNode(token, place))
        score -= probability
        count += 1
        offer(child, -probability, level + 1, len(levels[level]) - 1)
    return ScoredGuess(score, levels)


@dataclass
class AnswerMemory(DraftMemory):
    """Trie of earlier answers: those in a file and, with ``keeps_finished``, those of the job."""

    depth: int  # most tokens of a counted string
    earlier_answers: Sequence[Sequence[int]] = ()
    keeps_finished: bool = True

    def __post_init__(self) -> None:
        self._reset_to_earlier_answers()

    def _reset_to_earlier_answers(self) -> None:
        self._remembered_answers, self.trie = list[Sequence[int]](), SuffixTrie(self.depth)
        for answer in self.earlier_answers:
            self.trie.append_text(answer)

    def remember(self, answers: Sequence[Sequence[int]]) -> None:
        if not self.keeps_finished:
            return
        if list(answers[: len(self._remembered_answers)]) != self._remembered_answers:
            self._reset_to_earlier_answers()
        for answer in answers[len(self._remembered_answers) :]:
            self.trie.append_text(answer)
            self._remembered_answers.append(answer)


@drafter("suffix")
@dataclass(frozen=True)
class Suffix(Drafter):
    """Counted strings of the row's own text and of earlier answers."""

    # most tokens of a match and its proposal together
    depth: Annotated[int, Interval(ge=2, le=256)] = 24
    # most tokens proposed for each token of the match
    factor: Annotated[float, Interval(ge=0.01, le=64)] = 1.0
    least: Share = 0.1  # least product of the frequencies along a proposal
    # `none`, or the `finished` answers to earlier prompts
    memory: Literal["none", "finished"] = "finished"
    # JSON lines with `tokens`, answers known from the start, such as a cell's generations.jsonl
    earlier: str | None = None

    policies = ("guessed",)
    passes = 0

    def __post_init__(self) -> None:
        assert self.earlier_answers is not None  # reads the file, or raises UsageError

    @cached_property
    def earlier_answers(self) -> list[list[int]]:
        """The answers in the file ``earlier``. Raises UsageError if it cannot be read, or a line
        has no tokens.
        """
        if self.earlier is None:
            return []
        try:
            lines = Path(self.earlier).read_text("utf-8").splitlines()
            return [[int(token) for token in json.loads(line)["tokens"]] for line in lines]
        except (OSError, ValueError, TypeError, KeyError) as error:
            fault = f"earlier needs JSON lines with tokens, got {self.earlier!r}"
            raise UsageError(f"{fault}: {get_first_line(error)}") from None

    @property
    def file_digest(self) -> str:
        return hash_json(self.earlier_answers) if self.earlier else ""

    def make_memory(self) -> AnswerMemory:
        return AnswerMemory(self.depth, self.earlier_answers, self.memory == "finished")

    def make_state(self, resources: DraftResources) -> DraftState:
        """Makes the state of a batch. Raises UsageError if the target lacks a token of the earlier
        answers.
        """
        vocab = resources.target.vocab_size
        if outside := [
            token for answer in self.earlier_answers for token in answer if not 0 <= token < vocab
        ]:
            raise UsageError(f"{self.earlier}: token {outside[0]}, and the target knows {vocab}")

        def make_index() -> SuffixIndex:
            trie = memory.trie if isinstance(memory := resources.memory, AnswerMemory) else None
            return SuffixIndex(self.depth, self.factor, self.least, trie)

        return LookupDraftState(make_index, resources.rows)
