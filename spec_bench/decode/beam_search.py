"""Deterministic beam search: keeps the W likeliest continuations, and ended answers in a pool.

The search is the same as transformers' `generate(num_beams=W, do_sample=False)` with its default
settings, so that the two can be compared token by token. Probabilities are raw and ignore the
sampling settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import ClassVar

import torch

from spec_bench.core import processes
from spec_bench.core.warp import raw_next_log_probs
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.beam_step import Beam, BeamRow, CacheMoves
from spec_bench.decode.rows import require_distributions
from spec_bench.records.types import StepRecord, TokenCount


@dataclass
class SearchRow(BeamRow):
    """The beams of one prompt and its ended answers."""

    # the W best ended answers, best first: score, log-likelihood, tokens
    pool: list[tuple[float, float, tuple[int, ...]]] = field(default_factory=list)


@dataclass
class BeamSearch(BeamDecoder):
    """Beam search over one target; see ``BeamDecoder`` for the arguments."""

    row_type: ClassVar[type[BeamRow]] = SearchRow

    def step(self, active: Sequence[BeamRow]) -> TokenCount:
        forest, parents, _ = self._begin_iteration(active)
        logits = forest.run_on_target(self.target, self._caches[0])
        log_p = raw_next_log_probs(
            logits.to(self.settings.dtype), torch.zeros_like(parents.stopped), parents.tokens
        )
        joint = (parents.log_likelihood.unsqueeze(-1) + log_p).flatten(1)
        ends = max(len(row.request.stop_ids) for row in active)
        best = joint.topk(min(max(2, 1 + ends) * self.plan.width, joint.shape[1]), dim=-1)
        likeliest = torch.cat([best.values, best.indices.double()], dim=1)
        processes.copy_from_first_process(likeliest)
        table = likeliest.tolist()
        count = best.values.shape[1]
        vocab = log_p.shape[-1]
        for index, row in enumerate(active):
            # topk sorts NaN first, so testing the first value is enough.
            require_distributions(row.request.prompt_id, not isnan(table[index][0]))
            candidates = list(zip(table[index][:count], table[index][count:], strict=True))
            stops = len(row.request.stop_ids)
            self._select_beams(index, row, candidates[: max(2, 1 + stops) * self.plan.width], vocab)
        return len(active)

    def _select_beams(
        self,
        index: int,
        row: BeamRow,
        candidates: Sequence[tuple[float, float]],
        vocab: int,
    ) -> None:
        """Sorts the best candidates (log-likelihood, cell), best first, into the pool and the next
        beams; ends the row if the search is over. ``index`` is the row's place in the caches.
        """
        width = self.plan.width
        parent_offset = len(row.trie_tokens) - row.width
        length = row.layers + 1
        row.steps.append(StepRecord(0, 0, 0, 1, (width,)))
        assert isinstance(row, SearchRow)
        pool = row.pool
        active: list[Beam] = []
        for rank, (likelihood, cell) in enumerate(candidates):
            parent = int(cell) // vocab
            token = int(cell) % vocab
            is_final = token in row.request.stop_ids or length == row.request.max_new_tokens
            beam = Beam(parent_offset + parent, token, likelihood, length, is_final)
            if not is_final:
                active.append(beam)
            elif rank < width and likelihood > -torch.inf:
                tokens = (*row.get_generated_tokens(parent), token)
                score = beam.score(self.plan.length_penalty)
                pool.append((score, likelihood, tokens))
        pool.sort(key=lambda answer: -answer[0])
        del pool[width:]
        active = [beam for beam in active if beam.log_likelihood > -torch.inf][:width]
        if active:
            best = replace(active[0], length=length).score(self.plan.length_penalty)
            hopeless = len(pool) == width and best <= pool[-1][0]
        if not active or hopeless:
            _, likelihood, answer = pool[0]
            row.end_with_answer(answer, likelihood)
            return
        nodes = row.replace_beams([], [], active, 1, 0)
        self._apply_or_queue_moves(index, row, CacheMoves(len(row.trunk), (nodes,)))
        row.grow_trunk(False)
