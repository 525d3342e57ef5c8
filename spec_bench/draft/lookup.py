"""No draft model: the row's own past is looked up, and what followed is proposed.

Proposals are one-hot and a function of the row's tokens so far, so every rule for deterministic
siblings keeps the target's distribution. A row looks only at itself: what its neighbours in a batch
hold changes nothing.

Pure Python on token ids. Prompt lookup (github.com/apoorvumang/prompt-lookup-decoding) copies what
followed the first occurrence of the longest of a few short n-grams (``FirstIndex``). ``NgramIndex``
weighs the latest occurrences against each other, token by token; with long n-grams, and going on
only where the past mostly agrees, it is suffix decoding's lookup in one row (arXiv 2411.04975,
section 3; 2411.10666), without its tree over earlier answers, which is ``SuffixIndex``.
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
from torch import Tensor

from spec_bench.core.transfer import CommittedTokens, HostDeviceInts, cached_arange
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, Drafting, DraftMemory, Equipment, GuessedNode, drafter
from spec_bench.draft.language_model import LanguageModelDrafting, make_model_state
from spec_bench.settings.fields import Count, Range, Share, first_line
from spec_bench.system.errors import UsageError
from spec_bench.system.files import digest

_RECENT = 64  # occurrences of one n-gram that are looked at, the latest


@dataclass(frozen=True)
class GuessBounds:
    """How far guesses may go."""

    width: int  # most nodes of a level
    depth: int  # most levels
    # a node is guessed only if at least this share of its parent's occurrences went on with its
    # token
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

    def match(self) -> tuple[int, list[int]]:
        """Returns the length of the longest n-gram at the end that was there before, and where its
        earlier occurrences ended, the latest last; (0, []) if there were none.
        """
        end = len(self.tokens)
        for length in self._lengths:
            if length <= end:
                ends = self._ends.get(tuple(self.tokens[end - length :]), [])
                if len(ends) > 1:
                    return length, ends[:-1]
        return 0, []

    def guesses(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Returns what followed the match, occurrences of equal beginnings merged, level by level:
        the continuations seen most often, and of equally frequent ones the most recent, in that
        order.
        """
        length, ends = self.match()
        left = bounds.width * bounds.depth
        if bounds.per_match is not None:
            left = min(left, int(bounds.per_match * length))
        levels: list[list[GuessedNode]] = []
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
    ) -> list[tuple[GuessedNode, list[int]]]:
        """Returns the nodes below a level's nodes, best first, each with its occurrences; ``above``
        is per node where those that run through it ended, ``offset`` tokens before.
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
        return [(GuessedNode(token, parent), mine) for _, _, parent, token, mine in ranked]


class FirstIndex(NgramIndex):
    """The same, of the first and the last occurrence of each n-gram."""

    _dropped = slice(1, -1)

    def guesses(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """The span that followed the first earlier occurrence of the longest n-gram at the end.

        One that begins close to the end is as long as it is, as in transformers'
        ``PromptLookupCandidateGenerator``. Only ``depth`` bounds it; a level has one node.
        """
        _, ends = self.match()
        span = self.tokens[ends[0] : ends[0] + bounds.depth] if ends else []
        return [[GuessedNode(token, 0)] for token in span]


class LookupDrafting(Drafting):
    """One index per row, brought up to date before it is asked; ``bounds`` beside a tree's."""

    recordable = True  # guesses are made before

    def __init__(self, index: Callable[[], Any], rows: int, *bounds: Any) -> None:
        self._index = index
        self._bounds = bounds
        self._rows = [index() for _ in range(rows)]

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self._rows[row] = self._index()
        self._rows[row].extend(prompt)

    def guesses(
        self, committed: Sequence[Sequence[int]], width: int, depth: int
    ) -> list[list[list[GuessedNode]]]:
        bounds = GuessBounds(width, depth, *self._bounds)
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
    passes: ClassVar[int | None] = 0

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise UsageError(
                f"shortest must be at most longest, {self.longest}, got {self.shortest}"
            )

    def index(self) -> NgramIndex:
        """Makes an empty index of one row."""
        return FirstIndex(self.longest, self.shortest)

    def drafting(self, equipment: Equipment) -> Drafting:
        return LookupDrafting(self.index, equipment.rows)


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

    def drafting(self, equipment: Equipment) -> Drafting:
        return LookupDrafting(self.index, equipment.rows, self.share, self.per_match)


# The row's own past where it has a match, a draft model elsewhere.


