"""Moves of beams' nodes in the caches: at once on a CPU, elsewhere with the next iteration's copy.

Which nodes stay is known on the host, after the iteration's one transfer. So the indices wait until
something goes to the device anyway, before the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spec_bench.decode.rows import Answering
from spec_bench.records.types import Finish, Request, StepRecord


@dataclass(frozen=True)
class Moves:
    """One row's nodes that must move to the front."""

    length: int = 0  # slots before node 0
    kept: tuple[Sequence[int], ...] = ()  # per cache the nodes to keep, in increasing order

    def carry_out(self, caches: Sequence[Any], row: int) -> None:
        """Moves the nodes of a row in its caches."""
        for cache, nodes in zip(caches, self.kept, strict=False):
            cache.commit(row, self.length, nodes)

    def slots(self, cache: int) -> list[tuple[int, int]]:
        """(from, to) of every node that moves in a cache."""
        nodes = self.kept[cache] if self.kept else ()
        pairs = enumerate(nodes)
        return [(self.length + node, self.length + to) for to, node in pairs if to != node]


def moved_slots(moves: Sequence[Moves], caches: int) -> list[Tensor]:
    """Returns R rows' moves as indices on the host, per cache [2, R, T] slots from and to, or
    nothing if nothing moves; a row that moves fewer repeats its last move, or moves nothing.
    """
    tables = []
    for cache in range(caches):
        pairs = [move.slots(cache) for move in moves]
        most = max(map(len, pairs))
        for slots, move in zip(pairs, moves, strict=True):
            last = slots[-1] if slots else (move.length, move.length)
            slots += [last] * (most - len(slots))
        tables.append(torch.tensor(pairs, dtype=torch.long).view(len(moves), most, 2))
    return [table.permute(2, 0, 1) for table in tables] if any(t.numel() for t in tables) else []


# The beams of one prompt: a trunk that they share and, after it, a small trie of what they don't.
#
# A prompt takes one cache row. The trunk's tokens take the row's first slots, the trie's nodes the
# next ones in the order of this list, parents before children; the last nodes are the beams
# themselves, which no model has run yet. Beams share ancestors, so the trie stays small, and no row
# is ever copied.


@dataclass(frozen=True)
class Beam:
    """One output beam of a step."""

    parent: int  # the node it continues
    token: int  # its last token
    likelihood: float  # natural log of its probability under the target, temperature 1
    length: int  # tokens generated, nothing after a stop token
    stopped: bool  # whether it has emitted a stop token

    def score(self, length_penalty: float) -> float:
        """Log-likelihood / length^penalty: 1 ranks by perplexity, 0 by likelihood."""
        return self.likelihood / max(self.length, 1) ** length_penalty


@dataclass
class BeamRow(Answering):
    """The beams of one prompt."""

    request: Request  # what was asked for
    generator: torch.Generator  # the only source of its randomness
    trunk: list[int]  # the prompt and the tokens that all beams share, all in the caches
    tokens: list[int]  # [n] the trie's nodes, the beams last
    parents: list[int]  # [n] index of each node's parent, -1 for the trunk's end
    beams: list[Beam]  # the beams; their nodes are the last ones
    drafted: int = 0  # how many of the nodes the draft has run
    layers: int = 0  # tokens that every beam has generated so far
    moves: Moves = field(default_factory=Moves)  # nodes that must still move in the caches
    steps: list[StepRecord] = field(default_factory=list)  # one record per target call
    answer: tuple[int, ...] = ()  # the delivered tokens, once finished
    log_likelihood: float = 0.0  # of the answer
    finish: Finish | None = None  # why it ended, None while it runs

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
        """Replaces the input beams by a step's output beams, by which every beam grew so many
        layers.

        Parents index the row's nodes and after them the step's draft nodes, the forest, which the
        target has run; of all these the draft has run the first ``drafted``. Returns the nodes to
        keep in the caches, in increasing order: the beams' ancestors.
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
        """Moves nodes that all beams descend from to the trunk, once all models, a draft among them
        where there is one, have run them.
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
    """Returns what the host knows of R rows' beams, B of the widest: likelihood, length and stopped
    [R, B], stop_ids [R, S], first [R, B]; see ``beam_step.Parents``.
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
