"""Decoding several beams at once: beam sampling, and dynamic-width speculative beam decoding.

Each iteration: draft a forest of beams, run the target once over the input beams and the forest,
verify layer by layer, draw what is missing, copy the outcome to the host (the iteration's one
transfer), keep the output beams' ancestors in the caches, record. Beam sampling is the case without
draft layers. Source: DSBD (arXiv 2409.16560), section 3, with its misprints corrected.

What the paper leaves open is settled thus: a stopped beam repeats its stop token and keeps its
likelihood. The extra layer has the width of the layer before it, a rejected layer its own. The
draft's beam distribution starts from the input beams' likelihoods under the *target*, which are
known. Verification ends at the length limit, so that the last layer is a full step of the beam
distribution too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any, ClassVar

import torch
from torch import Tensor

from spec_bench.core import processes
from spec_bench.core.draws import Draws, SeededDraws, row_generator
from spec_bench.core.warp import SamplingSettings, beam_probs, is_distribution, next_token_log_probs
from spec_bench.decode.beam_step import (
    Beam,
    BeamPlan,
    BeamRow,
    Drafted,
    Moves,
    Outcome,
    Parents,
    host_parents,
    moved_slots,
    verify,
)
from spec_bench.decode.decoder import DrawsFactory
from spec_bench.decode.loop import DecodingLoop
from spec_bench.decode.rows import check_lawful
from spec_bench.engine.cache import CachePool
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import Forest, prefill
from spec_bench.records.types import Lossless, Request, StepRecord


@dataclass
class BeamDecoder(DecodingLoop[BeamRow]):
    """Beams over one target, drafted by one draft model, or by none for beam sampling; sampling
    settings warp the joint distribution of all beams.
    """

    row_type: ClassVar[type[BeamRow]] = BeamRow

    name: str
    target: LanguageModel
    drafts: Sequence[LanguageModel]
    plan: BeamPlan  # how many beams, how they are drafted and kept
    settings: SamplingSettings
    rows: int = 1
    lossless: Lossless = "exact_beam"
    pool: CachePool = field(default_factory=CachePool)  # shared by the decoders of a job
    make_draws: DrawsFactory = SeededDraws  # audits enumerate instead

    def __post_init__(self) -> None:
        self._caches: list[Any] = []

    @property
    def depth(self) -> int:
        return self.plan.depth

    @property
    def nodes(self) -> int:
        return self.plan.depth * self.plan.width

    def slots_needed(self, longest_prompt: int, max_new_tokens: int) -> int:
        """One trunk, at worst a branch for every beam, and one forest after them.

        With one cache only one beam goes on, so nothing branches.
        """
        branches = 1 if self.plan.one_cache else self.plan.width
        return longest_prompt + branches * (max_new_tokens + 2) + self.nodes

    def reserve(self, slots: int) -> None:
        models = (self.target, *self.drafts)
        roles = ("target", *(f"draft {index}" for index in range(len(self.drafts))))
        self._caches = [
            self.pool.cache(role, model, self.rows, slots)
            for role, model in zip(roles, models, strict=True)
        ]

    def join(self, index: int, request: Request, seed: int) -> BeamRow:
        generator = row_generator(seed, request.prompt_id, self.target.device)
        row = self.row_type.start(request, generator)
        for model, cache in zip((self.target, *self.drafts), self._caches, strict=True):
            prefill(model, cache, index, row.trunk)
        return row

    def step(self, active: Sequence[BeamRow]) -> int:
        draws = self.make_draws([row.generator for row in active])
        forest, parents, limit = self._begin(active)
        drafted = self._draft(active, forest, parents, draws)
        logits = forest.run_all(self.target, self._caches[0])
        outcomes = verify(
            logits.to(self.settings.dtype), parents, drafted, self.plan, self.settings, limit, draws
        )
        outcomes = processes.agreed(outcomes)
        for row, outcome in zip(active, outcomes, strict=True):
            check_lawful(row.request.prompt_id, *outcome.lawful)
        return sum(self._commit(i, row, outcomes[i]) for i, row in enumerate(active))

    def move_row(self, row: BeamRow, source: int, target: int) -> None:
        row.moves.carry_out(self._caches, source)
        for cache in self._caches:
            cache.move_row(source, target, len(row.trunk) + len(row.tokens))

    def _keep(self, index: int, row: BeamRow, moves: Moves) -> None:
        """Moves a row's nodes in the caches, or notes that they must move."""
        if self.target.device.type == "cpu":
            moves.carry_out(self._caches, index)
        else:
            row.moves = moves

    def take_forward_s(self) -> tuple[float, float]:
        return sum(draft.timer.take_s() for draft in self.drafts), self.target.timer.take_s()

    def _begin(self, active: Sequence[BeamRow]) -> tuple[Forest, Parents, Tensor]:
        """Sends all that the host knows to the device in one copy, pending moves included.

        Returns the forest, nothing drafted; the input beams, with as many places as the widest row
        has; how many layers each row has left [R].
        """
        forest = Forest(
            [(row.tokens, row.ancestors()) for row in active],
            [row.depths() for row in active],
            [row.width for row in active],
            [len(row.trunk) for row in active],
            [row.drafted for row in active],
            self.plan.width,
            self.plan.depth,
            self.target.device,
        )
        limit = torch.tensor([row.remaining for row in active])
        moves = moved_slots([row.moves for row in active], len(self._caches))
        limit, *parents = forest.send([limit, *host_parents(active, forest.inputs), *moves])
        count = len(parents) - len(moves)
        for cache, slots in zip(self._caches, parents[count:], strict=False):
            cache.move_slots(*slots.unbind(0))
        for row in active:
            row.moves = Moves()
        return forest, Parents(forest.input_tokens, *parents[:count]), limit

    def _draft(
        self, active: Sequence[BeamRow], forest: Forest, parents: Parents, draws: Draws
    ) -> Drafted:
        """Beam sampling with the draft: D beams per layer, i.i.d. and with replacement."""
        drafted = Drafted([], [])
        for layer in range(self.plan.depth):
            draft, cache = self.drafts[0], self._caches[1]
            logits = forest.run_layer(draft, cache) if layer else forest.run_pending(draft, cache)
            logits = logits.to(self.target.device, self.settings.dtype)
            log_q = parents.log_probs(logits)
            law = beam_probs(parents.likelihood, log_q, self.settings.for_draft())
            cells = draws.categorical(law.unsqueeze(1), self.plan.width).squeeze(1)
            processes.agree(cells)
            drafted.lawful.append(is_distribution(logits).all(dim=1))
            drafted.laws.append(law)
            drafted.cells.append(cells)
            parents = parents.children(cells, log_q)
            forest.add_layer(parents.tokens, cells // log_q.shape[-1])
        return drafted

    def _commit(self, index: int, row: BeamRow, outcome: Outcome) -> int:
        """Puts one row's output beams in place; returns the layers it grew by."""
        size, width = len(row.tokens), self.plan.width
        forest_parents = []
        for layer, parents in enumerate(outcome.draft_parents):
            first = size - row.width if layer == 0 else size + (layer - 1) * width
            forest_parents += [first + parent for parent in parents]
        forest_tokens = [token for tokens in outcome.draft_tokens for token in tokens]
        first = size - row.width if outcome.layer == 1 else size + (outcome.layer - 2) * width
        beams = [replace(beam, parent=first + beam.parent) for beam in outcome.beams]
        if self.plan.one_cache:
            beams = [max(beams, key=lambda beam: beam.score(self.plan.length_penalty))]
        drafted = size + max(self.plan.depth - 1, 0) * width
        length = len(row.trunk)
        kept = row.advance(forest_tokens, forest_parents, beams, outcome.layer, drafted)
        self._keep(index, row, Moves(length, (kept, kept[: row.drafted])))
        row.grow_trunk(bool(self.drafts))
        row.steps.append(
            StepRecord(
                self.nodes, self.depth, outcome.accepted_layers, outcome.layer, outcome.widths
            )
        )
        if all(beam.stopped for beam in row.beams) or row.remaining == 0:
            row.deliver(self.plan.length_penalty)
        return outcome.layer


# Deterministic beam search: the W likeliest continuations go on, ended ones wait in a pool.
#
# The same search as transformers' `generate(num_beams=W, do_sample=False)` with its default
# settings, so that the two can be compared token by token; probabilities are raw and ignore the
# sampling settings.


@dataclass(frozen=True)
class Hypothesis:
    """An answer that has ended."""

    tokens: tuple[int, ...]
    log_likelihood: float
    score: float


@dataclass
class SearchRow(BeamRow):
    """The beams of one prompt and the answers that have ended."""

    pool: list[Hypothesis] = field(default_factory=list)  # the W best ended answers, best first


@dataclass
class BeamSearch(BeamDecoder):
    """Beam search over one target; see ``BeamDecoder`` for the arguments."""

    row_type: ClassVar[type[BeamRow]] = SearchRow

    def step(self, active: Sequence[BeamRow]) -> int:
        forest, parents, _ = self._begin(active)
        logits = forest.run_all(self.target, self._caches[0])
        log_p = next_token_log_probs(
            logits.to(self.settings.dtype), torch.zeros_like(parents.stopped), parents.tokens
        )
        joint = (parents.likelihood.unsqueeze(-1) + log_p).flatten(1)
        ends = max((len(row.request.stop_ids) for row in active), default=0)
        best = joint.topk(min(max(2, 1 + ends) * self.plan.width, joint.shape[1]), dim=-1)
        likeliest = torch.cat([best.values, best.indices.double()], dim=1)
        processes.agree(likeliest)
        table = likeliest.tolist()
        count, vocab = best.values.shape[1], log_p.shape[-1]
        for index, row in enumerate(active):
            # A largest value that is not a number: NaN counts as the largest.
            check_lawful(row.request.prompt_id, not isnan(table[index][0]))
            candidates = list(zip(table[index][:count], table[index][count:], strict=True))
            stops = len(row.request.stop_ids)
            self._select(index, row, candidates[: max(2, 1 + stops) * self.plan.width], vocab)
        return len(active)

    def _select(
        self, index: int, row: BeamRow, candidates: Sequence[tuple[float, float]], vocab: int
    ) -> None:
        """Sorts the best candidates (log-likelihood, cell), best first, into the pool and the next
        beams, and ends the row, the index-th in the caches, if due.
        """
        width, first, length = self.plan.width, len(row.tokens) - row.width, row.layers + 1
        row.steps.append(StepRecord(0, 0, 0, 1, (width,)))
        assert isinstance(row, SearchRow)
        pool = row.pool
        going: list[Beam] = []
        for rank, (likelihood, cell) in enumerate(candidates):
            parent, token = int(cell) // vocab, int(cell) % vocab
            ended = token in row.request.stop_ids or length == row.request.max_new_tokens
            beam = Beam(first + parent, token, likelihood, length, ended)
            if not ended:
                going.append(beam)
            elif rank < width and likelihood > -torch.inf:
                tokens = (*row.generated(parent), token)
                score = beam.score(self.plan.length_penalty)
                pool.append(Hypothesis(tokens, likelihood, score))
        pool.sort(key=lambda hypothesis: -hypothesis.score)
        del pool[width:]
        going = [beam for beam in going if beam.likelihood > -torch.inf][:width]
        if going:
            best = replace(going[0], length=length).score(self.plan.length_penalty)
            hopeless = len(pool) == width and best <= pool[-1].score
        if not going or hopeless:
            row.close(pool[0].tokens, pool[0].log_likelihood)
            return
        kept = row.advance([], [], going, 1, 0)
        self._keep(index, row, Moves(len(row.trunk), (kept,)))
        row.grow_trunk(False)
