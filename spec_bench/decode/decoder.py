"""Decoder of one sequence per prompt: every decoder but beams. Autoregressive decoding has no tree.

Each iteration: grow a draft tree, run the target once over all its nodes, walk down to a verdict,
copy the verdict to the host (the iteration's only transfer to it), commit the accepted path,
record. On a GPU a recorded graph replays these steps, except for the host's record
(``decode.recording``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from spec_bench.core import processes
from spec_bench.core.draws import RandomSource, SeededSource, choose_likeliest, make_row_generator
from spec_bench.core.host_device import CommittedTokens, HostDeviceInts, copy_to_device
from spec_bench.core.predrawn import DrawRecorder, DrawRequest, PredrawnSource
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.loop import DecodingLoop, IterationCounts
from spec_bench.decode.recording import GraphCache, IterationGraph
from spec_bench.decode.rows import Row
from spec_bench.decode.verdict import VerdictLayout, pack_verdicts
from spec_bench.draft.base import Drafter, DraftResources, DraftState
from spec_bench.draft.network import DraftHeads
from spec_bench.engine.cache import CachePool
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import PathScorer, TreeScorer
from spec_bench.records.types import Lossless, Request, TokenCount
from spec_bench.tree.base import GrownTree, GrowthContext
from spec_bench.verify.base import Walk
from spec_bench.verify.walk import ScoredTree

if TYPE_CHECKING:
    from spec_bench.decode.compiled import CompiledIteration


class IterationResult(NamedTuple):
    """Result of one iteration, still on the device."""

    path: Tensor  # [R, L + 1] accepted nodes, root first
    packed_verdicts: Tensor  # [R, ...] float64, for the host
    layout: VerdictLayout


AnySource = TypeVar("AnySource", bound=SeededSource)
DrawsFactory = Callable[[Sequence[torch.Generator]], RandomSource]
"""Makes an iteration's source of randomness from the rows' generators."""


@dataclass
class Decoder(DecodingLoop[Row]):
    """Drafter x policy x verifier over one target. Without draft models and draft heads, decoding
    is autoregressive.
    """

    name: str
    target: LanguageModel
    drafts: Sequence[LanguageModel]
    drafter: Drafter  # proposes tokens
    policy: GrownTree  # grows the tree
    walk: Walk  # finds the accepted path of a tree
    rule: Any  # the walk's argument: a node rule, a node rule per level, or another object
    settings: SamplingSettings  # of target and draft
    rows: int = 1
    lossless: Lossless = "exact"
    tree_attention: bool = True  # whether the target runs a tree as one row; if not, a row per path
    pool: CachePool = field(default_factory=CachePool)  # shared by the decoders of a job
    make_draws: DrawsFactory = SeededSource  # audits enumerate instead
    heads: DraftHeads | None = None  # draft heads on the target, in place of draft models

    def __post_init__(self) -> None:
        layers = self.drafter.get_target_layers(self.heads, self.target.blocks)
        self._scorer = TreeScorer(self.target, self.pool, needs_hidden=layers)
        if not self.tree_attention:
            shape = self.policy.shape
            self._scorer = PathScorer(self.target, self.pool, shape, needs_hidden=layers)
        self.draft_state = DraftState()
        self._memory = self.drafter.make_memory()
        self.recordings: GraphCache | None = None
        # the draws of every iteration; None if they vary
        self.draw_requests: list[DrawRequest] | None = None
        self.iteration_counts = IterationCounts()
        self._slots = 0
        # id of each cache that the drafting state uses, and the number of times that it has grown
        self._cache_states: list[tuple[int, int]] = []

    @property
    def depth(self) -> int:
        return self.policy.shape.depth

    @property
    def nodes(self) -> int:
        return self.policy.max_draft_nodes

    @property
    def draft_calls(self) -> int:
        return self.drafter.count_draft_calls(self.depth)

    @property
    def parameter_ratio(self) -> float:
        head_parameters = self.heads.parameter_count if self.heads else 0
        return super().parameter_ratio + head_parameters / self.target.parameters

    def count_slots_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Counts the cache slots of a row: all committed tokens, then one whole tree.

        The last tree's root is at most the last but one token of the limit, and a block may exceed
        the limit by a whole path.
        """
        return longest_prompt + max_new_tokens + self.policy.cache_slots

    def cache_bytes_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        slots = self.count_slots_per_row(longest_prompt, max_new_tokens)
        target = self.target.bytes_per_slot * self._scorer.rows_per_sequence
        heads = self.heads.bytes_per_slot if self.heads else 0
        drafting = heads + sum(draft.bytes_per_slot for draft in self.drafts)
        return slots * target + (slots + self.drafter.extra_slots(self.heads)) * drafting

    def reserve(self, slots: int) -> None:
        self._scorer.reserve(self.rows, slots)
        kind = self.drafter.kind if self.drafter.has_own_model else "draft"
        draft_slots = slots + self.drafter.extra_slots(self.heads)
        draft_caches = [
            self.pool.get_or_grow_cache(f"{kind} {index}", draft, self.rows, draft_slots)
            for index, draft in enumerate(self.drafts)
        ]
        heads_cache = None
        if self.heads is not None and self.heads.bytes_per_slot:
            heads_cache = self.pool.get_or_grow_cache("heads", self.heads, self.rows, draft_slots)
        caches = (self._scorer.cache, *draft_caches, heads_cache)
        cache_states = [
            (id(cache), getattr(cache, "growth_count", 0)) for cache in caches if cache is not None
        ]
        on_gpu = self.target.device.type == "cuda"
        if cache_states != self._cache_states or not on_gpu:
            # Graphs recorded over other caches must not be replayed.
            self.draft_state = self.drafter.make_state(
                DraftResources(
                    target=self.target,
                    models=self.drafts,
                    caches=draft_caches,
                    heads=self.heads,
                    rows=self.rows,
                    heads_cache=heads_cache,
                    memory=self._memory,
                )
            )
            self._cache_states = cache_states
            self._slots = 0
            self.recordings = None
            self.draw_requests = self._trace_draws() if on_gpu else None
        self._slots = max(self._slots, slots)

    @torch.inference_mode()
    def _trace_draws(self) -> list[DrawRequest] | None:
        """Runs an iteration on dummy inputs and returns its draws; None if they vary between
        iterations. Draws depend on shapes alone, as do the buffers that the drafting state
        allocates.
        """
        if (
            self.policy.waits_for_device
            or not self.draft_state.recordable
            or not self.tree_attention
            or self.make_draws is not SeededSource
            or processes.count_torchrun_processes() > 1
        ):
            return None
        while True:
            draws = self.make_greedy_if_cold(DrawRecorder([torch.Generator(self.target.device)]))
            committed, ints = self.make_dummy_inputs(1, 1)
            copy_to_device(ints, self.target.device)
            try:
                result = self.run_iteration(committed, draws)
                break
            except Exception as error:  # for example a compiler's
                models = self._target_and_drafts
                fused = [model for model in models if getattr(model, "fused", False)]
                if not fused:
                    raise
                for model in fused:  # the next try runs them without it
                    model.abandon_compiled_form(error)
        self.commit_accepted_paths(result.path, committed.lengths, (), result.layout)
        return draws.requests

    def make_dummy_inputs(
        self,
        rows: int,
        tokens: int,
    ) -> tuple[CommittedTokens, list[HostDeviceInts]]:
        """Makes ``rows`` dummy rows of ``tokens`` tokens before the root, and the numbers to copy
        to the device, padded to the shapes of every iteration. Passes over them write to the caches
        only behind the real rows' committed tokens.
        """
        committed = CommittedTokens([[0] * (tokens + 1)] * rows)
        return committed, self._get_ints_to_copy(committed, fixed=True)

    def _get_ints_to_copy(self, committed: CommittedTokens, fixed: bool) -> list[HostDeviceInts]:
        """Returns the numbers that an iteration copies from the host to the device."""
        policy_ints = self.policy.device_inputs(self.draft_state, committed, fixed)
        return [committed.lengths, committed.roots, *policy_ints]

    @torch.inference_mode()
    def record_graphs(self, requests: Sequence[Request]) -> None:
        self.reserve(self._slots)  # a cache may have grown for another decoder
        can_record = all(
            model.device == self.target.device and getattr(model, "recorder", None)
            for model in self._target_and_drafts
        )
        if not can_record or self.draw_requests is None:
            return
        if self.recordings is None or not self.recordings.is_long_enough_for(requests):
            self.recordings = GraphCache(self, self._slots - self.policy.cache_slots)
            self.recordings.record_needed_graphs(requests)

    def make_compiled_iteration(self) -> CompiledIteration | None:
        """Makes an iteration to compile with Inductor. None if the target's passes are not
        compiled, or if the drafter keeps trees or logits, whose memory the compiled function
        reuses.
        """
        if not getattr(self.target, "fused", False) or not self.draft_state.is_forgetful:
            return None
        from spec_bench.decode.compiled import CompiledIteration

        return CompiledIteration(self, self._scorer)

    @property
    def _target_and_drafts(self) -> tuple[Any, ...]:
        return (self.target, *self.drafts)

    def make_greedy_if_cold(self, draws: AnySource) -> AnySource:
        """Makes ``draws`` choose the likeliest token at temperature 0, where distributions are
        one-hot.
        """
        draft = self.settings.get_draft_settings()
        if self.lossless == "exact" and not self.settings.temperature + draft.temperature:
            draws.choose = choose_likeliest
        return draws

    def make_predrawn_source(self, numbers: Tensor) -> PredrawnSource:
        """Makes a source that hands out ``numbers``, for a graph."""
        return self.make_greedy_if_cold(PredrawnSource((), (), numbers))

    def _make_source(
        self,
        generators: Sequence[torch.Generator],
        graph: IterationGraph | None,
    ) -> RandomSource:
        """Makes an iteration's source of randomness. On a GPU all numbers are drawn in advance, so
        that they are the same with and without a graph.
        """
        if self.make_draws is not SeededSource:
            return self.make_draws(generators)
        if self.draw_requests is None:
            return self.make_greedy_if_cold(SeededSource(generators))
        shape = len(generators), sum(count for _, count in self.draw_requests)
        numbers = None if graph is None else graph.numbers
        source = self.make_greedy_if_cold(PredrawnSource(generators, shape, numbers))
        source.draw_requested(self.draw_requests)
        if self.recordings is not None:
            self.recordings.nudge_random_numbers(source.numbers)
        return source

    def remember_for_drafting(self, answers: Sequence[Sequence[int]]) -> None:
        if self._memory is not None:
            self._memory.remember(answers)

    def join(self, index: int, request: Request, seed: int) -> Row:
        generator = make_row_generator(seed, request.prompt_id, self.target.device)
        row = Row(request, generator, list(request.prompt_ids))
        self.draft_state.start_row(index, row.tokens)
        self._scorer.prefill(
            index, row.tokens[:-1], partial(self.draft_state.observe_prompt, index)
        )
        return row

    def step(self, active: Sequence[Row]) -> TokenCount:
        """Runs one iteration over the active rows, in their order in the caches."""
        committed = CommittedTokens(row.tokens for row in active)
        graph = self.recordings.find_graph(committed.lengths) if self.recordings else None
        ints = self._get_ints_to_copy(committed, graph is not None)
        draws = self._make_source([row.generator for row in active], graph)
        if graph is not None:
            path = None
            layout = graph.layout
            packed_verdicts = graph.replay(ints)
        else:
            copy_to_device(ints, self.target.device)
            path, device_verdicts, layout = self.run_iteration(committed, draws)
            packed_verdicts = device_verdicts.tolist()
        self.iteration_counts.count(graph is not None)
        for row, packed_verdict in zip(active, packed_verdicts, strict=True):
            layout.require_distributions(row.request.prompt_id, packed_verdict)
        verdicts = [layout.unpack(packed_verdict) for packed_verdict in packed_verdicts]
        if path is not None:
            nodes = [verdict.nodes for verdict in verdicts]
            self.commit_accepted_paths(path, committed.lengths, nodes, layout)
        counts = [len(verdict.tokens) for verdict in verdicts]
        self.draft_state.update_cached_counts(committed.lengths, counts, layout.cached_levels)
        for row, verdict in zip(active, verdicts, strict=True):
            row.commit(verdict.tokens, verdict.log_probs, verdict.tree_nodes, verdict.tree_levels)
        draws.advance(counts)
        return sum(counts)

    def run_iteration(
        self,
        committed: CommittedTokens,
        draws: RandomSource,
        passes: CompiledIteration | None = None,
    ) -> IterationResult:
        """Grows the trees, runs the target once and walks, without committing to the caches. While
        an iteration is traced, ``passes`` replaces drafter and scorer.
        """
        device = self.target.device
        draft_state: Any = passes or self.draft_state
        tree = self.policy.grow_tree(
            GrowthContext(draft_state, committed, device, self.settings, draws)
        )
        processes.copy_from_first_process(*tree.list_varying_tensors())
        logits, hidden = (passes or self._scorer).score(tree, committed.lengths)
        result = self.walk(
            ScoredTree(tree, logits, self.settings, draws, self.policy.walk_merges_copies),
            self.rule,
        )
        processes.copy_from_first_process(result.path, result.accepted, result.token)
        self.draft_state.observe_scores(tree, logits)
        if hidden is not None:
            self.draft_state.observe_path(hidden, result.path, result.accepted)
        depth = tree.shape.depth
        # A drafter of a fixed number of passes runs no node below the root.
        only_root_is_cached = tree.rearranged or self.drafter.passes is not None
        layout = VerdictLayout(
            depth,
            1 if only_root_is_cached else depth,
            (tree.shape.size, *(level.shape[1] for level in tree.largest_logits)),
        )
        return IterationResult(result.path, pack_verdicts(tree, logits, result), layout)

    def commit_accepted_paths(
        self,
        path: Tensor,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        layout: VerdictLayout,
    ) -> None:
        """Commits each row's accepted path to the caches; on a CPU ``nodes`` lists it."""
        self._scorer.commit(lengths, nodes, path)
        self.draft_state.commit(lengths, nodes, path, layout.cached_levels)

    def move_row(self, row: Row, source: int, target: int) -> None:
        self._scorer.move_row(source, target, len(row.tokens) - 1)  # all but the root
        self.draft_state.move_row(source, target)

    def take_forward_s(self) -> tuple[float, float]:
        return self.draft_state.take_forward_s(), self.target.timer.take_s()
