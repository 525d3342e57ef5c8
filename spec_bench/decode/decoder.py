"""One sequence per prompt: every decoder but the beams; the autoregressive one grows no tree.

Each iteration: grow a draft tree, run the target once over all its nodes, walk down to a verdict,
copy the verdict to the host (the iteration's one transfer), commit the accepted path, record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from spec_bench.core.draws import Draws, SeededDraws, row_generator
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, log_probs, raw_log_probs
from spec_bench.decode.loop import DecodingLoop
from spec_bench.decode.rows import Row
from spec_bench.draft.language_model import LanguageModelDrafter
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.engine.scoring import PathScorer, Scorer, TreeScorer
from spec_bench.policy.base import Policy
from spec_bench.records import Lossless, Request
from spec_bench.verify.rules import NodeRule
from spec_bench.verify.walk import walk


class DrawsFactory(Protocol):
    """Makes an iteration's source of randomness from the rows' generators."""

    def __call__(self, generators: Sequence[torch.Generator], /) -> Draws: ...


@dataclass
class Decoder(DecodingLoop[Row]):
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
        return self.policy.shape.depth

    @property
    def nodes(self) -> int:
        return self.policy.shape.size - 1

    def slots_needed(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Cache slots per row: all committed tokens and one whole tree behind them.

        The last tree's root is at most the last but one token of the limit, and a block may run
        past the limit by a whole path.
        """
        return longest_prompt + max_new_tokens + self.policy.shape.size

    def cache_bytes(self, longest_prompt: int, max_new_tokens: int) -> int:
        slots = self.slots_needed(longest_prompt, max_new_tokens)
        target = self.target.bytes_per_slot * self._scorer.rows_per_sequence
        return slots * (target + sum(draft.bytes_per_slot for draft in self.drafts))

    def reserve(self, slots: int) -> None:
        self._scorer.reserve(self.rows, slots)
        if self.drafts:
            caches = [
                self.pool.cache(f"draft {index}", draft, self.rows, slots)
                for index, draft in enumerate(self.drafts)
            ]
            self._drafter = LanguageModelDrafter(self.drafts, caches, self.rows)

    def begin(self, requests: Sequence[Request], seed: int) -> list[Row]:
        self.admit(requests)
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
        tokens = tree.tokens.gather(1, result.path)[:, 1:]
        emitted = torch.cat([tokens, result.token.unsqueeze(1)], dim=1)
        emitted = emitted.scatter(1, result.accepted.unsqueeze(1), result.token.unsqueeze(1))
        log_p = raw_log_probs(logits, result.path, emitted)
        parts = (result.accepted.unsqueeze(1), result.path, emitted, log_p)
        verdict = torch.cat([part.double() for part in parts], dim=1).tolist()
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

    def _commit(self, index: int, row: Row, verdict: list[float]) -> int:
        """Keeps one row's accepted path in the caches and appends its tokens.

        Args:
            index: of the row in the caches.
            row: the row.
            verdict: the number accepted, then L + 1 entries each of path, tokens emitted and their
                log-probabilities, of which the first ``accepted + 1`` mean anything.
        """
        width, count = self.depth + 1, int(verdict[0]) + 1
        path, emitted, log_p = (
            verdict[1 + part * width : 1 + part * width + count] for part in range(3)
        )
        nodes, tokens = [int(node) for node in path], [int(token) for token in emitted]
        self._scorer.commit(index, row.length, nodes)
        if self._drafter:
            self._drafter.commit(index, row.length, nodes, self.depth)
        row.commit(tokens, log_p, self.nodes, self.depth)
        return count

    def retire(self, active: list[Row]) -> None:
        for index in reversed(range(len(active))):
            if active[index].finish is None:
                continue
            last = active.pop()
            if index < len(active):
                active[index] = last
                self._scorer.move_row(len(active), index, last.length)
                if self._drafter:
                    self._drafter.move_row(len(active), index)

    def take_forward_s(self) -> tuple[float, float]:
        draft_s = self._drafter.take_forward_s() if self._drafter else 0.0
        return draft_s, self.target.timer.take_s()
