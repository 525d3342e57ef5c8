"""One iteration of beam decoding between the model passes: from logits to the output beams.

Letters: R rows, B parents, D draft beams per layer, V vocabulary, L draft layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.warp import SamplingSettings, beam_probs, is_distribution, next_token_log_probs
from spec_bench.decode.rows import AnswerRow
from spec_bench.records.types import Finish, Request, StepRecord
from spec_bench.verify.beams import (
    LayerVerdict,
    compute_acceptances,
    compute_layer_width,
    compute_missing_beams,
    compute_residual_chain,
    verify_layer,
)


@dataclass(frozen=True)
class CacheMoves:
    """One row's nodes that must move to the front of the caches: at once on a CPU, elsewhere with
    the next iteration's copy. Which stay is known on the host, after the iteration's one transfer;
    so the indices wait until something goes to the device anyway, before the next pass.
    """

    length: int = 0  # slots before node 0
    kept: tuple[Sequence[int], ...] = ()  # per cache the nodes to keep, in increasing order

    def apply(self, caches: Sequence[Any], row: int) -> None:
        """Moves the nodes of a row in its caches."""
        for cache, nodes in zip(caches, self.kept, strict=False):
            cache.commit(row, self.length, nodes)


def combine_moves(moves: Sequence[CacheMoves], caches: int) -> list[Tensor]:
    """Returns R rows' moves as indices on the host, per cache [2, R, T] slots from and to, or
    nothing if nothing moves; a row that moves fewer repeats its last move, or moves nothing.
    """
    tables = []
    for cache in range(caches):
        pairs = []
        for move in moves:
            nodes = enumerate(move.kept[cache] if move.kept else ())
            pairs.append(
                [(move.length + node, move.length + to) for to, node in nodes if to != node]
            )
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
class BeamRow(AnswerRow):
    """The beams of one prompt."""

    request: Request  # what was asked for
    generator: torch.Generator  # the only source of its randomness
    trunk: list[int]  # the prompt and the tokens that all beams share, all in the caches
    tokens: list[int]  # [n] the trie's nodes, the beams last
    parents: list[int]  # [n] index of each node's parent, -1 for the trunk's end
    beams: list[Beam]  # the beams; their nodes are the last ones
    drafted: int = 0  # how many of the nodes the draft has run
    layers: int = 0  # tokens that every beam has generated so far
    moves: CacheMoves = field(
        default_factory=CacheMoves
    )  # nodes that must still move in the caches
    steps: list[StepRecord] = field(default_factory=list)  # one record per target call
    answer: tuple[int, ...] = ()  # the delivered tokens, once finished
    log_likelihood: float | None = 0.0  # of the answer; None where a text cut it
    finish: Finish | None = None  # why it ended, None while it runs

    @classmethod
    def start(cls, request: Request, generator: torch.Generator) -> BeamRow:
        """Returns one beam: the prompt, its last token not run yet."""
        *trunk, last = request.prompt_ids
        return cls(request, generator, trunk, [last], [-1], [Beam(-1, last, 0.0, 0, False)])

    @property
    def width(self) -> int:
        """W: beams that go on."""
        return len(self.beams)

    @property
    def remaining_layers(self) -> int:
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

    def get_generated_tokens(self, beam: int) -> list[int]:
        """Returns the tokens that a beam has generated, beams counted from 0."""
        path = []
        node = len(self.tokens) - self.width + beam
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
        self.close(self.get_generated_tokens(best)[: beam.length], beam.likelihood)

    def close(self, answer: Sequence[int], log_likelihood: float) -> None:
        """Ends the row with an answer, up to its first stop text, and shares its tokens out to the
        steps that made them.
        """
        end = self.request.find_end(answer)
        self.answer = tuple(answer[:end])
        self.log_likelihood = log_likelihood if len(self.answer) == len(answer) else None
        self.finish = "length" if end is None else "stop"
        left = len(self.answer)
        for place, step in enumerate(self.steps):
            self.steps[place] = replace(step, delivered=min(step.delivered, left))
            left -= self.steps[place].delivered


def pack_parents(active: Sequence[BeamRow], places: int) -> list[torch.Tensor]:
    """Returns what the host knows of R rows' beams, B of the widest: likelihood, length and stopped
    [R, B], stop_ids [R, S], first [R, B]; see ``beam_step.ParentBeams``.
    """

    def filled(rows: Sequence[Sequence[Any]], width: int, fill: float) -> Tensor:
        numbers = [[*row, *[fill] * (width - len(row))] for row in rows]
        return torch.tensor(numbers, dtype=torch.float64)

    beams = [row.beams for row in active]
    stops = [row.request.stop_ids for row in active]
    most = max(1, *map(len, stops))
    return [
        filled([[beam.likelihood for beam in row] for row in beams], places, -torch.inf),
        filled([[beam.length for beam in row] for row in beams], places, 0).long(),
        filled([[beam.stopped for beam in row] for row in beams], places, 0).bool(),
        filled(stops, most, -1).long(),
        torch.tensor([[*row.first_of_text(), *range(row.width, places)] for row in active]),
    ]


@dataclass(frozen=True)
class BeamPlan:
    """How beams are drafted, verified and kept."""

    width: int  # W_S, draft beams per layer; for beam sampling the number of beams
    depth: int = 0  # gamma, draft layers; 0 for beam sampling
    threshold: float = 0.0  # t, with what probability a layer must reach its width
    least: int = 1  # W_min
    one_cache: bool = False  # only the best output beam of an iteration goes on (section 3.4)
    # the answer is the beam with the largest log-likelihood / length^penalty
    length_penalty: float = 1.0


@dataclass(frozen=True)
class ParentBeams:
    """The beams that a layer continues."""

    tokens: Tensor  # [R, B] last token of each
    likelihood: Tensor  # [R, B] raw log-likelihood, -inf where there is no beam
    length: Tensor  # [R, B] tokens generated, nothing after a stop token
    stopped: Tensor  # [R, B] whether it has emitted a stop token
    stop_ids: Tensor  # [R, S] the rows' stop tokens, filled up with -1
    first: Tensor  # [R, B] the first beam with the same text, which may be itself

    def log_probs(self, logits: Tensor) -> Tensor:
        """Raw log-probabilities after each, of logits [R, B, V], the same numbers after beams of
        the same text.

        A model computes those separately, and they differ by a rounding error that depends on place
        and batch. A truncation, or a largest value, would then pick among equal cells differently
        in each batch.
        """
        log_p = next_token_log_probs(logits, self.stopped, self.tokens)
        return log_p.gather(1, self.first.unsqueeze(-1).expand_as(log_p))

    def children(self, cells: Tensor, log_p: Tensor) -> ParentBeams:
        """The beams at cells [R, D], given raw log-probabilities [R, B, V] after each parent."""
        parent = cells // log_p.shape[-1]
        tokens = cells % log_p.shape[-1]
        gained = log_p.flatten(1).gather(1, cells)
        likelihood = self.likelihood.gather(1, parent) + gained
        ends = (tokens.unsqueeze(-1) == self.stop_ids.unsqueeze(1)).any(dim=-1)
        stopped = self.stopped.gather(1, parent)
        length = self.length.gather(1, parent) + ~stopped
        text = self.first.gather(1, parent) * log_p.shape[-1] + tokens
        place = torch.arange(text.shape[1], device=text.device)
        same = text.unsqueeze(1) == text.unsqueeze(2)
        first = torch.where(same, place, text.shape[1]).amin(dim=-1)
        return ParentBeams(tokens, likelihood, length, stopped | ends, self.stop_ids, first)


@dataclass(frozen=True)
class DraftedLayers:
    """What was drafted, one entry per layer."""

    laws: list[Tensor]  # [R, B V] or [R, D V] the draft's beam distribution over all its parents
    cells: list[Tensor]  # [R, D]
    # [R] whether the logits of each layer so far make distributions
    lawful: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class BeamOutcome:
    """One row's outcome, on the host."""

    layer: int  # the layer of the output beams, 1..L + 1: the number of tokens the row grew by
    accepted_layers: int  # draft layers that reached their width
    widths: tuple[int, ...]  # beams of each layer up to that one
    beams: list[Beam]  # the output beams; their parents are counted within the layer before
    draft_parents: list[list[int]]  # per draft layer its D parents within the layer before
    draft_tokens: list[list[int]]  # per draft layer its D tokens
    # whether the target's and the draft's logits made distributions; if not, the rest means nothing
    lawful: tuple[bool, bool] = (True, True)


