"""The smallest trees: the root alone, chains of draft tokens, and trees of looked-up guesses."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import torch
from torch import Tensor

from spec_bench.core import processes
from spec_bench.core.draws import RandomSource
from spec_bench.core.host_device import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import DraftState, GuessedNode
from spec_bench.settings.fields import Count, Share
from spec_bench.tree.base import AuditTree, GrownTree, GrowthContext, policy, score_logits
from spec_bench.tree.widths import RectangularTree, grow_iid_level
from spec_bench.vocabulary.spec import Spec


@policy("root", forms=("root",), takes="'-' (no tree)")
@dataclass(frozen=True)
class Root(GrownTree):
    """The root alone: autoregressive decoding."""

    drafters = ("none",)
    has_fixed_parents = True

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {}

    @property
    def spec(self) -> str:
        return "-"

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((), ())

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "iid"

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls()),)


@policy("chain", forms=("number",), takes="a draft length such as 3")
@dataclass(frozen=True)
class Chain(GrownTree):
    """A chain of L draft tokens, as in the first papers on speculative decoding."""

    depth: Count  # L

    has_fixed_parents = True

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"depth": spec.numbers[0]}

    @property
    def spec(self) -> str:
        return str(self.depth)

    @property
    def parents(self) -> tuple[int, ...]:
        return self.shape.even_parents

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((1,) * self.depth, (1,) * self.depth)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "iid"

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        grow_iid_level(tree, scores, draws, 1)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2)),)


@policy("dynamic_chain", forms=("number",), takes="the most draft tokens such as 8")
@dataclass(frozen=True)
class DynamicChain(Chain):
    """A chain of at most L draft tokens that stops after the first unlikely one.

    The unlikely token stays in the chain as its last: drafting may depend on all tokens drawn, but
    every token drawn must be verified. A row that has stopped gets absent nodes until the batch
    stops. Random numbers are always drawn for L tokens.
    """

    # stops after a token with a draft probability below this, taken at temperature 1 whatever the
    # sampling temperature (`assistant_confidence_threshold` of transformers, 0.4 since 4.45)
    confidence: Share = 0.4
    # stops when the product of these probabilities is below this; null: never
    path: Share | None = None

    has_fixed_parents = False
    varies = True
    waits_for_device = True

    def grow_tree(self, context: GrowthContext) -> Tree:
        settings = context.settings
        roots = context.root_tokens
        tree = Tree(self.shape, roots, self.siblings(settings), self.parents)
        active = torch.ones_like(roots, dtype=torch.bool)
        path = torch.ones_like(roots, dtype=settings.dtype)
        for level in range(self.depth):
            logits = context.compute_logits_noting_largest(tree)
            self.grow_level(tree, score_logits(logits, tree.siblings, settings), context.draws)
            node = level + 1
            tree.valid[:, node] &= active
            token = tree.tokens[:, node].unsqueeze(1)
            confidence = (
                logits[:, 0, 0].to(settings.dtype).softmax(dim=-1).gather(1, token).squeeze(1)
            )
            path = path * confidence
            active = active & (confidence >= self.confidence)
            if self.path is not None:
                active = active & (path >= self.path)
            processes.copy_from_first_process(active)
            if not bool(active.any()):  # the only wait for the device on a level
                break
        return draw_for_and_drop_ungrown_levels(tree, context.draws)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(3, confidence=0.4), vocab=2), AuditTree(cls(2, 0.0, path=0.5)))


def draw_for_and_drop_ungrown_levels(tree: Tree, draws: RandomSource) -> Tree:
    """Drops the levels of a chain that were not grown, after drawing their random numbers, so that
    every iteration draws equally many.
    """
    dummy_probs = torch.ones(
        (len(tree.tokens), 1, 1),
        dtype=torch.float64,
        device=tree.tokens.device,
    )
    for _ in range(tree.shape.depth - tree.grown):
        draws.categorical(dummy_probs, 1)
    levels = tree.shape.levels[: tree.grown]
    size = tree.shape.starts[tree.grown + 1]
    tree.shape = TreeShape(levels, tree.shape.children)
    tree.tokens = tree.tokens[:, :size]
    tree.parent = tree.parent[:, :size]
    tree.valid = tree.valid[:, :size]
    tree.ancestors = tree.ancestors[:, :size, :size]
    return tree


@policy(
    "guessed",
    forms=("product",),
    takes="WxL: at most W guesses a level on L levels, such as 1x10",
)
@dataclass(frozen=True)
class GuessedTree(RectangularTree):
    """Looked-up guesses: at most W one-hot nodes on each of at most L levels, in order of rank.

    An iteration's tree is as deep and as wide as its largest row needs; it is the root alone if no
    row has a guess. As many random numbers are always drawn as for the largest possible tree.
    """

    drafters = ("lookup", "first_match", "suffix")
    varies = True

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def device_inputs(
        self,
        draft_state: DraftState,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        guesses = draft_state.guess_trees(committed, self.width, self.depth)
        counts = list(self.shape.levels)
        if not fixed:
            sizes = [[len(level) for level in levels] for levels in guesses]
            counts = [max(level_sizes) for level_sizes in zip_longest(*sizes, fillvalue=0)]
        # [R, 3, N]: tokens, parents, presence
        packed = HostDeviceInts(
            [
                _pack_tokens_parents_presence(tokens[-1], levels, counts)
                for tokens, levels in zip(committed, guesses, strict=True)
            ]
        )
        committed.tree_plan = TreeShape(tuple(counts), self.shape.children), packed
        return (packed,)

    def grow_tree(self, context: GrowthContext) -> Tree:
        shape, packed_ints = context.committed.tree_plan
        tokens, parent, present = packed_ints.get_tensor(context.device).unbind(1)
        return Tree.from_nodes(shape, tokens, parent, present.bool(), "deterministic")

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        # In the first prompt 0 1 is followed by 1 0 and by 0 0, so two nodes have a child each.
        # In the second prompt 2 is followed first by 0, then by 1.
        return (
            AuditTree(cls(2, 2), prompt=(0, 1, 1, 0, 1, 0, 0, 1)),
            AuditTree(cls(1, 2), prompt=(2, 0, 1, 2, 1, 0, 2)),
            AuditTree(cls(1, 1), prompt=(1, 0)),  # no guess at all
        )


def _pack_tokens_parents_presence(
    root: int,
    levels: Sequence[Sequence[GuessedNode]],
    counts: Sequence[int],
) -> list[list[int]]:
    """Packs a row's guesses into lists of tokens, parents and presence (1 or 0), level by level,
    the absent nodes of a level last.
    """
    nodes = [(root, 0, 1)]
    parent_start = 0  # the first node of the level above
    for level, count in enumerate(counts):
        guesses = levels[level] if level < len(levels) else ()
        start = len(nodes)
        nodes += [(guess.token, parent_start + guess.parent, 1) for guess in guesses]
        nodes += [(root, parent_start, 0)] * (count - len(guesses))
        parent_start = start
    return [list(column) for column in zip(*nodes, strict=True)]


@policy("guess_or_draft", forms=("number",), takes="the most draft tokens such as 6")
@dataclass(frozen=True)
class GuessOrDraft(Chain):
    """A chain of at most L looked-up tokens, or of L draft tokens in rows without a match.

    A looked-up token is a draw from a one-hot distribution, so that rules for drawn tokens are
    exact for both. The draft model runs if any row of the batch has no match.
    """

    has_fixed_parents = False
    varies = True
    waits_for_device = True
    drafters = ("lookup_or_model",)

    def device_inputs(
        self,
        draft_state: DraftState,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        chains = [
            [level[0].token for level in levels]
            for levels in draft_state.guess_trees(committed, 1, self.depth)
        ]
        counts = HostDeviceInts([len(tokens) for tokens in chains])
        packed = HostDeviceInts([[*tokens, *[0] * (self.depth - len(tokens))] for tokens in chains])
        committed.tree_plan = counts, packed
        draft_ints = () if all(counts) else draft_state.device_inputs(committed)
        return (counts, packed, *draft_ints)

    def grow_tree(self, context: GrowthContext) -> Tree:
        counts, guesses = context.committed.tree_plan
        siblings = self.siblings(context.settings)
        tree = Tree(self.shape, context.root_tokens, siblings, self.parents)
        count = counts.get_tensor(context.device)
        guess = guesses.get_tensor(context.device)
        vocab: int = context.draft_state.vocab_size  # type: ignore[attr-defined]
        impossible = guess.new_full((len(guess), vocab), -torch.inf, dtype=context.settings.dtype)
        runs = not all(counts)
        for level in range(self.depth if runs else max(counts)):
            # one-hot log-probabilities [R, 1, 1, V]
            scores = impossible.scatter(1, guess[:, level : level + 1], 0.0)[:, None, None]
            if runs:
                draft_scores = context.compute_scores_noting_largest(tree)
                scores = torch.where((count > 0).view(-1, 1, 1, 1), scores, draft_scores)
            grow_iid_level(tree, scores, context.draws, 1)
            tree.valid[:, level + 1] &= (count == 0) | (count > level)
        return draw_for_and_drop_ungrown_levels(tree, context.draws)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2)), AuditTree(cls(3), prompt=(0, 1, 1, 0, 1, 2, 0, 1)))
