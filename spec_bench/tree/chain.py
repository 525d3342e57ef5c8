"""The smallest trees: the root alone, a chain of draft tokens, and what is looked up."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import torch
from torch import Tensor

from spec_bench.core import processes
from spec_bench.core.draws import Draws
from spec_bench.core.transfer import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import Drafting, GuessedNode
from spec_bench.settings.fields import Count, Share
from spec_bench.tree.base import AuditTree, GrownTree, GrowthContext, policy, to_scores
from spec_bench.tree.widths import Rectangle, grow_iid
from spec_bench.vocabulary.spec import Spec


@policy("root", forms=("root",), takes="'-' (no tree)")
@dataclass(frozen=True)
class Root(GrownTree):
    """No tree: the decoding loop is autoregressive."""

    drafters = ("none",)
    fixed_parents = True

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
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
    """One child per node: speculative decoding as first published."""

    depth: Count  # L

    fixed_parents = True

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"depth": spec.numbers[0]}

    @property
    def spec(self) -> str:
        return str(self.depth)

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((1,) * self.depth, (1,) * self.depth)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "iid"

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        grow_iid(tree, scores, draws, 1)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2)),)


# A chain that is as long as the draft is sure of it.


@policy("dynamic_chain", forms=("number",), takes="the most draft tokens such as 8")
@dataclass(frozen=True)
class DynamicChain(Chain):
    """At most L tokens, each drawn from the draft, until one of them is doubtful.

    The token that stopped the chain stays its last: drafting may depend on all tokens drawn, but
    every token drawn must be verified. In a batch a row that has stopped waits for the others, with
    absent nodes from there on; random numbers are drawn for L tokens in any case.
    """

    # stops after a token that the draft gives less than this at temperature 1, whatever the text is
    # sampled at (0.4 by default in transformers >= 4.45, `assistant_confidence_threshold`)
    confidence: Share = 0.4
    path: Share | None = None  # stops where the product of these is less than this; null: never

    fixed_parents = False
    varies = True
    asks = True

    def plant(self, ground: GrowthContext) -> Tree:
        settings = ground.settings
        roots = ground.roots
        tree = Tree(self.shape, roots, self.siblings(settings))
        going = torch.ones_like(roots, dtype=torch.bool)
        path = torch.ones_like(roots, dtype=settings.dtype)
        for level in range(self.depth):
            logits = ground.logits_below(tree)
            self.grow(tree, to_scores(tree, logits, settings), ground.draws)
            node = level + 1
            tree.valid[:, node] &= going
            token = tree.tokens[:, node].unsqueeze(1)
            sure = logits[:, 0, 0].to(settings.dtype).softmax(dim=-1).gather(1, token).squeeze(1)
            path = path * sure
            going = going & (sure >= self.confidence)
            if self.path is not None:
                going = going & (path >= self.path)
            processes.broadcast_tensors(going)
            if not bool(going.any()):  # the one question of a level: is another pass wanted?
                break
        return drop_ungrown_levels(tree, ground.draws)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(3, confidence=0.4), vocab=2), AuditTree(cls(2, 0.0, path=0.5)))


def drop_ungrown_levels(tree: Tree, draws: Draws) -> Tree:
    """Returns a chain without the levels that were not grown; their random numbers are drawn."""
    surely = torch.ones((len(tree.tokens), 1, 1), dtype=torch.float64, device=tree.tokens.device)
    for _ in range(tree.shape.depth - tree.grown):
        draws.categorical(surely, 1)
    levels = tree.shape.levels[: tree.grown]
    size = tree.shape.starts[tree.grown + 1]
    tree.shape = TreeShape(levels, tree.shape.children)
    tree.tokens = tree.tokens[:, :size]
    tree.parent = tree.parent[:, :size]
    tree.valid = tree.valid[:, :size]
    tree.ancestors = tree.ancestors[:, :size, :size]
    return tree


# A tree of guesses made at once, each row's as large as there is something to guess.


@policy(
    "guessed", forms=("product",), takes="WxL: at most W guesses a level on L levels, such as 1x10"
)
@dataclass(frozen=True)
class GuessedTree(Rectangle):
    """At most W nodes on each of at most L levels, siblings in order of rank, one-hot.

    An iteration's tree is as deep and as wide as its largest row needs, just a root if no row has
    a guess; the random numbers drawn are always those of the largest tree.
    """

    drafters = ("lookup", "first_match", "suffix")
    varies = True

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def needs(
        self, drafting: Drafting, committed: CommittedTokens, fixed: bool = False
    ) -> Sequence[HostDeviceInts]:
        guesses = drafting.guesses(committed, self.width, self.depth)
        counts = list(self.shape.levels)
        if not fixed:
            sizes = [[len(level) for level in levels] for levels in guesses]
            counts = [max(each) for each in zip_longest(*sizes, fillvalue=0)]
        packed = HostDeviceInts(
            [
                _packed(tokens[-1], levels, counts)
                for tokens, levels in zip(committed, guesses, strict=True)
            ]
        )  # [R, 3, N]: tokens, parents within the level above, whether there
        committed.planned = TreeShape(tuple(counts), self.shape.children), packed
        return (packed,)

    def plant(self, ground: GrowthContext) -> Tree:
        shape, known = ground.committed.planned
        packed = known.on(ground.device)
        tree = Tree(shape, packed[:, 0, 0], "deterministic")
        for level in range(shape.depth):
            tokens, parent, there = packed[:, :, shape.level(level + 1)].unbind(1)
            tree.add_level(tokens, parent, there.bool(), None)
        return tree

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        # After 0 1 the prompt went on with 1 0 and with 0 0, so that two nodes have a child each.
        # After 2 the other prompt went on with 0 first, with 1 later.
        return (
            AuditTree(cls(2, 2), prompt=(0, 1, 1, 0, 1, 0, 0, 1)),
            AuditTree(cls(1, 2), prompt=(2, 0, 1, 2, 1, 0, 2)),
            AuditTree(cls(1, 1), prompt=(1, 0)),  # no guess at all
        )


def _packed(
    root: int, levels: Sequence[Sequence[GuessedNode]], counts: Sequence[int]
) -> list[list[int]]:
    """One row's tokens, parents and whether each node is there, absent nodes last in a level."""
    nodes = [(root, 0, 1)]
    for level, count in enumerate(counts):
        mine = levels[level] if level < len(levels) else ()
        nodes += [(guess.token, guess.parent, 1) for guess in mine]
        nodes += [(root, 0, 0)] * (count - len(mine))
    return [list(part) for part in zip(*nodes, strict=True)]


