"""The decoding loop, the same for every decoder; the autoregressive one grows no tree.

Each iteration: grow a draft tree, run the target once over all its nodes, walk down to a verdict,
copy the verdict to the host (the iteration's one transfer), commit the accepted path, record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from spec_bench.core.draws import Draws, SeededDraws, row_generator
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.decode.rows import Row
from spec_bench.draft.language_model import LanguageModelDrafter
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.engine.scoring import PathScorer, Scorer, TreeScorer
from spec_bench.engine.stopwatch import synchronise
from spec_bench.policy.base import Policy
from spec_bench.records import Generation, Lossless, Request
from spec_bench.verify.rules import NodeRule
from spec_bench.verify.walk import walk

Progress = Callable[[int, int], None]


class DrawsFactory(Protocol):
    """Makes an iteration's source of randomness from the rows' generators."""

    def __call__(self, generators: Sequence[torch.Generator], /) -> Draws: ...


@dataclass
class Decoder:
    """Drafter x policy x verifier over one target.

    Args:
        name: as in ``conf/decoder``.
        target: the target model.
        drafts: draft models; empty for autoregressive decoding.
        policy: how the tree grows.
        rule: how a node's children are judged; one rule, or one per level.
        settings: sampling settings of target and draft.
        rows: most requests that decode together.
        lossless: how the output's law relates to the target's.
        tree_attention: whether the target runs a tree as one row, or each path as its own.
        pool: caches, shared by the decoders of a job.
        make_draws: where randomness comes from; audits enumerate instead.
    """

    name: str
    target: LanguageModel
    drafts: Sequence[LanguageModel]
    policy: Policy
    rule: NodeRule | Sequence[NodeRule]
    settings: SamplingSettings
    rows: int = 1
    lossless: Lossless = "exact"
    tree_attention: bool = True
    pool: CachePool = field(default_factory=CachePool)
    make_draws: DrawsFactory = SeededDraws

    def __post_init__(self) -> None:
        self._scorer: Scorer = (
            TreeScorer(self.target, self.pool)
            if self.tree_attention
            else PathScorer(self.target, self.pool, self.policy.shape)
        )
        self._drafter: LanguageModelDrafter | None = None

    @property
    def depth(self) -> int:
        """L: sequential draft calls per iteration."""
        return self.policy.shape.depth

    @property
    def nodes(self) -> int:
        """Tree nodes per iteration, the root not counted."""
        return self.policy.shape.size - 1

    @property
    def speed_ratio(self) -> float:
        """r: parameters of the drafts over parameters of the target; 0 without a draft."""
        return sum(draft.parameters for draft in self.drafts) / self.target.parameters

    def slots_needed(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Cache slots per row: all committed tokens and one whole tree behind them.

        The last tree's root is at most the last but one token of the limit, and a block may run
        past the limit by a whole path.
        """
        return longest_prompt + max_new_tokens + self.policy.shape.size

    def preflight(self, requests: Sequence[Request]) -> None:
        """Checks that the longest request and its tree fit the models' context.

        Raises:
            ValueError: naming the request, the length and the limit.
        """
        for request in requests:
            if not request.prompt_ids:
                raise ValueError(
                    f"prompt {request.prompt_id!r} is empty; at least one token needed"
                )
            # Positions, unlike slots, grow with a tree's depth and not with its nodes.
            needed = len(request.prompt_ids) + request.max_new_tokens + self.depth
            for model in (self.target, *self.drafts):
                if model.max_positions is not None and needed > model.max_positions:
                    raise ValueError(
                        f"prompt {request.prompt_id!r} needs {needed} positions "
                        f"({len(request.prompt_ids)} prompt + {request.max_new_tokens} new + "
                        f"{self.depth} tree levels), the model has {model.max_positions}"
                    )

    def reserve(self, slots: int) -> None:
        """Makes sure the caches have that many slots per row; done once, it serves all requests."""
        self._scorer.reserve(self.rows, slots)
        if self.drafts:
            caches = [
                self.pool.cache(f"draft {index}", draft, self.rows, slots)
                for index, draft in enumerate(self.drafts)
            ]
            self._drafter = LanguageModelDrafter(self.drafts, caches, self.rows)

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], seed: int, progress: Progress | None = None
    ) -> list[Generation]:
        """Decodes up to ``rows`` requests as one batch.

        Args:
            requests: at most ``rows`` of them.
            seed: with a request's id it fixes that request's randomness.
            progress: called after every iteration with (target calls, emitted tokens) of it.

        Returns:
            One generation per request, in the order asked.

        Raises:
            ValueError: if a request does not fit, or there are too many.
        """
        start_s = self._now_s()
        rows = self.begin(requests, seed)
        prefilled_s = self._now_s()
        self._take_forward_s()
        active = list(rows)
        while active:
            emitted = self.step(active)
            if progress:
                progress(len(active), emitted)
            self._retire(active)
        decode_s = self._now_s() - prefilled_s
        seconds = (prefilled_s - start_s, decode_s, *self._take_forward_s())
        return [row.generation(*(value / len(rows) for value in seconds)) for row in rows]

    def begin(self, requests: Sequence[Request], seed: int) -> list[Row]:
        """Checks the requests, makes room and prefills one row for each.

        Raises:
            ValueError: if a request does not fit, or there are too many.
        """
        if len(requests) > self.rows:
            raise ValueError(f"{len(requests)} requests for a decoder of {self.rows} rows")
        self.preflight(requests)
        self.reserve(max(self.slots_needed(len(r.prompt_ids), r.max_new_tokens) for r in requests))
        device = self.target.device
        rows = [
            Row(r, row_generator(seed, r.prompt_id, device), list(r.prompt_ids)) for r in requests
        ]
        for index, row in enumerate(rows):
            self._scorer.prefill(index, row.tokens[:-1])
            if self._drafter:
                self._drafter.start(index, row.tokens)
        return rows

    def step(self, active: Sequence[Row]) -> int:
        """One iteration over the active rows: grow, one target pass, verdict, commit, record.

        Args:
            active: rows in their order in the caches.

        Returns:
            Tokens emitted, over all rows.
        """
        draws = self.make_draws([row.generator for row in active])
        tree = self._grow(active, draws)
        logits = self._scorer.score(tree, [row.length for row in active])
        result = walk(
            tree, logits, self.settings, self.rule, draws, merge_copies=self.policy.merge_copies
        )
        tokens = tree.tokens.gather(1, result.path)
        verdict = torch.cat(
            [result.accepted.unsqueeze(1), result.token.unsqueeze(1), result.path, tokens], dim=1
        ).tolist()
        return sum(self._commit(i, row, verdict[i]) for i, row in enumerate(active))

    def _grow(self, active: Sequence[Row], draws: Draws) -> Tree:
        """Grows one tree per active row, level by level."""
        committed = [row.tokens for row in active]
        root = torch.tensor([tokens[-1] for tokens in committed], device=self.target.device)
        tree = Tree(self.policy.shape, root)
        for level in range(self.depth):
            assert self._drafter is not None
            logits = (
                self._drafter.at_frontier(tree, committed)
                if level
                else self._drafter.at_root(committed)
            )
            self.policy.grow(tree, self._scores(logits.to(tree.tokens.device)), draws)
        return tree

    def _scores(self, logits: Tensor) -> Tensor:
        """What the policy ranks or samples by: warped log-probabilities, or shifted logits."""
        if self.policy.siblings == "deterministic":
            logits = logits.to(self.settings.dtype)
            return logits - logits.amax(dim=-1, keepdim=True)
        return log_probs(logits, self.settings.for_draft())

    def _commit(self, index: int, row: Row, verdict: list[int]) -> int:
        """Keeps one row's accepted path in the caches and appends its tokens."""
        accepted, token = verdict[:2]
        path = verdict[2 : 3 + accepted]
        drafted = verdict[4 + self.depth : 4 + self.depth + accepted]
        emitted = [*drafted, token]
        self._scorer.commit(index, row.length, path)
        if self._drafter:
            self._drafter.commit(index, row.length, path, self.depth)
        row.commit(emitted, self.nodes, self.depth)
        return len(emitted)

    def _retire(self, active: list[Row]) -> None:
        """Drops finished rows; the last active row takes the freed place in the caches."""
        for index in reversed(range(len(active))):
            if active[index].finish is None:
                continue
            last = active.pop()
            if index < len(active):
                active[index] = last
                self._scorer.move_row(len(active), index, last.length)
                if self._drafter:
                    self._drafter.move_row(len(active), index)

    def _now_s(self) -> float:
        synchronise(self.target.device)
        return time.perf_counter()

    def _take_forward_s(self) -> tuple[float, float]:
        """(draft, target) seconds in forward passes since the last call."""
        draft_s = self._drafter.take_forward_s() if self._drafter else 0.0
        return draft_s, self.target.timer.take_s()
