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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from operator import sub
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core import processes
from spec_bench.core.draws import Draws, SeededSource, make_row_generator
from spec_bench.core.transfer import HostDeviceInts, cached_arange, constant, copy_to_device
from spec_bench.core.warp import SamplingSettings, beam_probs, is_distribution, next_token_log_probs
from spec_bench.decode.beam_step import (
    Beam,
    BeamOutcome,
    BeamPlan,
    BeamRow,
    CacheMoves,
    DraftedLayers,
    ParentBeams,
    combine_moves,
    pack_parents,
    verify,
)
from spec_bench.decode.decoder import DrawsFactory
from spec_bench.decode.loop import DecodingLoop
from spec_bench.decode.rows import check_logits
from spec_bench.engine.cache import CachePool
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import prefill, run_under_ancestors
from spec_bench.records.types import Lossless, Request, StepRecord


class BeamForest:
    """One iteration's draft beams after each row's input beams, as tensors that a model runs over.

    Column c of a row is slot ``length + c``: first the row's trie nodes, the input beams last among
    them, then the forest's nodes, layer by layer, D each. Rows may have tries of different sizes.
    What the host knows of all this goes to the device with ``send``.

    Letters: R rows, B input beams (the widest row's), D draft beams per layer, C columns.
    """

    input_tokens: Tensor  # [R, B]

    def __init__(self, rows: Sequence[BeamRow], plan: BeamPlan, device: torch.device) -> None:
        self.device = device
        self.width = plan.width
        self.widths = [row.width for row in rows]
        self.inputs = max(self.widths)  # B
        self._ragged = min(self.widths) < self.inputs
        lengths = [len(row.trunk) for row in rows]
        sizes = [len(row.tokens) for row in rows]
        self._lengths, self._sizes, most = (
            HostDeviceInts(lengths),
            HostDeviceInts(sizes),
            max(sizes),
        )
        columns = most + plan.depth * plan.width
        self._trie_seen = torch.zeros((len(rows), most, columns), dtype=torch.bool)
        for row, size, seen in zip(rows, sizes, self._trie_seen, strict=True):
            seen[:size, :size] = row.ancestors()
        self._trie_tokens = HostDeviceInts(
            [[*r.tokens, *[0] * (most - len(r.tokens))] for r in rows]
        )
        self._behind = HostDeviceInts(map(sum, zip(lengths, sizes, strict=True)))
        self._starts = HostDeviceInts(map(sub, self._behind, self.widths))
        # A short row repeats its first input beam; all of a row are equally long.
        self._inputs = HostDeviceInts(
            [
                [size - width + (beam if beam < width else 0) for beam in range(self.inputs)]
                for size, width in zip(sizes, self.widths, strict=True)
            ]
        )
        depths = [row.depths() for row in rows]
        self._depth = HostDeviceInts(
            [n + depth[-1] for n, depth in zip(lengths, depths, strict=True)]
        )
        self._order, self._back = self._slot_order(plan.depth)
        self._drafted = max(row.drafted for row in rows)
        self._pending = self._build_draft_inputs(rows, depths) if plan.depth else []
        self.tokens: list[Tensor] = []  # a layer each, [R, D]
        self._seen: list[Tensor] = []  # the input beams', then a layer each

    def _slot_order(self, layers: int) -> tuple[HostDeviceInts, HostDeviceInts]:
        """Returns where the target's pass takes its nodes from, and where it returns their logits.

        The slots of a row hold its own input beams, then the forest, then fillers.
        """
        inputs = self.inputs
        nodes = layers * self.width
        drafted = range(inputs, inputs + nodes)
        order = [[*range(w), *drafted, *[0] * (inputs - w)] for w in self.widths]
        back = [
            [*(beam if beam < w else 0 for beam in range(inputs)), *range(w, w + nodes)]
            for w in self.widths
        ]
        return HostDeviceInts(order), HostDeviceInts(back)

    def _build_draft_inputs(
        self, rows: Sequence[BeamRow], depths: Sequence[Sequence[int]]
    ) -> list[HostDeviceInts]:
        """What the draft has not run yet: nodes, their positions, first slots, the input beams.

        A row with fewer pending nodes runs fillers after them; a later pass writes there.
        """
        most = max(len(row.tokens) - row.drafted for row in rows)
        ends = [(row.drafted, len(row.tokens) - 1) for row in rows]
        nodes = [[min(done + step, last) for step in range(most)] for done, last in ends]
        positions = [
            [len(row.trunk) + depth[node] for node in own]
            for row, depth, own in zip(rows, depths, nodes, strict=True)
        ]
        starts = [len(row.trunk) + row.drafted for row in rows]
        pairs = zip(rows, self._inputs, strict=True)
        inputs = [[node - row.drafted for node in own] for row, own in pairs]
        return [
            HostDeviceInts(nodes),
            HostDeviceInts(positions),
            HostDeviceInts(starts),
            HostDeviceInts(inputs),
        ]

    def send(self, others: Sequence[Tensor]) -> list[Tensor]:
        """Sends all that the host knows to the device in one copy, along with other tensors; those,
        on the device.
        """
        numbers = [self._lengths, self._sizes, self._trie_tokens, self._behind, self._starts]
        numbers += [self._inputs, self._depth, *self._pending]
        if self._ragged:
            numbers += [self._order, self._back]
        self._trie_seen, *there = copy_to_device(numbers, self.device, [self._trie_seen, *others])
        inputs = self._inputs.on(self.device)
        self.input_tokens = _gather_rows(self._trie_tokens.on(self.device), inputs)
        self._seen = [_gather_rows(self._trie_seen, inputs)]
        return there

    def add_layer(self, tokens: Tensor, parents: Tensor) -> None:
        """Appends D draft beams; tokens and parents: [R, D], parents within the layer before."""
        first = len(self.tokens) * self.width
        index = parents.unsqueeze(-1).expand(-1, -1, self._seen[-1].shape[-1])
        layer = constant(tuple(range(first, first + self.width)), self.device)
        nodes = self._sizes.on(self.device).unsqueeze(1) + layer
        seen = self._seen[-1].gather(1, index).scatter(2, nodes.unsqueeze(-1), True)
        self.tokens.append(tokens)
        self._seen.append(seen)

    def run_pending(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the trie nodes that a draft has not seen, including the input beams; returns logits
        after these [R, B, V], where a row with fewer repeats its first.
        """
        nodes, positions, starts, inputs = self._pending
        index = nodes.on(self.device)
        tokens = _gather_rows(self._trie_tokens.on(self.device), index)
        seen = _gather_rows(self._trie_seen, index)
        seen = _resize_mask(seen, self._drafted + index.shape[1])
        logits = self._run(model, cache, starts, tokens, positions.on(self.device), seen)
        return _gather_rows(logits, inputs.on(logits.device))

    def run_layer(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the newest layer with a draft; logits [R, D, V]."""
        layer = len(self.tokens)
        starts = self._behind.plus((layer - 1) * self.width)
        seen = self._seen[-1][..., : max(self._sizes) + layer * self.width]
        positions = (self._depth.on(self.device) + layer).unsqueeze(1).expand(-1, self.width)
        return self._run(model, cache, starts, self.tokens[-1], positions, seen)

    def run_all(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the input beams and the whole forest with the target: the iteration's target call.
        Returns logits [R, B + layers D, V].
        """
        tokens = torch.cat([self.input_tokens, *self.tokens], dim=1)
        seen = torch.cat(self._seen, dim=1)
        layers = range(1, len(self.tokens) + 1)
        levels = (0,) * self.inputs + tuple(n for n in layers for _ in range(self.width))
        positions = self._depth.on(self.device).unsqueeze(1) + constant(levels, self.device)
        if self._ragged:
            order = self._order.on(self.device)
            tokens, positions, seen = (
                _gather_rows(part, order) for part in (tokens, positions, seen)
            )
        run = max(size - width for size, width in zip(self._sizes, self.widths, strict=True))
        seen = _resize_mask(seen, run + tokens.shape[1])
        logits = self._run(model, cache, self._starts, tokens, positions, seen)
        return _gather_rows(logits, self._back.on(logits.device)) if self._ragged else logits

    def _run(
        self, model: LanguageModel, cache: object, starts: HostDeviceInts, *given: Tensor
    ) -> Tensor:
        return run_under_ancestors(model, cache, self._lengths, starts, *given).logits


def _gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """values [R, T, ...] at index [R, U]: per row, positions along T."""
    return values[cached_arange(len(index), values.device).unsqueeze(1), index]


def _resize_mask(seen: Tensor, columns: int) -> Tensor:
    """Returns a mask [..., C] cut or filled up with False to a number of columns."""
    return pad(seen, (0, columns - seen.shape[-1]))


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
    make_draws: DrawsFactory = SeededSource  # audits enumerate instead

    def __post_init__(self) -> None:
        self._caches: list[Any] = []

    @property
    def depth(self) -> int:
        return self.plan.depth

    @property
    def nodes(self) -> int:
        return self.plan.depth * self.plan.width

    def slots_needed(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Returns one trunk, at worst a branch for every beam, and one forest after them.

        With one cache only one beam goes on, so nothing branches.
        """
        branches = 1 if self.plan.one_cache else self.plan.width
        return longest_prompt + branches * (max_new_tokens + 2) + self.nodes

    def reserve(self, slots: int) -> None:
        roles = {"target": self.target}
        roles |= {f"draft {index}": draft for index, draft in enumerate(self.drafts)}
        self._caches = [self.pool.cache(r, model, self.rows, slots) for r, model in roles.items()]

    def join(self, index: int, request: Request, seed: int) -> BeamRow:
        generator = make_row_generator(seed, request.prompt_id, self.target.device)
        row = self.row_type.start(request, generator)
        for model, cache in zip((self.target, *self.drafts), self._caches, strict=True):
            prefill(model, cache, index, row.trunk)
        return row

    def step(self, active: Sequence[BeamRow]) -> int:
        draws = self.make_draws([row.generator for row in active])
        forest, parents, limit = self._begin(active)
        drafted = self._draft(forest, parents, draws)
        logits = forest.run_all(self.target, self._caches[0])
        outcomes = verify(
            logits.to(self.settings.dtype), parents, drafted, self.plan, self.settings, limit, draws
        )
        outcomes = processes.broadcast_object(outcomes)
        for row, outcome in zip(active, outcomes, strict=True):
            check_logits(row.request.prompt_id, *outcome.lawful)
        return sum(self._commit(i, row, outcomes[i]) for i, row in enumerate(active))

    def move_row(self, row: BeamRow, source: int, target: int) -> None:
        row.moves.apply(self._caches, source)
        row.moves = CacheMoves()  # so that the next iteration does not move them again
        for cache in self._caches:
            cache.move_row(source, target, len(row.trunk) + len(row.tokens))

    def _keep(self, index: int, row: BeamRow, moves: CacheMoves) -> None:
        """Moves a row's nodes in the caches, or notes that they must move."""
        if self.target.device.type == "cpu":
            moves.apply(self._caches, index)
        else:
            row.moves = moves

    def take_forward_s(self) -> tuple[float, float]:
        return sum(draft.timer.take_s() for draft in self.drafts), self.target.timer.take_s()

    def _begin(self, active: Sequence[BeamRow]) -> tuple[BeamForest, ParentBeams, Tensor]:
        """Sends all that the host knows to the device in one copy, pending moves included.

        Returns the forest, nothing drafted; the input beams, with as many places as the widest row
        has; how many layers each row has left [R].
        """
        forest = BeamForest(active, self.plan, self.target.device)
        limit = torch.tensor([row.remaining_layers for row in active])
        moves = combine_moves([row.moves for row in active], len(self._caches))
        limit, *parents = forest.send([limit, *pack_parents(active, forest.inputs), *moves])
        count = len(parents) - len(moves)
        for cache, slots in zip(self._caches, parents[count:], strict=False):
            cache.move_slots(*slots.unbind(0))
        for row in active:
            row.moves = CacheMoves()
        return forest, ParentBeams(forest.input_tokens, *parents[:count]), limit

    def _draft(self, forest: BeamForest, parents: ParentBeams, draws: Draws) -> DraftedLayers:
        """Beam sampling with the draft: D beams per layer, i.i.d. and with replacement."""
        drafted = DraftedLayers([], [])
        for layer in range(self.plan.depth):
            draft = self.drafts[0]
            cache = self._caches[1]
            logits = forest.run_layer(draft, cache) if layer else forest.run_pending(draft, cache)
            logits = logits.to(self.target.device, self.settings.dtype)
            log_q = parents.log_probs(logits)
            law = beam_probs(parents.likelihood, log_q, self.settings.get_draft_settings())
            cells = draws.categorical(law.unsqueeze(1), self.plan.width).squeeze(1)
            processes.broadcast_tensors(cells)
            drafted.lawful.append(is_distribution(logits).all(dim=1))
            drafted.laws.append(law)
            drafted.cells.append(cells)
            parents = parents.children(cells, log_q)
            forest.add_layer(parents.tokens, cells // log_q.shape[-1])
        return drafted

    def _commit(self, index: int, row: BeamRow, outcome: BeamOutcome) -> int:
        """Puts one row's output beams in place; returns the layers it grew by."""
        size = len(row.tokens)
        width = self.plan.width
        # the first node of each layer's parents
        firsts = [size - row.width, *(size + layer * width for layer in range(self.plan.depth))]
        layers = zip(firsts, outcome.draft_parents, strict=False)
        forest_parents = [first + parent for first, parents in layers for parent in parents]
        forest_tokens = [token for tokens in outcome.draft_tokens for token in tokens]
        first = firsts[outcome.layer - 1]
        beams = [replace(beam, parent=first + beam.parent) for beam in outcome.beams]
        if self.plan.one_cache:
            beams = [max(beams, key=lambda beam: beam.score(self.plan.length_penalty))]
        drafted = size + max(self.plan.depth - 1, 0) * width
        length = len(row.trunk)
        kept = row.advance(forest_tokens, forest_parents, beams, outcome.layer, drafted)
        self._keep(index, row, CacheMoves(length, (kept, kept[: row.drafted])))
        row.grow_trunk(bool(self.drafts))
        came = outcome.accepted_layers, outcome.layer, outcome.widths
        row.steps.append(StepRecord(self.nodes, self.depth, *came))
        if all(beam.stopped for beam in row.beams) or row.remaining_layers == 0:
            row.deliver(self.plan.length_penalty)
        return outcome.layer


# Deterministic beam search: the W likeliest continuations go on, ended ones wait in a pool.
#
# The same search as transformers' `generate(num_beams=W, do_sample=False)` with its default
# settings, so that the two can be compared token by token; probabilities are raw and ignore the
# sampling settings.


@dataclass
class SearchRow(BeamRow):
    """The beams of one prompt and the answers that have ended."""

    # the W best ended answers, best first: score, log-likelihood, tokens
    pool: list[tuple[float, float, tuple[int, ...]]] = field(default_factory=list)


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
        processes.broadcast_tensors(likeliest)
        table = likeliest.tolist()
        count = best.values.shape[1]
        vocab = log_p.shape[-1]
        for index, row in enumerate(active):
            # A largest value that is not a number: NaN counts as the largest.
            check_logits(row.request.prompt_id, not isnan(table[index][0]))
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
        width = self.plan.width
        first = len(row.tokens) - row.width
        length = row.layers + 1
        row.steps.append(StepRecord(0, 0, 0, 1, (width,)))
        assert isinstance(row, SearchRow)
        pool = row.pool
        going: list[Beam] = []
        for rank, (likelihood, cell) in enumerate(candidates):
            parent = int(cell) // vocab
            token = int(cell) % vocab
            ended = token in row.request.stop_ids or length == row.request.max_new_tokens
            beam = Beam(first + parent, token, likelihood, length, ended)
            if not ended:
                going.append(beam)
            elif rank < width and likelihood > -torch.inf:
                tokens = (*row.get_generated_tokens(parent), token)
                score = beam.score(self.plan.length_penalty)
                pool.append((score, likelihood, tokens))
        pool.sort(key=lambda ended: -ended[0])
        del pool[width:]
        going = [beam for beam in going if beam.likelihood > -torch.inf][:width]
        if going:
            best = replace(going[0], length=length).score(self.plan.length_penalty)
            hopeless = len(pool) == width and best <= pool[-1][0]
        if not going or hopeless:
            _, likelihood, answer = pool[0]
            row.close(answer, likelihood)
            return
        kept = row.advance([], [], going, 1, 0)
        self._keep(index, row, CacheMoves(len(row.trunk), (kept,)))
        row.grow_trunk(False)
