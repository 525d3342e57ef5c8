"""What a tree policy is: a decoder's ``tree`` block with its types, and how a tree grows by it.

A policy is a frozen dataclass whose fields are the block's keys. It says everything that others
need to know: which shorthand it takes, how siblings are drawn, which shape its trees have,
and the smallest trees that audit it. ``@policy("name", forms=..., takes=...)`` registers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import Draws, run_part
from spec_bench.core.transfer import Committed, Known
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.draft.base import Drafting
from spec_bench.settings.fields import MOST_NODES, shown
from spec_bench.settings.registry import Registry
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
        """The keys that a shorthand of one of its ``forms`` sets; None if it takes another one."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The shorthand, as in the results table."""

    @property
    def several_drafts(self) -> bool:
        """Whether the children of one node can come from different draft models."""
        return False

    def under(self, tree_attention: bool) -> Policy:
        """The policy when the target runs a tree as one row, or each path as its own.

        Raises:
            ValueError: its trees cannot be run so.
        """
        if not tree_attention:
            raise ValueError(
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
        """The smallest trees that show everything the policy does."""


class AuditTree(NamedTuple):
    """A tree small enough for its decoder's distribution to be summed over every outcome."""

    policy: Policy  # the tree
    vocab: int = 3  # V of the chain that it is grown on
    drafts: int = 1  # draft models that share the children of a node
    enumerable: bool = True  # whether every random choice is discrete; otherwise samples are tested
    prompt: tuple[int, ...] = (1, 0)  # what is continued


class GrownTree(Policy):
    """A tree for a single sequence, grown level by level."""

    # whether nodes with equal prefixes count as one node when the tree is walked (K independent
    # paths); otherwise each is its own
    merge_copies: bool = False
    fixed_parents: bool = False  # whether a node's parent follows from the shape alone
    # whether trees have another form in every call: the end of a path is no rejection, and a
    # batch's trees are as deep as its deepest
    varies: bool = False
    # whether growing one asks the host, which needs to know what was verified before
    asks: bool = False

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
        """How the children of one node are drawn.

        A chain has no siblings; it declares the distribution that its single child fits, and any
        rule for sampled children accepts it.
        """

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        """Adds one level below the tree's frontier; not asked of trees that are planted whole.

        Args:
            tree: grown up to its frontier of F nodes; ``tree.siblings`` is the distribution of this
            run.
            scores: [R, F, D, V]: for each frontier node and each of D drafts the log-probabilities
                after warping; for deterministic siblings the logits, their maximum shifted to 0.
            draws: where randomness comes from.
        """
        raise NotImplementedError

    def needs(self, drafting: Drafting, committed: Committed) -> Sequence[Known]:
        """Numbers that planting these trees needs on the device: they go there together."""
        return drafting.needs(committed)

    def plant(
        self,
        drafting: Drafting,
        committed: Committed,
        device: torch.device,
        settings: SamplingSettings,
        draws: Draws,
    ) -> Tree:
        """A tree per row, grown to its depth.

        Args:
            drafting: gives logits.
            committed: per row all tokens so far; the last one is the root.
            device: where the trees live.
            settings: sampling settings; the draft's own temperature applies.
            draws: randomness.
        """
        rooted = partial(self._rooted, self.siblings(settings))
        tree = run_part(draws, "root", rooted, committed.roots.on(device))
        for level in range(self.shape.depth):
            logits = drafted_below(tree, drafting, committed)
            tree = run_part(draws, level, partial(self._grown, tree, settings), logits, of=tree)
        return tree

    def _rooted(self, siblings: Siblings, draws: Draws, roots: Tensor) -> Tree:
        """Trees of roots [R] alone."""
        return Tree(self.shape, roots, siblings)

    def _grown(self, tree: Tree, settings: SamplingSettings, draws: Draws, logits: Tensor) -> Tree:
        """The trees with one level more, of logits [R, F, D, V]."""
        tree = tree.copy()
        tree.largest.append(logits.amax(dim=-1).flatten(1))
        self.grow(tree, scores_of(logits, tree.siblings, settings), draws)
        return tree

    def under(self, tree_attention: bool) -> Policy:
        return self if self.fixed_parents else super().under(tree_attention)


def drafted_below(tree: Tree, drafting: Drafting, committed: Committed) -> Tensor:
    """A drafter's logits below a tree's frontier, [R, F, D, V]."""
    logits = drafting.at_frontier(tree, committed) if tree.grown else drafting.at_root(committed)
    return logits.to(tree.tokens.device)


def logits_below(tree: Tree, drafting: Drafting, committed: Committed) -> Tensor:
    """``drafted_below``; the tree keeps the largest of the logits."""
    logits = drafted_below(tree, drafting, committed)
    tree.largest.append(logits.amax(dim=-1).flatten(1))
    return logits


def scores_below(
    tree: Tree, drafting: Drafting, committed: Committed, settings: SamplingSettings
) -> Tensor:
    """What is proposed below a tree's frontier, which the drafter runs; see ``scores_of``."""
    return scores_of(logits_below(tree, drafting, committed), tree.siblings, settings)


def scores_of(logits: Tensor, siblings: Siblings, settings: SamplingSettings) -> Tensor:
    """What is proposed by logits [R, F, D, V], the draft's own temperature applied.

    Returns:
        [R, F, D, V] log-probabilities after warping; for deterministic siblings the logits, their
        maximum shifted to 0.
    """
    if siblings == "deterministic":
        logits = logits.to(settings.dtype)
        return logits - logits.amax(dim=-1, keepdim=True)
    return log_probs(logits, settings.for_draft())


def distinct(settings: SamplingSettings) -> Siblings:
    """The distribution of children drawn without replacement: at draft temperature 0 the draft's
    best tokens in rank order.
    """
    cold = settings.for_draft().temperature == 0
    return "deterministic" if cold else "without_replacement"


def within_bounds(key: str, nodes: int) -> None:
    """Refuses a tree that is too large to be meant, made so large by a setting.

    Raises:
        ValueError: naming the key, the number of nodes and the bound.
    """
    if nodes > MOST_NODES:
        raise ValueError(
            f"{key} must make a tree of at most {MOST_NODES} nodes, got {shown(nodes)}"
        )


def _declare(name: str, thing: type[Policy], *, forms: Sequence[Form], takes: str) -> type[Policy]:
    thing.name, thing.forms, thing.takes = name, forms, takes
    return thing


policy: Registry[type[Policy]] = Registry(
    "tree policy", "spec_bench.policies", _declare, within="spec_bench.tree"
)
"""The tree policies by name; also the decorator that registers one."""
