"""One iteration of beam decoding between the model passes: from logits to the output beams.

Letters: R rows, B parents, D draft beams per layer, V vocabulary, L draft layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import RandomSource, TrialDraws
from spec_bench.core.warp import (
    SamplingSettings,
    is_distribution,
    raw_next_log_probs,
    warped_beam_probs,
)
from spec_bench.decode.rows import AnswerRow
from spec_bench.records.types import Finish, Request, StepRecord
from spec_bench.verify.beams import (
    LayerVerdict,
    compute_acceptances_after_rejections,
    compute_layer_width,
    compute_missing_beam_probs_and_counts,
    compute_residual_chain,
    verify_layer,
)


@dataclass(frozen=True)
class CacheMoves:
    """Moves of one row's nodes to the front of the caches, applied at once on a CPU and with the
    next iteration's copy on a GPU. The host selects the nodes after the iteration's only transfer
    to it, so their indices wait for the next transfer to the device, before the next pass.
    """

    first_slot: int = 0  # of node 0
    kept_nodes: tuple[Sequence[int], ...] = ()  # per cache the nodes to keep, in increasing order

    def apply(self, caches: Sequence[Any], row: int) -> None:
        """Moves the nodes of row ``row`` in the caches."""
        for cache, nodes in zip(caches, self.kept_nodes, strict=False):
            cache.commit(row, self.first_slot, nodes)


def combine_moves(moves: Sequence[CacheMoves], cache_count: int) -> list[Tensor]:
    """Combines R rows' moves into one tensor of slots per cache, [2, R, T] on the host: source and
    target. Returns an empty list if nothing moves. A row with fewer moves repeats its last move, or
    moves a slot to itself.
    """
    tables = []
    for cache in range(cache_count):
        pairs = []
        for move in moves:
            nodes = enumerate(move.kept_nodes[cache] if move.kept_nodes else ())
            pairs.append(
                [
                    (move.first_slot + node, move.first_slot + target)
                    for target, node in nodes
                    if target != node
                ]
            )
        longest = max(map(len, pairs))
        for slots, move in zip(pairs, moves, strict=True):
            filler = slots[-1] if slots else (move.first_slot, move.first_slot)
            slots += [filler] * (longest - len(slots))
        tables.append(torch.tensor(pairs, dtype=torch.long).view(len(moves), longest, 2))
    return [table.permute(2, 0, 1) for table in tables] if any(t.numel() for t in tables) else []


@dataclass(frozen=True)
class Beam:
    """One output beam of a step."""

    parent: int  # the node it continues
    token: int  # its last token
    log_likelihood: float  # natural log of its probability under the target, temperature 1
    length: int  # tokens generated, up to and including a stop token
    stopped: bool  # whether it has emitted a stop token

    def score(self, length_penalty: float) -> float:
        """Computes log-likelihood / length^penalty: 1 ranks by perplexity, 0 by likelihood."""
        return self.log_likelihood / max(self.length, 1) ** length_penalty


@dataclass
class BeamRow(AnswerRow):
    """The beams of one prompt.

    The beams share a trunk; their tokens after it form a small trie. A prompt takes one cache row.
    The trunk's tokens take the row's first slots, the trie's nodes the next slots in the order of
    ``trie_tokens``, parents before children. The last nodes are the beams themselves, which no
    model has run yet. Beams share ancestors, so the trie stays small, and no cache row is ever
    copied.
    """

    request: Request
    generator: torch.Generator  # the only source of its randomness
    trunk: list[int]  # the prompt and the tokens that all beams share, all in the caches
    trie_tokens: list[int]  # [n] the trie's nodes, the beams last
    trie_parents: list[int]  # [n] index of each node's parent, -1 for the trunk's end
    beams: list[Beam]  # of the last nodes
    drafted_nodes: int = 0  # number of nodes that the draft has run
    layers: int = 0  # tokens that every beam has generated so far
    # nodes that must still move in the caches
    moves: CacheMoves = field(default_factory=CacheMoves)
    steps: list[StepRecord] = field(default_factory=list)  # one record per target call
    answer: tuple[int, ...] = ()  # the delivered tokens, once finished
    log_likelihood: float | None = 0.0  # of the answer; None if a stop text cut it
    finish: Finish | None = None  # why it ended, None while it runs

    @classmethod
    def start(cls, request: Request, generator: torch.Generator) -> BeamRow:
        """Makes a row of one beam from the prompt, whose last token is not run yet."""
        *trunk, root = request.prompt_ids
        return cls(request, generator, trunk, [root], [-1], [Beam(-1, root, 0.0, 0, False)])

    @property
    def width(self) -> int:
        """W, the number of beams."""
        return len(self.beams)

    @property
    def remaining_layers(self) -> int:
        """Layers left before the length limit."""
        return self.request.max_new_tokens - self.layers

    def compute_ancestor_mask(self) -> torch.Tensor:
        """Computes a mask [n, n], True where node j is node i or an ancestor of it."""
        mask = torch.eye(len(self.trie_tokens), dtype=torch.bool)
        for node, parent in enumerate(self.trie_parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask

    def compute_node_depths(self) -> list[int]:
        """Computes each node's level below the trunk's end [n], 0 for its children."""
        depth: list[int] = []
        for parent in self.trie_parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return depth

    def find_first_equal_beams(self) -> list[int]:
        """Finds for each beam the index of the first beam with the same text."""
        texts: dict[tuple[int, int], int] = {}  # (the parent's, the token) -> a node with it
        node_text: list[int] = []
        for node, (parent, token) in enumerate(
            zip(self.trie_parents, self.trie_tokens, strict=True)
        ):
            key = (-1 if parent < 0 else node_text[parent], token)
            node_text.append(texts.setdefault(key, node))
        beams = node_text[-self.width :]
        return [beams.index(text) for text in beams]

    def get_generated_tokens(self, beam: int) -> list[int]:
        """Returns the tokens generated by the beam with index ``beam``."""
        path = []
        node = len(self.trie_tokens) - self.width + beam
        while node >= 0:
            path.append(self.trie_tokens[node])
            node = self.trie_parents[node]
        return [*self.trunk, *reversed(path)][len(self.request.prompt_ids) :]

    def replace_beams(
        self,
        forest_tokens: Sequence[int],
        forest_parents: Sequence[int],
        beams: Sequence[Beam],
        layers: int,
        draft_end: int,
    ) -> list[int]:
        """Replaces the input beams by a step's output beams, which are ``layers`` tokens longer.

        Parents index the row's nodes, followed by the step's draft nodes (the forest). The target
        has run all of them, the draft the first ``draft_end``. Returns the nodes to keep in the
        caches, in increasing order: the output beams' ancestors.
        """
        tokens = [*self.trie_tokens, *forest_tokens]
        parents = [*self.trie_parents, *forest_parents]
        ancestors: set[int] = set()
        for beam in beams:
            node = beam.parent
            while node >= 0 and node not in ancestors:
                ancestors.add(node)
                node = parents[node]
        nodes = sorted(ancestors)
        new_index = {-1: -1, **{node: index for index, node in enumerate(nodes)}}
        self.trie_tokens = [*(tokens[node] for node in nodes), *(beam.token for beam in beams)]
        self.trie_parents = [new_index[parents[node]] for node in nodes]
        self.trie_parents += [new_index[beam.parent] for beam in beams]
        self.beams = list(beams)
        self.drafted_nodes = sum(node < draft_end for node in nodes)
        self.layers += layers
        return nodes

    def grow_trunk(self, has_draft: bool) -> None:
        """Moves nodes that all beams share and all models have run to the trunk."""
        run_count = self.drafted_nodes if has_draft else len(self.trie_tokens) - self.width
        shared_count = 0
        while shared_count < run_count and self.trie_parents.count(shared_count - 1) == 1:
            shared_count += 1
        self.trunk += self.trie_tokens[:shared_count]
        self.trie_tokens = self.trie_tokens[shared_count:]
        self.trie_parents = [
            max(parent - shared_count, -1) for parent in self.trie_parents[shared_count:]
        ]
        self.drafted_nodes = max(self.drafted_nodes - shared_count, 0)

    def end_with_best_beam(self, length_penalty: float) -> None:
        """Ends the row with its best beam; see ``Beam.score``."""
        best = max(range(self.width), key=lambda beam: self.beams[beam].score(length_penalty))
        beam = self.beams[best]
        self.end_with_answer(self.get_generated_tokens(best)[: beam.length], beam.log_likelihood)

    def end_with_answer(self, uncut_answer: Sequence[int], log_likelihood: float) -> None:
        """Ends the row with the answer up to its first stop, and limits the steps' delivered
        tokens to the answer's.
        """
        end = self.request.count_tokens_to_end(uncut_answer)
        self.answer = tuple(uncut_answer[:end])
        self.log_likelihood = log_likelihood if len(self.answer) == len(uncut_answer) else None
        self.finish = "length" if end is None else "stop"
        remaining_tokens = len(self.answer)
        for place, step in enumerate(self.steps):
            self.steps[place] = replace(step, delivered=min(step.delivered, remaining_tokens))
            remaining_tokens -= self.steps[place].delivered


def pack_input_beams(active: Sequence[BeamRow], max_beams: int) -> list[torch.Tensor]:
    """Packs R rows' beams into host tensors: log-likelihood, length and stopped [R, B], stop_ids
    [R, S], first [R, B]; see ``ParentBeams``. Rows are padded to ``max_beams`` (B).
    """

    def pad_rows(rows: Sequence[Sequence[Any]], width: int, fill: float) -> Tensor:
        numbers = [[*row, *[fill] * (width - len(row))] for row in rows]
        return torch.tensor(numbers, dtype=torch.float64)

    beams = [row.beams for row in active]
    stops = [row.request.stop_ids for row in active]
    stop_count = max(1, *map(len, stops))
    return [
        pad_rows([[beam.log_likelihood for beam in row] for row in beams], max_beams, -torch.inf),
        pad_rows([[beam.length for beam in row] for row in beams], max_beams, 0).long(),
        pad_rows([[beam.stopped for beam in row] for row in beams], max_beams, 0).bool(),
        pad_rows(stops, stop_count, -1).long(),
        torch.tensor(
            [[*row.find_first_equal_beams(), *range(row.width, max_beams)] for row in active]
        ),
    ]


@dataclass(frozen=True)
class BeamPlan:
    """Number of beams and draft layers, and the settings of verification."""

    width: int  # W_S, draft beams per layer; for beam sampling the number of beams
    depth: int = 0  # gamma, draft layers; 0 for beam sampling
    threshold: float = 0.0  # t, the probability with which a layer must reach its width
    min_width: int = 1  # W_min
    one_cache: bool = False  # whether only an iteration's best output beam is kept (section 3.4)
    # the answer is the beam with the largest log-likelihood / length^penalty
    length_penalty: float = 1.0


@dataclass(frozen=True)
class ParentBeams:
    """The beams that a layer continues."""

    tokens: Tensor  # [R, B] last token of each
    log_likelihood: Tensor  # [R, B] raw log-likelihood, -inf where there is no beam
    length: Tensor  # [R, B] tokens generated, up to and including a stop token
    stopped: Tensor  # [R, B] whether it has emitted a stop token
    stop_ids: Tensor  # [R, S] the rows' stop tokens, padded with -1
    first: Tensor  # [R, B] index of the first beam with the same text, possibly the beam itself

    def raw_log_probs(self, logits: Tensor) -> Tensor:
        """Computes raw log-probabilities after each beam from logits [R, B, V]; beams of the same
        text get the same numbers.

        A model computes these beams' logits separately, with rounding errors that depend on place
        and batch. Without this, truncation or a maximum would choose among equal cells differently
        in each batch.
        """
        log_p = raw_next_log_probs(logits, self.stopped, self.tokens)
        return log_p.gather(1, self.first.unsqueeze(-1).expand_as(log_p))

    def children(self, cells: Tensor, raw_log_probs: Tensor) -> ParentBeams:
        """Makes the beams at cells [R, D] (parent V + token) from each parent's raw
        log-probabilities [R, B, V].
        """
        parent = cells // raw_log_probs.shape[-1]
        tokens = cells % raw_log_probs.shape[-1]
        log_p_gain = raw_log_probs.flatten(1).gather(1, cells)
        likelihood = self.log_likelihood.gather(1, parent) + log_p_gain
        ends = (tokens.unsqueeze(-1) == self.stop_ids.unsqueeze(1)).any(dim=-1)
        was_stopped = self.stopped.gather(1, parent)
        length = self.length.gather(1, parent) + ~was_stopped
        text = self.first.gather(1, parent) * raw_log_probs.shape[-1] + tokens
        equal_text = text.unsqueeze(1) == text.unsqueeze(2)
        first_equal = equal_text.byte().argmax(dim=-1)
        return ParentBeams(
            tokens,
            likelihood,
            length,
            was_stopped | ends,
            self.stop_ids,
            first_equal,
        )


@dataclass(frozen=True)
class DraftedLayers:
    """The draft's beams, one entry per layer."""

    # [R, B V] or [R, D V] the draft's beam distribution over all its parents
    beam_probs: list[Tensor]
    cells: list[Tensor]  # [R, D]
    # [R] whether the logits of each layer so far make distributions
    valid_logits: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class BeamOutcome:
    """One row's outcome of an iteration, on the host."""

    layer: int  # the layer of the output beams, 1..L + 1: the number of tokens the row grew by
    accepted_layers: int  # draft layers that reached their width
    widths: tuple[int, ...]  # beams of each layer up to ``layer``
    beams: list[Beam]  # the output beams; ``parent`` is an index into the layer before
    draft_parents: list[list[int]]  # per draft layer its D parents within the layer before
    draft_tokens: list[list[int]]  # per draft layer its D tokens
    # whether the target's and the draft's logits made distributions; if not, ignore the rest
    valid_logits: tuple[bool, bool] = (True, True)


