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

import heapq
import json
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts, cached_arange
from spec_bench.core.tree import Tree
from spec_bench.draft.base import (
    Drafter,
    DraftMemory,
    DraftResources,
    DraftState,
    GuessedNode,
    drafter,
)
from spec_bench.draft.language_model import LanguageModelDraftState, make_language_model_state
from spec_bench.settings.fields import Count, Share, get_first_line
from spec_bench.system.errors import UsageError
from spec_bench.system.files import hash_json

_RECENT = 64  # occurrences of one n-gram that are looked at, the latest


@dataclass(frozen=True)
class GuessBounds:
    """Limits on the size of guesses."""

    width: int  # most nodes of a level
    depth: int  # most levels
    # least share of its parent's occurrences that a guessed node's token must follow
    share: float = 0.0
    # most nodes in all for each token of the match; None: no such bound
    per_match: float | None = None


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
        if bounds.per_match is not None:
            budget = min(budget, int(bounds.per_match * length))
        levels: list[list[GuessedNode]] = []
        parent_ends: list[list[int]] = [ends] if ends else []
        while parent_ends and len(levels) < bounds.depth and budget > 0:
            level = self._find_next_nodes(parent_ends, len(levels), bounds.share)[
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
        share: float,
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
                if len(child_ends) >= share * len(ends):
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


# Suffix decoding's trees (Oliaro et al., 2024, arXiv 2411.04975), as ArcticInference and vLLM score
# them: all short strings of the row's own text or earlier answers with how often they occur, and
# what follows the row's last tokens most often.
#
# The memory depends on the order of the prompts alone: it holds the answers to all earlier prompts
# of the job, so that a resumed job decodes the same.


@dataclass(slots=True)
class SuffixNode:
    """A string of tokens in a trie."""

    count: int = 0  # its occurrences, those at the end of a text too
    # by the token that follows, in the order first seen
    children: dict[int, SuffixNode] = field(default_factory=dict)


class SuffixTrie:
    """The strings of at most ``depth`` tokens of texts that are read one after the other."""

    def __init__(self, depth: int) -> None:
        self.depth, self.root = depth, SuffixNode()

    def append_text(
        self, tokens: Iterable[int], ends: Sequence[SuffixNode] = ()
    ) -> list[SuffixNode]:
        """Appends tokens to a text whose last strings are ``ends``, by length, () for a new text;
        returns its last strings now.
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
        """Follows a text like ``append_text`` without adding it; returns the known strings at its
        end, by length, up to the first unknown one.
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

    score: float  # tokens that would be accepted if frequencies were distributions
    levels: list[list[GuessedNode]]  # per level its nodes, the likelier first


@dataclass
class SuffixIndex:
    """Proposes trees from one row's text and the earlier answers."""

    depth: int  # most tokens of a match and its proposal together
    factor: float  # most tokens proposed for each token of the match
    least: float  # the frequencies along a proposed token's path multiply to this much
    answers: SuffixTrie | None  # the earlier ones; None: none are looked at
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._own = SuffixTrie(self.depth)
        self._ends: list[SuffixNode] = []  # of the row's own text
        self._ends_there: list[SuffixNode] = []  # in earlier answers

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        new = list(tokens)
        self.tokens.extend(new)
        self._ends = self._own.append_text(new, self._ends)
        if self.answers is not None:
            self._ends_there = self.answers.follow_text(new, self._ends_there)

    def guess_tree(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Returns the best-scored proposal over match lengths and both texts; ties go to the longer
        match, then to the row's own text.
        """
        best = ScoredGuess(0.0, [])
        for ends in (self._ends, self._ends_there):
            longest = ScoredGuess(0.0, [])
            for length, node in enumerate(ends[: len(self.tokens) - 1], 1):
                limit = min(bounds.width * bounds.depth, int(self.factor * length + 1e-6))
                proposal = propose_best_below(node, limit, bounds, self.least)
                if proposal.score >= longest.score:
                    longest = proposal
            if longest.score > best.score:
                best = longest
        return best.levels


def propose_best_below(
    node: SuffixNode, limit: int, bounds: GuessBounds, min_share: float
) -> ScoredGuess:
    """Proposes at most ``limit`` nodes after a node's string, best first by the product of
    frequencies, none with a product below ``min_share``.
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


class AnswerMemory(DraftMemory):
    """Earlier answers as one trie: those given, and with ``keeps`` those of the job."""

    def __init__(
        self,
        depth: int,
        before: Sequence[Sequence[int]] = (),
        keeps: bool = True,
    ) -> None:
        self._depth = depth
        self._before = before
        self._keeps = keeps
        self._reset_to_given_answers()

    def _reset_to_given_answers(self) -> None:
        self._read, self.trie = list[Sequence[int]](), SuffixTrie(self._depth)
        for answer in self._before:
            self.trie.append_text(answer)

    def remember(self, answers: Sequence[Sequence[int]]) -> None:
        if not self._keeps:
            return
        if list(answers[: len(self._read)]) != self._read:
            self._reset_to_given_answers()
        for answer in answers[len(self._read) :]:
            self.trie.append_text(answer)
            self._read.append(answer)


@drafter("suffix")
@dataclass(frozen=True)
class Suffix(Drafter):
    """Counted strings of the row's own text and of earlier answers."""

    # most tokens of a match and its proposal together
    depth: Annotated[int, Interval(ge=2, le=256)] = 24
    # most tokens proposed for each token of the match
    factor: Annotated[float, Interval(ge=0.01, le=64)] = 1.0
    least: Share = 0.1  # of the product of frequencies along a proposal
    # `none`, or `finished` answers of the prompts before
    memory: Literal["none", "finished"] = "finished"
    # JSON lines with `tokens`, answers that are known from the start: a cell's generations.jsonl
    earlier: str | None = None

    policies = ("guessed",)
    passes = 0

    def __post_init__(self) -> None:
        assert self.earlier_answers is not None  # they are read, or refused

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

    def make_memory(self) -> AnswerMemory | None:
        keeps = self.memory == "finished"
        return (
            AnswerMemory(self.depth, self.earlier_answers, keeps)
            if keeps or self.earlier_answers
            else None
        )

    def make_state(self, resources: DraftResources) -> DraftState:
        """Raises UsageError if the earlier answers hold tokens that the target does not know."""
        vocab = resources.target.vocab_size
        if outside := [
            token for answer in self.earlier_answers for token in answer if not 0 <= token < vocab
        ]:
            raise UsageError(f"{self.earlier}: token {outside[0]}, and the target knows {vocab}")

        def index() -> SuffixIndex:
            trie = memory.trie if isinstance(memory := resources.memory, AnswerMemory) else None
            return SuffixIndex(self.depth, self.factor, self.least, trie)

        return LookupDraftState(index, resources.rows)


# Token Recycling (Luo et al., 2024, arXiv 2408.08696): the target's own earlier candidates.
#
# For every token the target's best next tokens where it last read that token, in a rejected node or
# an accepted one. A tree of fixed form is filled from them, rank by rank: two megabytes for a large
# vocabulary. Letters: R rows, F frontier nodes, V tokens.


class RecyclingDraftState(DraftState):
    """Drafts from tables [rows, V + 1, best] of each token's best next tokens, zeros at first. The
    last line takes writes that nobody reads.
    """

    recordable = True

    def __init__(self, resources: DraftResources, best: int) -> None:
        self._vocab = resources.target.vocab_size
        shape = (resources.rows, self._vocab + 1, min(best, self._vocab))
        self.tables = torch.zeros(shape, dtype=torch.long, device=resources.target.device)

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        self.tables[row] = 0

    def observe_scores(self, tree: Tree, logits: Tensor) -> None:
        tokens = tree.tokens
        count = logits.shape[1]
        # Of nodes with one token the last stays; the others write where nobody reads.
        order = cached_arange(count, tokens.device)
        later = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & (order > order.unsqueeze(1))
        tokens = tokens.masked_fill((later & tree.valid.unsqueeze(1)).any(dim=2), self._vocab)
        tokens = tokens.masked_fill(~tree.valid, self._vocab)
        rows = cached_arange(len(tokens), tokens.device).unsqueeze(1)
        self.tables[rows, tokens] = logits.topk(self.tables.shape[-1], dim=-1).indices

    def root_logits(self, committed: CommittedTokens) -> Tensor:
        return self._rank_followers(committed.roots.get_tensor(self.tables.device).unsqueeze(1))

    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        return self._rank_followers(tree.tokens[:, tree.frontier])

    def _rank_followers(self, tokens: Tensor) -> Tensor:
        """Logits [R, F, 1, V] below tokens [R, F]: the better the rank the higher, else -inf."""
        best = self.tables[cached_arange(len(tokens), tokens.device).unsqueeze(1), tokens]
        ranks = -cached_arange(best.shape[-1], best.device).to(torch.float32)
        logits = ranks.new_full((*tokens.shape, self._vocab), -torch.inf)
        # Zeros stand for what is not known yet: all of them name token 0.
        return logits.scatter_reduce(2, best, ranks.expand(best.shape), "amax").unsqueeze(2)

    def move_row(self, source: int, target: int) -> None:
        self.tables[target] = self.tables[source]


@drafter("recycling")
@dataclass(frozen=True)
class TokenRecycling(Drafter):
    """The target's own best guesses from when it last read a token."""

    best: Annotated[int, Interval(ge=1, le=64)] = 10  # how many are kept of each token

    policies = ("node_list",)
    passes = 0

    def make_state(self, resources: DraftResources) -> DraftState:
        return RecyclingDraftState(resources, self.best)
