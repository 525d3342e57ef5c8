"""The beams of one prompt: a trunk that they share and, after it, a small trie of what they don't.

A prompt takes one cache row. The trunk's tokens take the row's first slots, the trie's nodes the
next ones in the order of this list, parents before children; the last nodes are the beams
themselves, which no model has run yet. Beams share ancestors, so the trie stays small, and no row
is ever copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spec_bench.decode.beam_moves import Moves
from spec_bench.decode.rows import Answering
from spec_bench.records.types import Finish, Request, StepRecord


@dataclass(frozen=True)
class Beam:
    """One output beam of a step.

    Attributes:
        parent: the node it continues.
        token: its last token.
        likelihood: natural log of its probability under the target, temperature 1.
        length: tokens generated, nothing after a stop token.
        stopped: whether it has emitted a stop token.
    """

    parent: int
    token: int
    likelihood: float
    length: int
    stopped: bool

    def score(self, length_penalty: float) -> float:
        """Log-likelihood / length^penalty: 1 ranks by perplexity, 0 by likelihood."""
        return self.likelihood / max(self.length, 1) ** length_penalty


@dataclass
class BeamRow(Answering):
    """The beams of one prompt.

    Attributes:
        request: what was asked for.
        generator: the only source of its randomness.
        trunk: the prompt and the tokens that all beams share, all in the caches.
        tokens: [n] the trie's nodes, the beams last.
        parents: [n] index of each node's parent, -1 for the trunk's end.
        beams: the beams; their nodes are the last ones.
        drafted: how many of the nodes the draft has run.
        layers: tokens that every beam has generated so far.
        moves: nodes that must still move in the caches.
        steps: one record per target call.
        answer: the delivered tokens, once finished.
        log_likelihood: of the answer.
        finish: why it ended, None while it runs.
    """

    request: Request
    generator: torch.Generator
    trunk: list[int]
    tokens: list[int]
    parents: list[int]
    beams: list[Beam]
    drafted: int = 0
    layers: int = 0
    moves: Moves = field(default_factory=Moves)
    steps: list[StepRecord] = field(default_factory=list)
    answer: tuple[int, ...] = ()
    log_likelihood: float = 0.0
    finish: Finish | None = None

    @classmethod
    def start(cls, request: Request, generator: torch.Generator) -> BeamRow:
        """One beam: the prompt, its last token not run yet."""
        *trunk, last = request.prompt_ids
        return cls(request, generator, trunk, [last], [-1], [Beam(-1, last, 0.0, 0, False)])

    @property
    def width(self) -> int:
        """W: beams that go on."""
        return len(self.beams)

    @property
    def remaining(self) -> int:
        """Layers left before the length limit."""
        return self.request.max_new_tokens - self.layers

    def ancestors(self) -> torch.Tensor:
        """[n, n] True where the second node lies on the first one's path, itself included."""
        seen = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen

    def depths(self) -> list[int]:
        """[n] levels below the trunk's end, 0 for its children."""
        depth: list[int] = []
        for parent in self.parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return depth

    def first_of_text(self) -> list[int]:
        """For each beam the first one with the same text, beams counted from 0."""
        texts: dict[tuple[int, int], int] = {}  # (the parent's, the token) -> a node with it
        node_text: list[int] = []
        for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True)):
            key = (-1 if parent < 0 else node_text[parent], token)
            node_text.append(texts.setdefault(key, node))
        beams = node_text[-self.width :]
        return [beams.index(text) for text in beams]

    def generated(self, beam: int) -> list[int]:
        """The tokens that a beam has generated, beams counted from 0."""
        path, node = [], len(self.tokens) - self.width + beam
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return [*self.trunk, *reversed(path)][len(self.request.prompt_ids) :]

    def advance(
        self,
        forest_tokens: Sequence[int],
        forest_parents: Sequence[int],
        beams: Sequence[Beam],
        layers: int,
        drafted: int,
    ) -> list[int]:
        """Replaces the input beams by the output beams of a step.

        Args:
            forest_tokens: the step's draft nodes, which the target has run.
            forest_parents: their parents: indices into the row's nodes and the forest after them.
            beams: the output beams, their parents numbered likewise.
            layers: tokens by which every beam grew.
            drafted: nodes that the draft has run, this step's included.

        Returns:
            The nodes to keep in the caches, in increasing order: the beams' ancestors.
        """
        tokens = [*self.tokens, *forest_tokens]
        parents = [*self.parents, *forest_parents]
        alive: set[int] = set()
        for beam in beams:
            node = beam.parent
            while node >= 0 and node not in alive:
                alive.add(node)
                node = parents[node]
        kept = sorted(alive)
        place = {-1: -1, **{node: index for index, node in enumerate(kept)}}
        self.tokens = [*(tokens[node] for node in kept), *(beam.token for beam in beams)]
        self.parents = [place[parents[node]] for node in kept]
        self.parents += [place[beam.parent] for beam in beams]
        self.beams = list(beams)
        self.drafted = sum(node < drafted for node in kept)
        self.layers += layers
        return kept

    def grow_trunk(self, drafted: bool) -> None:
        """Moves nodes that all beams descend from to the trunk, once all models have run them.

        Args:
            drafted: whether there is a draft.
        """
        run = self.drafted if drafted else len(self.tokens) - self.width
        shared = 0
        while shared < run and self.parents.count(shared - 1) == 1:
            shared += 1
        self.trunk += self.tokens[:shared]
        self.tokens = self.tokens[shared:]
        self.parents = [max(parent - shared, -1) for parent in self.parents[shared:]]
        self.drafted = max(self.drafted - shared, 0)

    def deliver(self, length_penalty: float) -> None:
        """Ends the row with its best beam; see ``Beam.score``."""
        best = max(range(self.width), key=lambda beam: self.beams[beam].score(length_penalty))
        beam = self.beams[best]
        self.close(self.generated(best)[: beam.length], beam.likelihood)

    def close(self, answer: Sequence[int], log_likelihood: float) -> None:
        """Ends the row with an answer and shares its tokens out to the steps that made them."""
        self.answer, self.log_likelihood = tuple(answer), log_likelihood
        self.finish = "stop" if answer[-1] in self.request.stop_ids else "length"
        left, steps = len(answer), []
        for step in self.steps:
            delivered = min(step.delivered, left)
            left -= delivered
            steps.append(StepRecord(step.nodes, step.depth, step.accepted, delivered, step.widths))
        self.steps = steps