_FIELDS = ("cells", "present", "likelihood", "length", "stopped")  # of an output beam


class JudgedLayer(NamedTuple):
    """One layer's draft beams after their trials."""

    cells: Tensor  # [R, W] of the draft beams
    verdict: LayerVerdict
    residual_chain: Tensor  # [R, W + 1, B V] the residual distributions
    width: Tensor  # [R] number of beams in the layer


def _judge_drafted_layer(
    layer: int,
    target_probs: Tensor,
    parents: ParentBeams,
    draft_layers: DraftedLayers,
    plan: BeamPlan,
    trials: TrialDraws,
) -> JudgedLayer:
    """Tests a layer's draft beams against the target's distribution ``target_probs`` [R, B V]."""
    vocab = target_probs.shape[-1] // parents.log_likelihood.shape[1]
    is_present = (parents.log_likelihood > -torch.inf).repeat_interleave(vocab, dim=1)
    q = draft_layers.beam_probs[layer] * is_present
    cells = draft_layers.cells[layer]
    chain = compute_residual_chain(target_probs, q, plan.width)
    acceptances = compute_acceptances_after_rejections(chain, q)
    width = compute_layer_width(acceptances, plan.threshold, plan.min_width)
    verdict = verify_layer(chain, q, cells, width, trials, layer * plan.width)
    return JudgedLayer(cells, verdict, chain, width)


