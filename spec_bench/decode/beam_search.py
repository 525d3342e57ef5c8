"""Deterministic beam search: the W likeliest continuations go on, ended ones wait in a pool.

The same search as transformers' ``generate(num_beams=W, do_sample=False)`` with its default
settings, so that the two can be compared token by token; probabilities are raw and ignore the
sampling settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import ClassVar

import torch

from spec_bench.core import processes
from spec_bench.core.beams import next_token_log_probs
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.beam_moves import Moves
from spec_bench.decode.beam_rows import Beam, BeamRow
from spec_bench.decode.rows import check_lawful
from spec_bench.records.types import StepRecord


@dataclass(frozen=True)
class Hypothesis:
    """An answer that has ended."""

    tokens: tuple[int, ...]
    log_likelihood: float
    score: float


@dataclass
class SearchRow(BeamRow):
    """The beams of one prompt and the answers that have ended.

    Attributes:
        pool: the W best ended answers, best first.
    """

    pool: list[Hypothesis] = field(default_factory=list)


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
        """Sorts the best candidates into the pool and the next beams, and ends the row if due.

        Args:
            index: of the row in the caches.
            row: the row.
            candidates: (log-likelihood, cell), best first.
            vocab: V.
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