class LookupOrModelDrafting(LookupDrafting):
    """Two drafters side by side; the model runs only where it is asked, and then catches up."""

    recordable = False

    def __init__(self, model: LanguageModelDrafting, *given: Any) -> None:
        super().__init__(*given)
        self._model = model
        self._ran = False
        self.vocab_size = model.models[0].vocab_size

    def start(self, row: int, prompt: Sequence[int]) -> None:
        super().start(row, prompt)
        self._model.start(row, prompt)

    def needs(self, committed: CommittedTokens, fixed: bool = False) -> Sequence[HostDeviceInts]:
        return self._model.needs(committed)

    def at_root(self, committed: CommittedTokens) -> Tensor:
        self._ran = True
        return self._model.at_root(committed)

    def at_frontier(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        return self._model.at_frontier(tree, committed)

    def commit(
        self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor, depth: int
    ) -> None:
        if self._ran:
            self._model.commit(lengths, nodes, path, depth)

    def count(self, lengths: Sequence[int], accepted: Sequence[int], depth: int) -> None:
        if self._ran:
            self._model.count(lengths, accepted, depth)
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
    def models(self) -> int:
        return 1

    def drafting(self, equipment: Equipment) -> Drafting:
        given = (self.index, equipment.rows, self.share, self.per_match)
        return LookupOrModelDrafting(make_model_state(equipment), *given)


# Suffix decoding's trees (Oliaro et al., 2024, arXiv 2411.04975), as ArcticInference and vLLM score
# them: all short strings of the row's own text or earlier answers with how often they occur, and
# what follows the row's last tokens most often.
#
# What is remembered hangs on the order of the prompts and is fixed: the answers of all prompts that
# come before in the job, so that a job that was stopped goes on alike.


@dataclass(slots=True)
class SuffixNode:
    """One string."""

    count: int = 0  # its occurrences, those at the end of a text too
    # by the token that follows, in the order first seen
    children: dict[int, SuffixNode] = field(default_factory=dict)


class SuffixTrie:
    """The strings of at most ``depth`` tokens of texts that are read one after the other."""

    def __init__(self, depth: int) -> None:
        self.depth, self.root = depth, SuffixNode()

    def read(self, tokens: Iterable[int], ends: Sequence[SuffixNode] = ()) -> list[SuffixNode]:
        """Adds tokens behind a text that ends with the strings ``ends``, by length, () for a new
        one; the strings that it ends with now.
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

    def matches(self, tokens: Iterable[int], ends: Sequence[SuffixNode] = ()) -> list[SuffixNode]:
        """As ``read`` for a text that is looked up and not added: the strings at its end that are
        here, by length, up to the first that is not.
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
    levels: list[list[GuessedNode]]  # per level its nodes, the likelier first


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
        self._ends: list[SuffixNode] = []  # of the row's own text
        self._ends_there: list[SuffixNode] = []  # in earlier answers

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        new = list(tokens)
        self.tokens.extend(new)
        self._ends = self._own.read(new, self._ends)
        if self.answers is not None:
            self._ends_there = self.answers.matches(new, self._ends_there)

    def guesses(self, bounds: GuessBounds) -> list[list[GuessedNode]]:
        """Returns the proposal of the best score, over lengths of the match and both texts; of
        equal ones the longer match's, then the row's own.
        """
        best = Proposal(0.0, [])
        for ends in (self._ends, self._ends_there):
            longest = Proposal(0.0, [])
            for length, node in enumerate(ends[: len(self.tokens) - 1], 1):
                most = min(bounds.width * bounds.depth, int(self.factor * length + 1e-6))
                found = propose_below(node, most, bounds, self.least)
                if found.score >= longest.score:
                    longest = found
            if longest.score > best.score:
                best = longest
        return best.levels


def propose_below(node: SuffixNode, most: int, bounds: GuessBounds, least: float) -> Proposal:
    """Proposes the likeliest strings after a node's, ``most`` of them, best first by the product of
    frequencies, none with one below ``least``.
    """
    levels: list[list[GuessedNode]] = []
    score = 0.0
    taken = 0
    order = 0
    waiting: list[tuple[float, int, int, int, int, SuffixNode]] = []

    def offer(parent: SuffixNode, worth: float, level: int, place: int) -> None:
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
        levels[level].append(GuessedNode(token, place))
        score = score - worth
        taken = taken + 1
        offer(child, -worth, level + 1, len(levels[level]) - 1)
    return Proposal(score, levels)


class AnswerMemory(DraftMemory):
    """Earlier answers as one tree: some from before, and those of the job where it keeps them."""

    def __init__(
        self, depth: int, before: Sequence[Sequence[int]] = (), keeps: bool = True
    ) -> None:
        self._depth = depth
        self._before = before
        self._keeps = keeps
        self._forget()

    def _forget(self) -> None:
        self._read, self.trie = list[Sequence[int]](), SuffixTrie(self._depth)
        for answer in self._before:
            self.trie.read(answer)

    def remember(self, answers: Sequence[Sequence[int]]) -> None:
        if not self._keeps:
            return
        if list(answers[: len(self._read)]) != self._read:
            self._forget()
        for answer in answers[len(self._read) :]:
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
    # JSON lines with `tokens`, answers that are known from the start: a cell's generations.jsonl
    earlier: str | None = None

    policies = ("guessed",)
    passes = 0

    def __post_init__(self) -> None:
        assert self.answers is not None  # they are read, or refused

    @cached_property
    def answers(self) -> list[list[int]]:
        """The answers in ``earlier``. Raises ValueError: there is no such file, or a line of it has
        no tokens.
        """
        if self.earlier is None:
            return []
        try:
            lines = Path(self.earlier).read_text("utf-8").splitlines()
            return [[int(token) for token in json.loads(line)["tokens"]] for line in lines]
        except (OSError, ValueError, TypeError, KeyError) as error:
            needed = f"earlier needs JSON lines with tokens, got {self.earlier!r}"
            raise UsageError(f"{needed}: {first_line(error)}") from None

    @property
    def revision(self) -> str:
        return digest(self.answers) if self.earlier else ""

    def remembering(self) -> AnswerMemory | None:
        keeps = self.memory == "finished"
        return AnswerMemory(self.depth, self.answers, keeps) if keeps or self.answers else None

    def drafting(self, equipment: Equipment) -> Drafting:
        """Raises ValueError: the earlier answers have tokens that the target does not know."""
        known = equipment.target.vocab_size
        if odd := [token for each in self.answers for token in each if not 0 <= token < known]:
            raise UsageError(f"{self.earlier}: token {odd[0]}, and the target knows {known}")

        def index() -> SuffixIndex:
            trie = memory.trie if isinstance(memory := equipment.memory, AnswerMemory) else None
            return SuffixIndex(self.depth, self.factor, self.least, trie)

        return LookupDrafting(index, equipment.rows)


# Token Recycling (Luo et al., 2024, arXiv 2408.08696): what the target thought of before.
#
# For every token the target's best next tokens where it last read that token, in a rejected node or
# an accepted one. A tree of fixed form is filled from them, rank by rank: two megabytes for a large
# vocabulary. Letters: R rows, F frontier nodes, V tokens.


class RecyclingDrafting(Drafting):
    """The best next tokens of each token: tables [rows, V + 1, best], zeros where nothing is known;
    the last line is for nobody.
    """

    recordable = True

    def __init__(self, given: Equipment, best: int) -> None:
        self._vocab = given.target.vocab_size
        shape = (given.rows, self._vocab + 1, min(best, self._vocab))
        self.tables = torch.zeros(shape, dtype=torch.long, device=given.target.device)

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self.tables[row] = 0

    def see_scores(self, tree: Tree, logits: Tensor) -> None:
        tokens = tree.tokens
        count = logits.shape[1]
        # Of nodes with one token the last stays; the others write where nobody reads.
        order = cached_arange(count, tokens.device)
        later = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & (order > order.unsqueeze(1))
        tokens = tokens.masked_fill((later & tree.valid.unsqueeze(1)).any(dim=2), self._vocab)
        tokens = tokens.masked_fill(~tree.valid, self._vocab)
        rows = cached_arange(len(tokens), tokens.device).unsqueeze(1)
        self.tables[rows, tokens] = logits.topk(self.tables.shape[-1], dim=-1).indices

    def at_root(self, committed: CommittedTokens) -> Tensor:
        return self._below(committed.roots.on(self.tables.device).unsqueeze(1))

    def at_frontier(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        return self._below(tree.tokens[:, tree.frontier])

    def _below(self, tokens: Tensor) -> Tensor:
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

    best: Annotated[int, Range(1, 64)] = 10  # how many are kept of each token

    policies = ("node_list",)
    passes = 0

    def drafting(self, equipment: Equipment) -> Drafting:
        return RecyclingDrafting(equipment, self.best)