def _judge_extra_layer(target_probs: Tensor, width: Tensor, max_width: int) -> JudgedLayer:
    """Makes the verdict of the layer below the last drafted layer. Nothing was drafted there, so
    all its ``width`` [R] beams, at most ``max_width``, are missing.
    """
    chain = target_probs.unsqueeze(1).expand(-1, max_width + 1, -1)
    no_cells = torch.zeros(
        (len(target_probs), max_width), dtype=torch.long, device=target_probs.device
    )
    verdict = LayerVerdict(no_cells.bool(), torch.zeros_like(width))
    return JudgedLayer(no_cells, verdict, chain, width)


def _draw_cells_where(rows: Tensor, cell_probs: Tensor, draws: RandomSource) -> Tensor:
    """Draws a cell from each of the distributions [R, W, B V] in rows where ``rows`` [R] is True;
    other rows get cell 0.
    """
    unread = torch.zeros_like(cell_probs)  # of the other rows: all mass on cell 0
    unread[..., 0] = 1.0
    return draws.categorical(torch.where(rows[:, None, None], cell_probs, unread), 1).squeeze(-1)


def _stack_fields(cells: Tensor, present: Tensor, beams: ParentBeams) -> Tensor:
    """Stacks what ``_FIELDS`` names of beams, [R, fields, W], float64."""
    fields = (cells, present, beams.log_likelihood, beams.length, beams.stopped)
    return torch.stack([field.double() for field in fields], dim=1)


