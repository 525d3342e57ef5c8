"""One iteration of beam decoding between the model passes: from logits to the output beams.

Letters: R rows, B parents, D draft beams per layer, V vocabulary, L draft layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from spec_bench.core.beams import beam_probs, next_token_log_probs
from spec_bench.core.draws import Draws
from spec_bench.core.warp import SamplingSettings, make_a_law
from spec_bench.decode.beam_rows import Beam
from spec_bench.verify.beams import (
    LayerVerdict,
    acceptance_in_a_row,
    completion,
    layer_width,
    residual_chain,
    verify_layer,
)


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
class Parents:
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

    def children(self, cells: Tensor, log_p: Tensor) -> Parents:
        """The beams at cells [R, D], given raw log-probabilities [R, B, V] after each parent."""
        parent, tokens = cells // log_p.shape[-1], cells % log_p.shape[-1]
        gained = log_p.flatten(1).gather(1, cells)
        likelihood = self.likelihood.gather(1, parent) + gained
        ends = (tokens.unsqueeze(-1) == self.stop_ids.unsqueeze(1)).any(dim=-1)
        stopped = self.stopped.gather(1, parent)
        length = self.length.gather(1, parent) + ~stopped
        text = self.first.gather(1, parent) * log_p.shape[-1] + tokens
        place = torch.arange(text.shape[1], device=text.device)
        same = text.unsqueeze(1) == text.unsqueeze(2)
        first = torch.where(same, place, text.shape[1]).amin(dim=-1)
        return Parents(tokens, likelihood, length, stopped | ends, self.stop_ids, first)

    def only(self, there: Tensor) -> Parents:
        """The beams without those that are not ``there`` [R, B]."""
        likelihood = self.likelihood.masked_fill(~there, -torch.inf)
        return replace(self, likelihood=likelihood)


@dataclass(frozen=True)
class Drafted:
    """What was drafted, one entry per layer."""

    laws: list[Tensor]  # [R, B V] or [R, D V] the draft's beam distribution over all its parents
    cells: list[Tensor]  # [R, D]
    # [R] whether the logits of each layer so far make distributions
    lawful: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
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


class _Ending:
    """Where each row's verification ended; filled in as rows end, layer by layer."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.layer = torch.zeros(rows, dtype=torch.long, device=device)  # of the output beams
        self.full = torch.zeros_like(self.layer)  # draft layers that reached their width
        shape = (rows, len(_FIELDS), 2 * width)
        self.beams = torch.zeros(shape, dtype=torch.float64, device=device)  # their fields

    def put(self, ends: Tensor, layer: int, parents: Parents, log_p: Tensor, cells: Tensor,
            there: Tensor) -> None:  # fmt: skip
        """Stores the output beams of the rows [R] that end at this layer: cells [R, 2 D], accepted
        ones, then drawn ones, and which of them are beams.
        """
        children = parents.children(cells, log_p)
        fields = (cells, there, children.likelihood, children.length, children.stopped)
        beams = torch.stack([field.double() for field in fields], dim=1)
        self.beams = torch.where(ends[:, None, None], beams, self.beams)
        self.layer = torch.where(ends, layer, self.layer)


def verify(
    logits: Tensor,
    parents: Parents,
    drafted: Drafted,
    plan: BeamPlan,
    settings: SamplingSettings,
    limit: Tensor,
    draws: Draws,
) -> list[Outcome]:
    """Verifies a forest and draws what is missing (Algorithm 1, corrected); one outcome per row, of
    ``limit`` [R] layers at most. The logits [R, B + L D, V] are the target's, at the input beams
    and at every draft beam.
    """
    rows, width, depth = logits.shape[0], plan.width, len(drafted.cells)
    vocab, inputs = logits.shape[-1], parents.tokens.shape[1]
    trials = draws.trials(depth * width)
    going = torch.ones(rows, dtype=torch.bool, device=logits.device)
    ending = _Ending(rows, width, logits.device)
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
            cells, asked = torch.zeros_like(nothing, dtype=torch.long), layer_widths[-1]
        else:
            stands = (parents.likelihood > -torch.inf).repeat_interleave(vocab, dim=1)
            q, cells = drafted.laws[layer] * stands, drafted.cells[layer]
            chain = residual_chain(law, q, width)
            asked = layer_width(acceptance_in_a_row(chain, q), plan.threshold, plan.least)
            verdict = verify_layer(chain, q, cells, asked, trials, layer * width)
        layer_widths.append(asked)
        laws, wanted = completion(chain, verdict, asked)
        ends = going & ((wanted > 0) | (limit == layer + 1))
        laws = _only_where(laws, ends)
        drawn = draws.categorical(laws, 1).squeeze(-1)
        used = torch.arange(width, device=wanted.device) < wanted.unsqueeze(1)
        ending.put(ends, layer + 1, parents, log_p, torch.cat([cells, drawn], dim=1),
                   torch.cat([verdict.accepted, used], dim=1))  # fmt: skip
        ending.full = ending.full + (going & (wanted == 0))
        going = going & ~ends
        if layer < depth:
            parents = parents.children(cells, log_p).only(verdict.accepted)
    lawful = [make_a_law(logits).all(dim=1), *drafted.lawful]
    return _to_host(ending, torch.stack(layer_widths[1:], dim=1), drafted, vocab, lawful)


def _only_where(laws: Tensor, rows: Tensor) -> Tensor:
    """The distributions of the given rows; elsewhere all mass on cell 0, so that nothing depends on
    it.
    """
    nothing = torch.zeros_like(laws)
    nothing[..., 0] = 1.0
    return torch.where(rows[:, None, None], laws, nothing)


def _to_host(
    ending: _Ending, widths: Tensor, drafted: Drafted, vocab: int, lawful: Sequence[Tensor]
) -> list[Outcome]:
    """One transfer: everything the host needs, as float64."""
    depth, places = len(drafted.cells), ending.beams.shape[2]
    parts = [ending.layer.unsqueeze(1), ending.full.unsqueeze(1), widths, ending.beams.flatten(1)]
    parts += [*drafted.cells, torch.stack(list(lawful), dim=1)]
    sizes = [1, 1, depth + 1, *([places] * len(_FIELDS)), *([places // 2] * depth), len(lawful)]
    outcomes = []
    for line in torch.cat([part.double() for part in parts], dim=1).tolist():
        (layer,), (full,), asked, *rest, sound = _split(line, sizes)
        fields, drafts = rest[: len(_FIELDS)], rest[len(_FIELDS) :]
        beams = [
            Beam(int(cell) // vocab, int(cell) % vocab, likelihood, int(length), bool(stopped))
            for cell, there, likelihood, length, stopped in zip(*fields, strict=True)
            if there
        ]
        outcomes.append(
            Outcome(
                int(layer),
                int(full),
                tuple(int(value) for value in asked[: int(layer)]),
                beams,
                [[int(cell) // vocab for cell in cells] for cells in drafts],
                [[int(cell) % vocab for cell in cells] for cells in drafts],
                (bool(sound[0]), all(sound[1:])),
            )
        )
    return outcomes


def _split(values: Sequence[float], sizes: Sequence[int]) -> list[Sequence[float]]:
    """Consecutive parts of the given sizes."""
    parts, at = [], 0
    for size in sizes:
        parts.append(values[at : at + size])
        at += size
    return parts