_FIELDS = ("cells", "there", "likelihood", "length", "stopped")  # of an output beam


def verify(
    logits: Tensor,
    parents: ParentBeams,
    drafted: DraftedLayers,
    plan: BeamPlan,
    settings: SamplingSettings,
    limit: Tensor,
    draws: Draws,
) -> list[BeamOutcome]:
    """Verifies a forest and draws what is missing (Algorithm 1, corrected); one outcome per row, of
    ``limit`` [R] layers at most. The logits [R, B + L D, V] are the target's, at the input beams
    and at every draft beam.
    """
    rows = logits.shape[0]
    width = plan.width
    depth = len(drafted.cells)
    vocab = logits.shape[-1]
    inputs = parents.tokens.shape[1]
    trials = draws.trials(depth * width)
    going = torch.ones(rows, dtype=torch.bool, device=logits.device)
    # where each row's verification ended: its layer, how many layers before it reached their width
    ended = torch.zeros_like(limit)
    full = torch.zeros_like(limit)
    beams = logits.new_zeros((rows, len(_FIELDS), 2 * width), dtype=torch.float64)
    layer_widths = [torch.full((rows,), width, device=going.device)]
    for layer in range(depth + 1):
        first = inputs + (layer - 1) * width
        here = logits[:, first : first + width] if layer else logits[:, :inputs]
        log_p = parents.log_probs(here)
        law = beam_probs(parents.likelihood, log_p, settings)
        if layer == depth:  # the extra layer: nothing was drafted for it
            chain = law.unsqueeze(1).expand(-1, width + 1, -1)
            nothing = going.new_zeros((rows, width))
            verdict = LayerVerdict(nothing, torch.zeros_like(limit))
            cells = torch.zeros_like(nothing, dtype=torch.long)
            asked = layer_widths[-1]
        else:
            stands = (parents.likelihood > -torch.inf).repeat_interleave(vocab, dim=1)
            q = drafted.laws[layer] * stands
            cells = drafted.cells[layer]
            chain = compute_residual_chain(law, q, width)
            asked = compute_layer_width(compute_acceptances(chain, q), plan.threshold, plan.least)
            verdict = verify_layer(chain, q, cells, asked, trials, layer * width)
        layer_widths.append(asked)
        laws, wanted = compute_missing_beams(chain, verdict, asked)
        ends = going & ((wanted > 0) | (limit == layer + 1))
        anywhere = torch.zeros_like(laws)  # for other rows: all mass on cell 0, read by nobody
        anywhere[..., 0] = 1.0
        laws = torch.where(ends[:, None, None], laws, anywhere)
        drawn = draws.categorical(laws, 1).squeeze(-1)
        used = torch.arange(width, device=wanted.device) < wanted.unsqueeze(1)
        output = torch.cat([cells, drawn], dim=1)  # of accepted beams, and of those drawn
        there = torch.cat([verdict.accepted, used], dim=1)
        made = parents.children(output, log_p)
        fields = (output, there, made.likelihood, made.length, made.stopped)
        found = torch.stack([field.double() for field in fields], dim=1)
        beams = torch.where(ends[:, None, None], found, beams)
        ended = torch.where(ends, layer + 1, ended)
        full = full + (going & (wanted == 0))
        going = going & ~ends
        if layer < depth:
            parents = parents.children(cells, log_p)
            likelihood = parents.likelihood.masked_fill(~verdict.accepted, -torch.inf)
            parents = replace(parents, likelihood=likelihood)
    lawful = [is_distribution(logits).all(dim=1), *drafted.lawful]
    return _copy_outcomes_to_host(
        ended, full, torch.stack(layer_widths[1:], 1), beams, drafted, vocab, lawful
    )