def verify_forest(
    logits: Tensor,
    parents: ParentBeams,
    draft_layers: DraftedLayers,
    plan: BeamPlan,
    settings: SamplingSettings,
    layer_limits: Tensor,
    draws: RandomSource,
) -> list[BeamOutcome]:
    """Verifies a forest and draws the missing beams (Algorithm 1, corrected); returns one outcome
    per row. ``layer_limits`` [R] bounds a row's layers. ``logits`` [R, B + L D, V] are the
    target's, at the input beams and then at every draft beam.
    """
    rows = logits.shape[0]
    width = plan.width
    depth = len(draft_layers.cells)
    vocab = logits.shape[-1]
    inputs = parents.tokens.shape[1]
    trials = draws.trials(depth * width)
    active = torch.ones(rows, dtype=torch.bool, device=logits.device)
    final_layer = torch.zeros_like(layer_limits)  # where each row's verification ended
    full_layers = torch.zeros_like(layer_limits)  # number of layers that reached their width
    beams = logits.new_zeros((rows, len(_FIELDS), 2 * width), dtype=torch.float64)
    layer_widths = [torch.full((rows,), width, device=active.device)]
    for layer in range(depth + 1):
        start = inputs + (layer - 1) * width
        layer_logits = logits[:, start : start + width] if layer else logits[:, :inputs]
        log_p = parents.raw_log_probs(layer_logits)
        beam_probs = warped_beam_probs(parents.log_likelihood, log_p, settings)
        if layer < depth:
            judged_layer = _judge_drafted_layer(
                layer, beam_probs, parents, draft_layers, plan, trials
            )
        else:
            judged_layer = _judge_extra_layer(beam_probs, layer_widths[-1], width)
        cells, verdict, chain, layer_width = judged_layer
        layer_widths.append(layer_width)
        missing_probs, missing_count = compute_missing_beam_probs_and_counts(
            chain, verdict, layer_width
        )
        ends = active & ((missing_count > 0) | (layer_limits == layer + 1))
        new_cells = _draw_cells_where(ends, missing_probs, draws)
        is_used = torch.arange(width, device=missing_count.device) < missing_count.unsqueeze(1)
        output = torch.cat([cells, new_cells], dim=1)  # drafted cells, then drawn cells
        present = torch.cat([verdict.accepted, is_used], dim=1)
        candidates = _stack_fields(output, present, parents.children(output, log_p))
        beams = torch.where(ends[:, None, None], candidates, beams)
        final_layer = torch.where(ends, layer + 1, final_layer)
        full_layers = full_layers + (active & (missing_count == 0))
        active = active & ~ends
        if layer < depth:
            parents = parents.children(cells, log_p)
            likelihood = parents.log_likelihood.masked_fill(~verdict.accepted, -torch.inf)
            parents = replace(parents, log_likelihood=likelihood)
    valid_logits = [is_distribution(logits).all(dim=1), *draft_layers.valid_logits]
    widths = torch.stack(layer_widths[1:], 1)
    return _copy_outcomes_to_host(
        final_layer, full_layers, widths, beams, draft_layers, vocab, valid_logits
    )


