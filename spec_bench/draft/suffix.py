"""Suffix decoding: what followed the row's last tokens before, in its own text or earlier answers.

Proposals are one-hot and a function of the row's tokens and of what is remembered, so the target's
law stays. What is remembered hangs on the order of the prompts and is fixed: the answers of all
prompts that come before in the job, so that a job that was stopped goes on alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from spec_bench.draft.base import Drafter, Drafting, Equipment, Memory, drafter
from spec_bench.draft.lookup import LookupDrafting
from spec_bench.draft.ngrams import Bounds
from spec_bench.draft.suffix_trie import SuffixIndex, SuffixTrie
from spec_bench.settings.fields import Range, Share


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
    """Counted strings of the row's own text and of earlier answers.

    Attributes:
        depth: most tokens of a match and its proposal together.
        factor: most tokens proposed for each token of the match.
        least: of the product of frequencies along a proposal.
        memory: ``none``, or ``finished`` answers of the prompts before.
    """

    depth: Annotated[int, Range(2, 256)] = 24
    factor: Annotated[float, Range(0.01, 64)] = 1.0
    least: Share = 0.1
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
