"""Decodes several beams at once: beam sampling, and dynamic-width speculative beam decoding.

Each iteration: draft a forest of beams, run the target once over the input beams and the forest,
verify layer by layer, draw the missing beams, copy the outcome to the host (the iteration's only
transfer to it), keep the output beams' ancestors in the caches, record. Beam sampling is the case
without draft layers. Source: DSBD (arXiv 2409.16560), section 3, with its misprints corrected.

The paper leaves some points open. Here a stopped beam repeats its stop token and keeps its
likelihood. The extra layer has the width of the layer before it; a rejected layer keeps its own
width. The draft's beam distribution starts from the input beams' likelihoods under the *target*,
which are known. Verification ends at the length limit, so that the last layer is a full step of the
beam distribution too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import sub
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core import processes
from spec_bench.core.draws import RandomSource, SeededSource, make_row_generator
from spec_bench.core.host_device import (
    HostDeviceInts,
    cached_arange,
    cached_constant,
    copy_to_device,
)
from spec_bench.core.warp import (
    SamplingSettings,
    is_distribution,
    warped_beam_probs,
)
from spec_bench.decode.beam_step import (
    BeamOutcome,
    BeamPlan,
    BeamRow,
    CacheMoves,
    DraftedLayers,
    ParentBeams,
    combine_moves,
    pack_input_beams,
    verify_forest,
)
from spec_bench.decode.decoder import DrawsFactory
from spec_bench.decode.loop import DecodingLoop
from spec_bench.decode.rows import require_distributions
from spec_bench.engine.cache import CachePool
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import make_tree_mask, prefill
from spec_bench.records.types import Lossless, Request, StepRecord, TokenCount


class BeamForest:
    """One iteration's draft beams after each row's input beams, as tensors that a model runs over.

    Column c of a row is slot ``length + c``: first the row's trie nodes, the input beams last among
    them, then the forest's nodes, layer by layer, D each. Rows may have tries of different sizes.
    ``copy_inputs_to_device`` copies the host's numbers to the device.

    Letters: R rows, B input beams (the widest row's), D draft beams per layer, C columns.
    """

    input_tokens: Tensor  # [R, B] last token of each input beam

    def __init__(self, rows: Sequence[BeamRow], plan: BeamPlan, device: torch.device) -> None:
        self.device = device
        self.width = plan.width
        self.widths = [row.width for row in rows]
        self.input_count = max(self.widths)  # B
        self._ragged = min(self.widths) < self.input_count
        lengths = [len(row.trunk) for row in rows]
        sizes = [len(row.trie_tokens) for row in rows]
        self._trunk_lengths = HostDeviceInts(lengths)
        self._trie_sizes = HostDeviceInts(sizes)
        largest = max(sizes)
        columns = largest + plan.depth * plan.width
        self._trie_visible = torch.zeros((len(rows), largest, columns), dtype=torch.bool)
        for row, size, mask in zip(rows, sizes, self._trie_visible, strict=True):
            mask[:size, :size] = row.compute_ancestor_mask()
        self._trie_tokens = HostDeviceInts(
            [[*r.trie_tokens, *[0] * (largest - len(r.trie_tokens))] for r in rows]
        )
        self._forest_starts = HostDeviceInts(map(sum, zip(lengths, sizes, strict=True)))
        self._input_starts = HostDeviceInts(map(sub, self._forest_starts, self.widths))
        # A row with fewer beams repeats its first; a row's input beams have equal lengths.
        self._input_nodes = HostDeviceInts(
            [
                [size - width + (beam if beam < width else 0) for beam in range(self.input_count)]
                for size, width in zip(sizes, self.widths, strict=True)
            ]
        )
        depths = [row.compute_node_depths() for row in rows]
        self._input_positions = HostDeviceInts(
            [n + depth[-1] for n, depth in zip(lengths, depths, strict=True)]
        )
        self._target_order, self._logits_order = self._compute_node_order_and_inverse(plan.depth)
        self._max_drafted = max(row.drafted_nodes for row in rows)
        self._draft_inputs = self._build_draft_inputs(rows, depths) if plan.depth else []
        self.tokens: list[Tensor] = []  # of each layer, [R, D]
        self._visible: list[Tensor] = []  # ancestor masks: of the input beams, then of each layer

    def _compute_node_order_and_inverse(self, layers: int) -> tuple[HostDeviceInts, HostDeviceInts]:
        """Computes the order of nodes in the target's pass, and the inverse order for its logits.

        The slots of a row hold its own input beams, then the forest, then fillers.
        """
        inputs = self.input_count
        nodes = layers * self.width
        forest_slots = range(inputs, inputs + nodes)
        order = [[*range(w), *forest_slots, *[0] * (inputs - w)] for w in self.widths]
        back = [
            [*(beam if beam < w else 0 for beam in range(inputs)), *range(w, w + nodes)]
            for w in self.widths
        ]
        return HostDeviceInts(order), HostDeviceInts(back)

    def _build_draft_inputs(
        self,
        rows: Sequence[BeamRow],
        depths: Sequence[Sequence[int]],
    ) -> list[HostDeviceInts]:
        """Builds the draft's pending inputs: node indices, their positions, the first slots, and
        the input beams' places among them.

        A row with fewer pending nodes runs fillers after them; a later pass writes there.
        """
        count = max(len(row.trie_tokens) - row.drafted_nodes for row in rows)
        ends = [(row.drafted_nodes, len(row.trie_tokens) - 1) for row in rows]
        nodes = [[min(first + step, last) for step in range(count)] for first, last in ends]
        positions = [
            [len(row.trunk) + depth[node] for node in row_nodes]
            for row, depth, row_nodes in zip(rows, depths, nodes, strict=True)
        ]
        starts = [len(row.trunk) + row.drafted_nodes for row in rows]
        pairs = zip(rows, self._input_nodes, strict=True)
        inputs = [[node - row.drafted_nodes for node in row_nodes] for row, row_nodes in pairs]
        return [HostDeviceInts(part) for part in (nodes, positions, starts, inputs)]

    def copy_inputs_to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies the host's numbers and ``tensors`` to the device in one transfer; returns the
        copies of ``tensors``.
        """
        numbers = [
            self._trunk_lengths,
            self._trie_sizes,
            self._trie_tokens,
            self._forest_starts,
            self._input_starts,
            self._input_nodes,
            self._input_positions,
            *self._draft_inputs,
        ]
        if self._ragged:
            numbers += [self._target_order, self._logits_order]
        self._trie_visible, *copies = copy_to_device(
            numbers, self.device, [self._trie_visible, *tensors]
        )
        inputs = self._input_nodes.get_tensor(self.device)
        self.input_tokens = _gather_positions(self._trie_tokens.get_tensor(self.device), inputs)
        self._visible = [_gather_positions(self._trie_visible, inputs)]
        return copies

    def add_layer(self, tokens: Tensor, parents: Tensor) -> None:
        """Appends a layer of D draft beams: their tokens [R, D], and their parents [R, D] as
        indices into the layer before.
        """
        offset = len(self.tokens) * self.width
        index = parents.unsqueeze(-1).expand(-1, -1, self._visible[-1].shape[-1])
        layer = cached_constant(tuple(range(offset, offset + self.width)), self.device)
        nodes = self._trie_sizes.get_tensor(self.device).unsqueeze(1) + layer
        mask = self._visible[-1].gather(1, index).scatter(2, nodes.unsqueeze(-1), True)
        self.tokens.append(tokens)
        self._visible.append(mask)

    def run_pending_nodes(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the trie nodes that the draft has not run yet, the input beams among them; returns
        the logits after the input beams [R, B, V]. A row with fewer beams repeats its first.
        """
        nodes, positions, starts, inputs = self._draft_inputs
        index = nodes.get_tensor(self.device)
        tokens = _gather_positions(self._trie_tokens.get_tensor(self.device), index)
        mask = _gather_positions(self._trie_visible, index)
        mask = pad(mask, (0, self._max_drafted + index.shape[1] - mask.shape[-1]))
        logits = self._run_nodes(
            model, cache, starts, tokens, positions.get_tensor(self.device), mask
        )
        return _gather_positions(logits, inputs.get_tensor(logits.device))

    def run_newest_layer(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the draft over the newest layer; returns logits [R, D, V]."""
        layer = len(self.tokens)
        starts = self._forest_starts.plus((layer - 1) * self.width)
        mask = self._visible[-1][..., : max(self._trie_sizes) + layer * self.width]
        positions = (
            (self._input_positions.get_tensor(self.device) + layer)
            .unsqueeze(1)
            .expand(-1, self.width)
        )
        return self._run_nodes(model, cache, starts, self.tokens[-1], positions, mask)

    def run_on_target(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the target over the input beams and the whole forest, which is the iteration's
        target call. Returns logits [R, B + layers D, V].
        """
        tokens = torch.cat([self.input_tokens, *self.tokens], dim=1)
        mask = torch.cat(self._visible, dim=1)
        layers = range(1, len(self.tokens) + 1)
        levels = (0,) * self.input_count + tuple(n for n in layers for _ in range(self.width))
        positions = self._input_positions.get_tensor(self.device).unsqueeze(1) + cached_constant(
            levels, self.device
        )
        if self._ragged:
            order = self._target_order.get_tensor(self.device)
            tokens, positions, mask = (
                _gather_positions(part, order) for part in (tokens, positions, mask)
            )
        cached_count = max(
            size - width for size, width in zip(self._trie_sizes, self.widths, strict=True)
        )
        mask = pad(mask, (0, cached_count + tokens.shape[1] - mask.shape[-1]))
        logits = self._run_nodes(model, cache, self._input_starts, tokens, positions, mask)
        return (
            _gather_positions(logits, self._logits_order.get_tensor(logits.device))
            if self._ragged
            else logits
        )

    def _run_nodes(
        self,
        model: LanguageModel,
        cache: object,
        starts: HostDeviceInts,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Runs nodes [R, T], which ``mask`` [R, T, C] shows the columns of their ancestors, and
        stores them from the slots ``starts`` [R] on. Returns logits [R, T, V].
        """
        visible = make_tree_mask(self._trunk_lengths, mask)
        shared = self._trunk_lengths.lower_bound
        return model.forward(cache, starts, tokens, positions, visible, shared=shared).logits


def _gather_positions(values: Tensor, index: Tensor) -> Tensor:
    """Gathers, for each row, the positions ``index`` [R, U] of ``values`` [R, T, ...]; returns [R,
    U, ...].
    """
    return values[cached_arange(len(index), values.device).unsqueeze(1), index]


@dataclass
class BeamDecoder(DecodingLoop[BeamRow]):
    """Decoder of several beams over one target, with one draft model, or none for beam sampling.
    Sampling settings warp the joint distribution of all beams.
    """

    row_type: ClassVar[type[BeamRow]] = BeamRow

    name: str
    target: LanguageModel
    drafts: Sequence[LanguageModel]
    plan: BeamPlan  # number of beams, draft layers and acceptance
    settings: SamplingSettings
    rows: int = 1
    lossless: Lossless = "exact_beam"
    pool: CachePool = field(default_factory=CachePool)  # shared by the decoders of a job
    make_draws: DrawsFactory = SeededSource  # audits enumerate instead

    def __post_init__(self) -> None:
        self._caches: list[Any] = []

    @property
    def depth(self) -> int:
        return self.plan.depth

    @property
    def nodes(self) -> int:
        return self.plan.depth * self.plan.width

    def count_slots_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Counts the cache slots of a row: one trunk, a branch for every beam at worst, and one
        forest.

        With ``one_cache`` only one beam continues, so nothing branches.
        """
        branches = 1 if self.plan.one_cache else self.plan.width
        return longest_prompt + branches * (max_new_tokens + 2) + self.nodes

    def reserve(self, slots: int) -> None:
        roles = {"target": self.target}
        roles |= {f"draft {index}": draft for index, draft in enumerate(self.drafts)}
        self._caches = [
            self.pool.get_or_grow_cache(r, model, self.rows, slots) for r, model in roles.items()
        ]

    def join(self, index: int, request: Request, seed: int) -> BeamRow:
        generator = make_row_generator(seed, request.prompt_id, self.target.device)
        row = self.row_type.start(request, generator)
        for model, cache in zip((self.target, *self.drafts), self._caches, strict=True):
            prefill(model, cache, index, row.trunk)
        return row

    def step(self, active: Sequence[BeamRow]) -> TokenCount:
        draws = self.make_draws([row.generator for row in active])
        forest, parents, limit = self._begin_iteration(active)
        draft_layers = self._draft_layers(forest, parents, draws)
        logits = forest.run_on_target(self.target, self._caches[0])
        outcomes = verify_forest(
            logits.to(self.settings.dtype),
            parents,
            draft_layers,
            self.plan,
            self.settings,
            limit,
            draws,
        )
        outcomes = processes.broadcast_object(outcomes)
        for row, outcome in zip(active, outcomes, strict=True):
            require_distributions(row.request.prompt_id, *outcome.valid_logits)
        for index, row in enumerate(active):
            self._commit_outcome(index, row, outcomes[index])
        return sum(outcome.layer for outcome in outcomes)

    def move_row(self, row: BeamRow, source: int, target: int) -> None:
        row.moves.apply(self._caches, source)
        row.moves = CacheMoves()  # so that the next iteration does not repeat the moves
        for cache in self._caches:
            cache.move_row(source, target, len(row.trunk) + len(row.trie_tokens))

    def _apply_or_queue_moves(self, index: int, row: BeamRow, moves: CacheMoves) -> None:
        """Moves a row's nodes in the caches on a CPU; on a GPU queues the moves for the next
        iteration.
        """
        if self.target.device.type == "cpu":
            moves.apply(self._caches, index)
        else:
            row.moves = moves

    def take_forward_s(self) -> tuple[float, float]:
        return sum(draft.timer.take_s() for draft in self.drafts), self.target.timer.take_s()

    def _begin_iteration(self, active: Sequence[BeamRow]) -> tuple[BeamForest, ParentBeams, Tensor]:
        """Copies the iteration's numbers to the device in one transfer and applies pending cache
        moves.

        Returns the forest, still empty, the input beams, padded to the widest row, and each row's
        remaining layers [R].
        """
        forest = BeamForest(active, self.plan, self.target.device)
        limit = torch.tensor([row.remaining_layers for row in active])
        moves = combine_moves([row.moves for row in active], len(self._caches))
        limit, *parents = forest.copy_inputs_to_device(
            [limit, *pack_input_beams(active, forest.input_count), *moves]
        )
        count = len(parents) - len(moves)
        for cache, slots in zip(self._caches, parents[count:], strict=False):
            cache.move_slots(*slots.unbind(0))
        for row in active:
            row.moves = CacheMoves()
        return forest, ParentBeams(forest.input_tokens, *parents[:count]), limit

    def _draft_layers(
        self,
        forest: BeamForest,
        parents: ParentBeams,
        draws: RandomSource,
    ) -> DraftedLayers:
        """Samples D beams per layer from the draft, i.i.d. with replacement."""
        draft_layers = DraftedLayers([], [])
        for layer in range(self.plan.depth):
            run_nodes = forest.run_newest_layer if layer else forest.run_pending_nodes
            logits = run_nodes(self.drafts[0], self._caches[1])
            logits = logits.to(self.target.device, self.settings.dtype)
            log_q = parents.raw_log_probs(logits)
            beam_probs = warped_beam_probs(
                parents.log_likelihood, log_q, self.settings.get_draft_settings()
            )
            cells = draws.categorical(beam_probs.unsqueeze(1), self.plan.width).squeeze(1)
            processes.copy_from_first_process(cells)
            draft_layers.valid_logits.append(is_distribution(logits).all(dim=1))
            draft_layers.beam_probs.append(beam_probs)
            draft_layers.cells.append(cells)
            parents = parents.children(cells, log_q)
            forest.add_layer(parents.tokens, cells // log_q.shape[-1])
        return draft_layers

    def _commit_outcome(self, index: int, row: BeamRow, outcome: BeamOutcome) -> None:
        """Updates a row with its output beams, keeps their ancestors in the caches, and records."""
        size = len(row.trie_tokens)
        width = self.plan.width
        # the first node of each layer's parents
        firsts = [size - row.width, *(size + layer * width for layer in range(self.plan.depth))]
        layers = zip(firsts, outcome.draft_parents, strict=False)
        forest_parents = [
            parent_offset + parent for parent_offset, parents in layers for parent in parents
        ]
        forest_tokens = [token for tokens in outcome.draft_tokens for token in tokens]
        parent_offset = firsts[outcome.layer - 1]
        beams = [replace(beam, parent=parent_offset + beam.parent) for beam in outcome.beams]
        if self.plan.one_cache:
            beams = [max(beams, key=lambda beam: beam.score(self.plan.length_penalty))]
        draft_end = size + max(self.plan.depth - 1, 0) * width
        length = len(row.trunk)
        kept_nodes = row.replace_beams(
            forest_tokens, forest_parents, beams, outcome.layer, draft_end
        )
        self._apply_or_queue_moves(
            index, row, CacheMoves(length, (kept_nodes, kept_nodes[: row.drafted_nodes]))
        )
        row.grow_trunk(bool(self.drafts))
        row.steps.append(
            StepRecord(
                self.nodes, self.depth, outcome.accepted_layers, outcome.layer, outcome.widths
            )
        )
        if all(beam.stopped for beam in row.beams) or row.remaining_layers == 0:
            row.end_with_best_beam(self.plan.length_penalty)