def _copy_outcomes_to_host(
    ended: Tensor,
    full: Tensor,
    widths: Tensor,
    beams: Tensor,
    drafted: DraftedLayers,
    vocab: int,
    lawful: Sequence[Tensor],
) -> list[BeamOutcome]:
    """Returns one transfer: everything the host needs, as float64."""
    depth = len(drafted.cells)
    places = beams.shape[2]
    parts = [ended.unsqueeze(1), full.unsqueeze(1), widths, beams.flatten(1)]
    parts += [*drafted.cells, torch.stack(list(lawful), dim=1)]
    sizes = [1, 1, depth + 1, *([places] * len(_FIELDS)), *([places // 2] * depth), len(lawful)]
    outcomes = []
    for line in torch.cat([part.double() for part in parts], dim=1).tolist():
        numbers = iter(line)
        (layer,), (accepted,), asked, *rest, sound = (list(islice(numbers, size)) for size in sizes)
        fields = rest[: len(_FIELDS)]
        drafts = rest[len(_FIELDS) :]
        output = [
            Beam(int(cell) // vocab, int(cell) % vocab, likelihood, int(length), bool(stopped))
            for cell, there, likelihood, length, stopped in zip(*fields, strict=True)
            if there
        ]
        parents = [[int(cell) // vocab for cell in cells] for cells in drafts]
        tokens = [[int(cell) % vocab for cell in cells] for cells in drafts]
        reached = tuple(int(value) for value in asked[: int(layer)])
        lawfully = bool(sound[0]), all(sound[1:])
        outcomes.append(
            BeamOutcome(int(layer), int(accepted), reached, output, parents, tokens, lawfully)
        )
    return outcomes