def host_parents(active: Sequence[BeamRow], places: int) -> list[torch.Tensor]:
    """What the host knows of the rows' beams; see ``beam_step.Parents``, without the tokens.

    Args:
        active: R rows.
        places: B, of the widest row.

    Returns:
        likelihood, length and stopped [R, B], stop_ids [R, S], first [R, B].
    """
    rows = len(active)
    likelihood = torch.full((rows, places), -torch.inf, dtype=torch.float64)
    length = torch.zeros((rows, places), dtype=torch.long)
    stopped = torch.zeros((rows, places), dtype=torch.bool)
    first = torch.arange(places).repeat(rows, 1)
    most = max(len(row.request.stop_ids) for row in active)
    stop_ids = torch.full((rows, max(most, 1)), -1)
    for index, row in enumerate(active):
        beams = slice(0, row.width)
        first[index, beams] = torch.tensor(row.first_of_text())
        likelihood[index, beams] = torch.tensor(
            [beam.likelihood for beam in row.beams], dtype=torch.float64
        )
        length[index, beams] = torch.tensor([beam.length for beam in row.beams])
        stopped[index, beams] = torch.tensor([beam.stopped for beam in row.beams])
        if row.request.stop_ids:
            stop_ids[index, : len(row.request.stop_ids)] = torch.tensor(row.request.stop_ids)
    return [likelihood, length, stopped, stop_ids, first]