# A chain that is looked up where the row's past has a match, and drafted where it has none.


@policy("guess_or_draft", forms=("number",), takes="the most draft tokens such as 6")
@dataclass(frozen=True)
class GuessOrDraft(Chain):
    """At most L tokens looked up, one-hot; or L tokens drawn from the draft model.

    A token looked up is a draw from a one-hot distribution, so a rule for drawn tokens is exact for
    either. The model runs if some row of the batch has no match.
    """

    fixed_parents = False
    varies = True
    asks = True
    drafters = ("lookup_or_model",)

    def needs(
        self, drafting: Drafting, committed: CommittedTokens, fixed: bool = False
    ) -> Sequence[HostDeviceInts]:
        chains = [
            [level[0].token for level in levels]
            for levels in drafting.guesses(committed, 1, self.depth)
        ]
        counts = HostDeviceInts([len(tokens) for tokens in chains])
        packed = HostDeviceInts([[*tokens, *[0] * (self.depth - len(tokens))] for tokens in chains])
        committed.planned = counts, packed
        needed = () if all(counts) else drafting.needs(committed)
        return (counts, packed, *needed)

    def plant(self, ground: GrowthContext) -> Tree:
        counts, guesses = ground.committed.planned
        tree = Tree(self.shape, ground.roots, self.siblings(ground.settings))
        count = counts.on(ground.device)
        guess = guesses.on(ground.device)
        vocab: int = ground.drafting.vocab_size  # type: ignore[attr-defined]
        none = guess.new_full((len(guess), vocab), -torch.inf, dtype=ground.settings.dtype)
        runs = not all(counts)
        for level in range(self.depth if runs else max(counts)):
            # log-probabilities [R, 1, 1, V] of distributions that have one token each
            scores = none.scatter(1, guess[:, level : level + 1], 0.0)[:, None, None]
            if runs:
                drafted = ground.scores_below(tree)
                scores = torch.where((count > 0).view(-1, 1, 1, 1), scores, drafted)
            grow_iid(tree, scores, ground.draws, 1)
            tree.valid[:, level + 1] &= (count == 0) | (count > level)
        return drop_ungrown_levels(tree, ground.draws)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2)), AuditTree(cls(3), prompt=(0, 1, 1, 0, 1, 2, 0, 1)))