def _copy_outcomes_to_host(
    final_layer: Tensor,
    full_layers: Tensor,
    widths: Tensor,
    beams: Tensor,
    draft_layers: DraftedLayers,
    vocab: int,
    valid_logits: Sequence[Tensor],
) -> list[BeamOutcome]:
    """Copies all that the host needs in one float64 transfer, and unpacks it by row."""
    depth = len(draft_layers.cells)
    places = beams.shape[2]
    parts = [final_layer.unsqueeze(1), full_layers.unsqueeze(1), widths, beams.flatten(1)]
    parts += [*draft_layers.cells, torch.stack(list(valid_logits), dim=1)]
    sizes = [1, 1, depth + 1, *([places] * len(_FIELDS)), *([places // 2] * depth)]
    sizes.append(len(valid_logits))
    outcomes = []
    for row in torch.cat([part.double() for part in parts], dim=1).tolist():
        numbers = iter(row)
        (layer,), (accepted_layers,), all_widths, *columns, logits_flags = (
            list(islice(numbers, size)) for size in sizes
        )
        fields = columns[: len(_FIELDS)]
        drafts = columns[len(_FIELDS) :]
        output = [
            Beam(int(cell) // vocab, int(cell) % vocab, likelihood, int(length), bool(stopped))
            for cell, present, likelihood, length, stopped in zip(*fields, strict=True)
            if present
        ]
        parents = [[int(cell) // vocab for cell in cells] for cells in drafts]
        tokens = [[int(cell) % vocab for cell in cells] for cells in drafts]
        layer_widths = tuple(map(int, all_widths[: int(layer)]))
        row_valid_logits = bool(logits_flags[0]), all(logits_flags[1:])
        outcomes.append(
            BeamOutcome(
                int(layer),
                int(accepted_layers),
                layer_widths,
                output,
                parents,
                tokens,
                row_valid_logits,
            )
        )
    return outcomes
