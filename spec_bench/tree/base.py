"""What a tree policy is: a decoder's ``tree`` block with its types, and how a tree grows by it.

A policy is a frozen dataclass whose fields are the block's keys. It says everything that others
need to know: which shorthand it takes, how siblings are drawn, which shape its trees have,
and the smallest trees that audit it. ``@policy("name", forms=..., takes=...)`` registers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.transfer import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.draft.base import Drafting
from spec_bench.settings.fields import MOST_NODES, format_value
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.spec import Form, Spec


class Policy(ABC):
    """A decoder's ``tree`` block."""

    name: ClassVar[str]  # under which it is registered
    forms: ClassVar[Sequence[Form]]  # the forms of shorthand that it takes
    takes: ClassVar[str]  # the same in words, for messages
    # the kinds of drafter that it works with; None: all that draft level by level
    drafters: ClassVar[tuple[str, ...] | None] = None
    shared: ClassVar[tuple[str, ...]] = ()  # keys that must be equal in a rule that has them too

    @classmethod
    @abstractmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        """Returns the keys that a shorthand of one of its ``forms`` sets; None for another one."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The shorthand, as in the results table."""

    @property
    def several_drafts(self) -> bool:
        """Whether the children of one node can come from different draft models."""
        return False

    def under(self, tree_attention: bool) -> Policy:
        """Returns the policy when the target runs a tree as one row, or each path as its own;
        refused where its trees cannot be run so.
        """
        if not tree_attention:
            raise UsageError(
                "tree_attention: false needs a tree of fixed paths such as chain, widths or "
                f"iid_paths, got {self.name!r}"
            )
        return self

    @property
    def revision(self) -> int:
        """How often the same settings have come to draw other trees. It is part of a run id, so
        raising it makes such cells, and no others, be decoded again.
        """
        return 0

    @classmethod
    @abstractmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        """Makes the smallest trees that show everything the policy does."""


class AuditTree(NamedTuple):
    """A tree small enough for its decoder's distribution to be summed over every outcome."""

    policy: Policy  # the tree
    vocab: int = 3  # V of the chain that it is grown on
    drafts: int = 1  # draft models that share the children of a node
    enumerable: bool = True  # whether every random choice is discrete; otherwise samples are tested
    prompt: tuple[int, ...] = (1, 0)  # what is continued


class GrowthContext(NamedTuple):
    """What a batch's trees are planted on."""

    drafting: Drafting  # gives logits
    committed: CommittedTokens  # per row all tokens so far; the last one is the root
    device: torch.device  # where the trees live
    settings: SamplingSettings  # of the target; the draft's own temperature applies
    draws: Draws  # randomness

    @property
    def roots(self) -> Tensor:
        """[R] the last committed tokens, on the device."""
        return self.committed.roots.on(self.device)

    def logits_below(self, tree: Tree) -> Tensor:
        """Has the drafter run a tree's frontier; returns its logits, [R, F, D, V]."""
        drafting = self.drafting
        committed = self.committed
        below = drafting.at_frontier(tree, committed) if tree.grown else drafting.at_root(committed)
        return below.to(self.device)

    def scores_below(self, tree: Tree) -> Tensor:
        """Returns what is proposed below a tree's frontier; see ``scored``."""
        return to_scores(tree, self.logits_below(tree), self.settings)


class GrownTree(Policy):
    """A tree for a single sequence, grown level by level."""

    # whether nodes with equal prefixes count as one node when the tree is walked (K independent
    # paths); otherwise each is its own
    merge_copies: bool = False
    fixed_parents: bool = False  # whether a node's parent follows from the shape alone
    # whether trees have another form in every call: the end of a path is no rejection, and a
    # batch's trees are as deep as its deepest
    varies: bool = False
    asks: bool = False  # whether growing one asks the host

    @property
    @abstractmethod
    def shape(self) -> TreeShape:
        """The tree's fixed shape; subclasses work it out once."""

    @property
    def node_count(self) -> int:
        """Most nodes of one row's tree, the root not counted."""
        return self.shape.size - 1

    @property
    def as_deep_as_drafted(self) -> bool:
        """Whether draft calls are counted: trees of no fixed depth, as deep as what was run."""
        return False

    @property
    def slots(self) -> int:
        """Most nodes in a cache at one time, the root and a batch's filling included."""
        return self.shape.size

    @abstractmethod
    def siblings(self, settings: SamplingSettings) -> Siblings:
        """Says how the children of one node are drawn. A chain has no siblings: any rule for
        sampled children accepts the distribution of its single child.
        """

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        """Adds one level below the frontier of F nodes, by ``scored`` logits [R, F, D, V] of D
        drafts; not asked of trees that are planted whole.
        """
        raise NotImplementedError

    def needs(
        self, drafting: Drafting, committed: CommittedTokens, fixed: bool = False
    ) -> Sequence[HostDeviceInts]:
        """Numbers that planting these trees needs on the device: they go there together. With
        ``fixed`` they have one shape in all iterations.
        """
        return drafting.needs(committed, fixed)

    def plant(self, ground: GrowthContext) -> Tree:
        """Returns a tree per row, grown to its depth."""
        tree = Tree(self.shape, ground.roots, self.siblings(ground.settings))
        for _ in range(self.shape.depth):
            self.grow(tree, ground.scores_below(tree), ground.draws)
        return tree

    def under(self, tree_attention: bool) -> Policy:
        return self if self.fixed_parents else super().under(tree_attention)


def to_scores(tree: Tree, logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Returns what is proposed below the frontier by logits [R, F, D, V], in their shape:
    log-probabilities after warping, the draft's own temperature applied; for deterministic siblings
    the logits, their maximum shifted to 0. The tree keeps the largest of the logits.
    """
    tree.largest.append(logits.amax(dim=-1).flatten(1))
    if tree.siblings == "deterministic":
        logits = logits.to(settings.dtype)
        return logits - logits.amax(dim=-1, keepdim=True)
    return log_probs(logits, settings.get_draft_settings())


def distinct(settings: SamplingSettings) -> Siblings:
    """The distribution of children drawn without replacement: at draft temperature 0 the draft's
    best tokens in rank order.
    """
    cold = settings.get_draft_settings().temperature == 0
    return "deterministic" if cold else "without_replacement"


def within_bounds(key: str, nodes: int) -> None:
    """Refuses a tree that a setting makes too large to be meant: a ValueError names both."""
    if nodes > MOST_NODES:
        raise UsageError(
            f"{key} must make a tree of at most {MOST_NODES} nodes, got {format_value(nodes)}"
        )


def _declare(name: str, thing: type[Policy], *, forms: Sequence[Form], takes: str) -> type[Policy]:
    thing.name = name
    thing.forms = forms
    thing.takes = takes
    return thing


policy: Registry[type[Policy]] = Registry(
    "tree policy", "spec_bench.policies", _declare, within="spec_bench.tree"
)
"""The tree policies by name; also the decorator that registers one."""
