"""One sequence per prompt: every decoder but the beams; the autoregressive one grows no tree.

Each iteration: grow a draft tree, run the target once over all its nodes, walk down to a verdict,
copy the verdict to the host (the iteration's one transfer), commit the accepted path, record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.core import processes
from spec_bench.core.draws import Draws, SeededDraws, row_generator, run_part
from spec_bench.core.transfer import Committed, Followed, Known, places, send
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, raw_log_probs
from spec_bench.decode.loop import DecodingLoop
from spec_bench.decode.recorded_parts import RecordedDraws, RowParts
from spec_bench.decode.rows import Row, check_largest
from spec_bench.draft.base import Drafter, Drafting, Equipment, Verified
from spec_bench.draft.network import Heads
from spec_bench.engine.cache import CachePool
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.static_pass import MOST_ROWS
from spec_bench.engine.tree_pass import PathScorer, TreeScorer
from spec_bench.records.types import Lossless, Request
from spec_bench.tree.base import Ground, GrownTree
from spec_bench.verify.base import Walk
from spec_bench.verify.walk import Scored, WalkResult

# An iteration that the device was given, and whose verdict the host may read later.
#
# On a GPU the host is one iteration behind: it gives the device the next iteration before it reads
# what came of the last, so that the device never waits for it. Lengths, roots and what a draft has
# to catch up with stay on the device; of lengths the host knows bounds, which fix how far a pass
# reads. A row that turns out to have ended has then run once more than it had to; what the others
# drew meanwhile is given back, and the iteration is launched anew without that row.


class Judged(NamedTuple):
    """What came of the trees, on the device."""

    result: WalkResult  # the walk's end
    emitted: Tensor  # [R, L + 1] tokens; the last one, the next root, fills up what is left
    message: Tensor  # [R, ...] float64 what the host is sent


@dataclass
class Launched:
    """One iteration on its way."""

    rows: Sequence[Row]  # that take part, in their order in the caches
    lengths: Known  # [R] tokens before each root
    tree: Tree
    judged: Judged
    draws: Draws
    states: Sequence[Tensor] = ()  # of the rows' generators before it
    there: bool = False  # whether the caches keep its accepted path already
    _home: Tensor | None = field(default=None, init=False)
    _arrived: torch.cuda.Event | None = field(default=None, init=False)

    def send_home(self) -> None:
        """Copies the message to the host, which goes on meanwhile."""
        message = self.judged.message
        self._home = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
        self._home.copy_(message, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(message.device))

    def read(self) -> list[list[float]]:
        """Returns the message; the host waits until this iteration is over."""
        if self._arrived is not None:
            self._arrived.synchronize()
        verdict: Any = self.judged.message if self._home is None else self._home
        return verdict.tolist()

    def take_back(self) -> None:
        """As if it had never been launched: what it wrote lies behind what the rows keep."""
        for row, state in zip(self.rows, self.states, strict=True):
            row.generator.set_state(state)

    @property
    def drafted_depth(self) -> int:
        """Levels whose nodes are where the drafter ran them: of a rearranged tree only the root."""
        return 1 if self.tree.rearranged else self.tree.shape.depth

    def next_lengths(self) -> Followed:
        """[R] tokens before the next roots, which the host knows to be within bounds."""
        accepted, depth = self.judged.result.accepted, self.judged.emitted.shape[1]
        before = [row.length for row in self.rows]  # before this iteration, exactly
        there = self.lengths.on(accepted.device) + accepted + 1
        return Followed([length + depth for length in before], there, min(before) + 1)


DrawsFactory = Callable[[Sequence[torch.Generator]], Draws]
"""Makes an iteration's source of randomness from the rows' generators."""


@dataclass
class Decoder(DecodingLoop[Row]):
    """Drafter x policy x verifier over one target; without draft models, and without draft heads in
    their place, decoding is autoregressive.
    """

    name: str
    target: LanguageModel
    drafts: Sequence[LanguageModel]
    drafter: Drafter  # who proposes
    policy: GrownTree  # how the tree grows
    walk: Walk  # how the accepted path of a tree is found
    rule: Any  # what the walk judges by: a node rule, one per level, or whatever else it takes
    settings: SamplingSettings  # of target and draft
    rows: int = 1
    lossless: Lossless = "exact"
    tree_attention: bool = True  # whether a tree is one row of the target, or each path its own
    pool: CachePool = field(default_factory=CachePool)  # shared by the decoders of a job
    make_draws: DrawsFactory = SeededDraws  # audits enumerate instead
    heads: Heads | None = None  # draft heads on the target, in place of draft models

    def __post_init__(self) -> None:
        layers = self.drafter.layers(self.heads, self.target.blocks)
        self._scorer = TreeScorer(self.target, self.pool, needs_hidden=layers)
        if not self.tree_attention:
            shape = self.policy.shape
            self._scorer = PathScorer(self.target, self.pool, shape, needs_hidden=layers)
        self.drafting = Drafting()
        self._memory = self.drafter.remembering()
        self._parts: dict[int, RowParts] = {}
        self._next: Launched | None = None  # given to the device before the host asked for it
        self._slots = 0

    @property
    def depth(self) -> int:
        return self.policy.shape.depth

    @property
    def nodes(self) -> int:
        return self.policy.node_count

    @property
    def draft_calls(self) -> int:
        return self.drafter.calls(self.depth)

    @property
    def speed_ratio(self) -> float:
        head_parameters = self.heads.parameter_count if self.heads else 0
        return super().speed_ratio + head_parameters / self.target.parameters

    def slots_needed(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Cache slots per row: all committed tokens and one whole tree after them.

        The last tree's root is at most the last but one token of the limit, and a block may exceed
        the limit by a whole path.
        """
        return longest_prompt + max_new_tokens + self.policy.slots

    def cache_bytes(self, longest_prompt: int, max_new_tokens: int) -> int:
        slots = self.slots_needed(longest_prompt, max_new_tokens)
        target = self.target.bytes_per_slot * self._scorer.rows_per_sequence
        heads = self.heads.bytes_per_slot if self.heads else 0
        drafting = heads + sum(draft.bytes_per_slot for draft in self.drafts)
        return slots * target + (slots + self.drafter.more_slots(self.heads)) * drafting

    def reserve(self, slots: int) -> None:
        self._slots, self._next = slots, None
        self._scorer.reserve(self.rows, slots)
        kind = self.drafter.kind if self.drafter.own_model else "draft"
        slots += self.drafter.more_slots(self.heads)
        caches = [
            self.pool.cache(f"{kind} {index}", draft, self.rows, slots)
            for index, draft in enumerate(self.drafts)
        ]
        own = self.heads is not None and self.heads.bytes_per_slot
        heads_cache = self.pool.cache("heads", self.heads, self.rows, slots) if own else None
        given = self.target, self.drafts, caches, self.heads, self.rows, heads_cache, self._memory
        self.drafting = self.drafter.drafting(Equipment(*given))

    def remember(self, answers: Sequence[Sequence[int]]) -> None:
        if self._memory is not None:
            self._memory.remember(answers)

    def join(self, index: int, request: Request, seed: int) -> Row:
        generator = row_generator(seed, request.prompt_id, self.target.device)
        row = Row(request, generator, list(request.prompt_ids))
        self.drafting.start(index, row.tokens)
        self._scorer.prefill(index, row.tokens[:-1], partial(self.drafting.see_prompt, index))
        return row

    def step(self, active: Sequence[Row]) -> int:
        """One iteration over the active rows, in their order in the caches: grow, one target pass,
        verdict, commit, record. Returns the tokens emitted, over all rows.
        """
        now, self._next = self._next, None
        if now is None or list(map(id, now.rows)) != list(map(id, active)):
            committed = Committed(row.tokens for row in active)
            needs = self.policy.needs(self.drafting, committed)
            send((committed.lengths, committed.roots, *needs), self.target.device)
            now = self._launch(active, committed)
        following = self._follow(now) if self._can_follow(now) else None
        verdict, tree = now.read(), now.tree
        largest = [tree.shape.size, *(level.shape[1] for level in tree.largest)]
        for row, line in zip(active, verdict, strict=True):
            check_largest(row.request.prompt_id, line, largest)
        emitted_now = self._commit(now, verdict)
        now.draws.settle(emitted_now)
        if following is not None and any(row.finish for row in active):
            following.take_back()
            for index, (row, emitted) in enumerate(zip(active, emitted_now, strict=True)):
                self.drafting.caught_up(index, len(row.tokens), emitted)
        else:
            self._next = following
        return sum(emitted_now)

    def _launch(
        self, active: Sequence[Row], committed: Committed, states: Sequence[Tensor] = ()
    ) -> Launched:
        """Gives the device an iteration: grow, one target pass, walk, the message to the host."""
        draws, device = self._draws([row.generator for row in active]), self.target.device
        tree = self.policy.plant(Ground(self.drafting, committed, device, self.settings, draws))
        processes.agree(*tree.parts())
        logits, hidden = self._scorer.score(tree, committed.lengths)
        judged = run_part(draws, "verdict", partial(self._judge, tree), logits, of=tree)
        self.drafting.see_scores(tree, logits)
        if hidden is not None:
            self.drafting.see_path(hidden, judged.result.path, judged.result.accepted)
        return Launched(list(active), committed.lengths, tree, judged, draws, states)

    def _can_follow(self, now: Launched) -> bool:
        """Returns whether the next iteration can be launched before this one's verdict is read.

        Not where the host grows the tree or the numbers drawn hang on the verdict, where some row
        may reach its limit now, nor close to the end of caches and positions, of which only bounds
        are known.
        """
        models = (self.target, *self.drafts)
        able = self.drafting.follows and getattr(self.target, "follows", False)
        if self.policy.asks or not able or getattr(now.draws, "looks_back", True):
            return False
        if self._scorer.rows_per_sequence > 1 or processes.count() > 1:
            return False
        most = self.depth + 1  # tokens that an iteration may bring
        if any(len(row.delivered) + most >= row.request.max_new_tokens for row in now.rows):
            return False
        longest = max(row.length for row in now.rows) + most
        limits = [model.max_positions or self._slots for model in models]
        return longest + self.policy.slots <= min(self._slots, *limits)

    def _follow(self, now: Launched) -> Launched:
        """Keeps an iteration's accepted path and launches the next, all without the host."""
        now.send_home()
        result = now.judged.result
        committed = Committed.followed(now.next_lengths(), result.token)
        self._scorer.commit(now.lengths, (), result.path)
        verified = Verified(now.lengths, result.path, result.accepted, now.judged.emitted)
        self.drafting.follow(verified, now.drafted_depth, committed)
        now.there = True
        states = [row.generator.get_state() for row in now.rows]
        return self._launch(now.rows, committed, states)

    def _draws(self, generators: Sequence[torch.Generator]) -> Draws:
        """An iteration's randomness; on a GPU, where passes are recorded, its parts are too."""
        passes, rows = getattr(self.target, "static", None), len(generators)
        on_gpu = self.target.device.type != "cpu"
        if not (passes and on_gpu and rows <= MOST_ROWS) or self.make_draws is not SeededDraws:
            return self.make_draws(generators)
        if rows not in self._parts or self._parts[rows].passes is not passes:
            self._parts[rows] = RowParts(passes)
        return RecordedDraws(generators, self._parts[rows])

    def _judge(self, tree: Tree, draws: Draws, logits: Tensor) -> Judged:
        """Returns which path of each tree is accepted, and the message to the host about it.

        The message is the number accepted, L + 1 entries each of path, tokens emitted and their
        log-probabilities, nodes and levels of a tree that has any, and the largest logit of each
        node, of the target and then of the draft.
        """
        scored = Scored(tree, logits, self.settings, draws, self.policy.merge_copies)
        result = self.walk(scored, self.rule)
        processes.agree(result.path, result.accepted, result.token)
        emitted = result.token.unsqueeze(1)
        if tree.shape.depth:
            after = places(tree.shape.depth + 1, emitted.device) >= result.accepted.unsqueeze(1)
            tokens = tree.tokens.gather(1, result.path).roll(-1, dims=1)
            emitted = torch.where(after, emitted, tokens)
        log_p = raw_log_probs(logits, result.path, emitted)
        parts = [result.accepted.unsqueeze(1), result.path, emitted, log_p.double()]
        if tree.shape.depth:
            parts.append(tree.own_sizes())
        message = torch.cat([*parts, logits.amax(dim=-1), *tree.largest], dim=1)
        return Judged(result, emitted, message)

    def _commit(self, now: Launched, verdict: Sequence[Sequence[float]]) -> list[int]:
        """Keeps every row's accepted path in the caches and appends its tokens; returns [R] tokens
        emitted.

        A row's verdict is the message of ``_judge``: of its L + 1 entries each the first ``accepted
        + 1`` mean anything.
        """
        width = now.tree.shape.depth + 1
        counts = [int(line[0]) + 1 for line in verdict]
        if not now.there:
            pairs = zip(verdict, counts, strict=True)
            nodes = [[int(node) for node in line[1 : 1 + count]] for line, count in pairs]
            lengths = now.lengths
            if not lengths.exact:
                lengths = Followed([row.length for row in now.rows], lengths.on(self.target.device))
            self._scorer.commit(lengths, nodes, now.judged.result.path)
            self.drafting.commit(lengths, nodes, now.judged.result.path, now.drafted_depth)
        for row, line, count in zip(now.rows, verdict, counts, strict=True):
            emitted, log_p = (line[1 + part * width : 1 + part * width + count] for part in (1, 2))
            sizes = line[1 + 3 * width : 3 + 3 * width] if width > 1 else (0, 0)
            row.commit([int(token) for token in emitted], log_p, *map(int, sizes))
        return counts

    def move_row(self, row: Row, source: int, target: int) -> None:
        self._scorer.move_row(source, target, row.length)
        self.drafting.move_row(source, target)

    def take_forward_s(self) -> tuple[float, float]:
        return self.drafting.take_forward_s(), self.target.timer.take_s()
