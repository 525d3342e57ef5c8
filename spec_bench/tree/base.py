"""Base classes of tree policies: the types of a decoder's ``tree`` block, and how a tree grows.

A policy is a frozen dataclass whose fields are the block's keys. It also declares which shorthand
it takes, how siblings are drawn, which shape its trees have, and the smallest trees that audit it.
``@policy("name", forms=..., takes=...)`` registers it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import RandomSource
from spec_bench.core.host_device import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings, warped_log_probs
from spec_bench.draft.base import DraftState
from spec_bench.settings.fields import MOST_NODES, format_value
from spec_bench.settings.former import FormerMembers, make_former_getattr
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.spec import Form, Spec


class Policy(FormerMembers, ABC):
    """A decoder's ``tree`` block."""

    former_members: ClassVar = {
        "of_spec": "parse_spec",
        "follows_draft_depth": "lacks_fixed_depth",
        "has_level_per_draft_call": "lacks_fixed_depth",
        "several_drafts": "allows_several_drafts",
        "under": "adapt_to_attention",
        "grow": "grow_level",
        "plant": "grow_tree",
        "needs": "device_inputs",
        "fixed_parents": "has_fixed_parents",
        "as_deep_as_drafted": "lacks_fixed_depth",
        "merge_copies": "walk_merges_copies",
        "node_count": "max_draft_nodes",
        "asks": "waits_for_device",
        "slots": "cache_slots",
    }
    name: ClassVar[str]  # its name in the registry
    forms: ClassVar[Sequence[Form]]  # forms of shorthand that it takes
    takes: ClassVar[str]  # the forms in words, for messages
    # kinds of drafter that it works with; None: all that draft level by level
    drafters: ClassVar[tuple[str, ...] | None] = None
    shared: ClassVar[tuple[str, ...]] = ()  # keys that must equal those of the rule

    @classmethod
    @abstractmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        """Parses a shorthand of one of its ``forms`` into keys and values; None for any other
        shorthand.
        """

    @property
    @abstractmethod
    def spec(self) -> str:
        """Shorthand of the tree, as in the results table."""

    @property
    def allows_several_drafts(self) -> bool:
        """Whether several draft models can share the children of one node."""
        return False

    def adapt_to_attention(self, tree_attention: bool) -> Policy:
        """Returns the policy to use with or without tree attention. Without tree attention every
        path runs as a row of its own. Raises UsageError if the policy's trees do not allow that.
        """
        if not tree_attention:
            raise UsageError(
                "tree_attention: false needs a tree of fixed paths such as chain, widths or "
                f"iid_paths, got {self.name!r}"
            )
        return self

    @property
    def revision(self) -> int:
        """Version of the policy: raise it when the same settings draw different trees. It is part
        of the run id, so that only the affected cells are decoded again.
        """
        return 0

    @classmethod
    @abstractmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        """Returns the smallest trees that exercise every part of the policy."""


class AuditTree(NamedTuple):
    """A tree small enough to enumerate every outcome of its decoder."""

    policy: Policy
    vocab: int = 3  # V of the Markov chain that replaces the models
    drafts: int = 1  # draft models that share the children of a node
    enumerable: bool = True  # whether every random choice is discrete; otherwise samples are tested
    prompt: tuple[int, ...] = (1, 0)


class GrowthContext(NamedTuple):
    """Inputs shared by all trees of a batch."""

    draft_state: DraftState
    committed: CommittedTokens  # all tokens of each row so far; the last one is the root
    device: torch.device  # device of the trees
    settings: SamplingSettings  # the target's; the draft may have a temperature of its own
    draws: RandomSource

    @property
    def root_tokens(self) -> Tensor:
        """[R] the last committed token of each row, on the device."""
        return self.committed.roots.get_tensor(self.device)

    def compute_logits_noting_largest(self, tree: Tree) -> Tensor:
        """Runs the drafter on a tree's frontier; returns the logits [R, F, D, V]. Notes the largest
        of each node in ``tree.largest_logits``.
        """
        if tree.grown:
            logits = self.draft_state.frontier_logits(tree, self.committed)
        else:
            logits = self.draft_state.root_logits(self.committed)
        logits = logits.to(self.device)
        tree.largest_logits.append(logits.amax(dim=-1).flatten(1))
        return logits

    def compute_scores_noting_largest(self, tree: Tree) -> Tensor:
        """Runs the drafter on a tree's frontier; returns the scores [R, F, D, V] of the tokens
        below it, see ``score_logits``.
        """
        logits = self.compute_logits_noting_largest(tree)
        return score_logits(logits, tree.siblings, self.settings)


class GrownTree(Policy):
    """Base class of trees that continue a single sequence, grown level by level."""

    # whether the walk treats nodes with equal prefixes as one node (K independent paths)
    walk_merges_copies: bool = False
    has_fixed_parents: bool = False  # whether a node's parent follows from the shape alone
    # whether trees differ in form between iterations: reaching the end of a path is then not
    # always a rejection, and all trees of a batch are as deep as the deepest
    varies: bool = False
    waits_for_device: bool = False  # whether growing waits for values from the device

    @property
    @abstractmethod
    def shape(self) -> TreeShape:
        """Fixed shape of the trees; subclasses cache it."""

    @property
    def parents(self) -> tuple[int, ...] | None:
        """Parent of every node [N], 0 for the root; None if parents vary between trees."""
        return self.shape.even_parents if self.has_fixed_parents else None

    @property
    def max_draft_nodes(self) -> int:
        """Maximum number of nodes of one row's tree, without the root."""
        return self.shape.size - 1

    @property
    def lacks_fixed_depth(self) -> bool:
        """Whether trees have one level per draft call instead of a fixed depth."""
        return False

    @property
    def cache_slots(self) -> int:
        """Maximum number of tree nodes in a row's cache at one time, including the root and
        padding.
        """
        return self.shape.size

    @abstractmethod
    def siblings(self, settings: SamplingSettings) -> Siblings:
        """Returns how the children of one node are drawn. A chain has no siblings, so its single
        child suits every rule for sampled children.
        """

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        """Adds one level below the F frontier nodes from the scores [R, F, D, V] of D drafts (see
        ``score_logits``). Policies with a ``grow_tree`` of their own need not define it.
        """
        raise NotImplementedError

    def device_inputs(
        self,
        draft_state: DraftState,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        """Lists the integers that ``grow_tree`` needs on the device, copied there together. With
        ``fixed`` they have the same shape in all iterations.
        """
        return draft_state.device_inputs(committed, fixed)

    def grow_tree(self, context: GrowthContext) -> Tree:
        """Grows one tree per row, level by level."""
        siblings = self.siblings(context.settings)
        tree = Tree(self.shape, context.root_tokens, siblings, self.parents)
        for _ in range(self.shape.depth):
            self.grow_level(tree, context.compute_scores_noting_largest(tree), context.draws)
        return tree

    def adapt_to_attention(self, tree_attention: bool) -> Policy:
        return self if self.has_fixed_parents else super().adapt_to_attention(tree_attention)


def score_logits(logits: Tensor, siblings: Siblings, settings: SamplingSettings) -> Tensor:
    """Turns draft logits [R, F, D, V] into scores of the same shape: log-probabilities warped at
    the draft's temperature, or for deterministic siblings logits shifted to a maximum of 0.
    """
    if siblings == "deterministic":
        logits = logits.to(settings.dtype)
        return logits - logits.amax(dim=-1, keepdim=True)
    return warped_log_probs(logits, settings.get_draft_settings())


def get_distinct_siblings(settings: SamplingSettings) -> Siblings:
    """Returns the kind of siblings that are distinct: ``without_replacement``, or at draft
    temperature 0 ``deterministic``, which are the draft's best tokens in rank order.
    """
    cold = settings.get_draft_settings().temperature == 0
    return "deterministic" if cold else "without_replacement"


def refuse_too_many_nodes(key: str, nodes: int) -> None:
    """Raises UsageError if the setting ``key`` makes a tree of more than MOST_NODES nodes."""
    if nodes > MOST_NODES:
        raise UsageError(
            f"{key} must make a tree of at most {MOST_NODES} nodes, got {format_value(nodes)}"
        )


def _declare_policy(
    name: str,
    policy_class: type[Policy],
    *,
    forms: Sequence[Form],
    takes: str,
) -> type[Policy]:
    policy_class.name = name
    policy_class.forms = forms
    policy_class.takes = takes
    return policy_class


def parse_total_for_keys(shorthand: str, *keys: str) -> dict[str, object] | None:
    """Parses ``@N`` into the value N for each of ``keys``; None for any other shorthand."""
    match = re.fullmatch("@([0-9]{1,9})", shorthand)
    return dict.fromkeys(keys, int(match[1])) if match else None


policy: Registry[type[Policy]] = Registry(
    "tree policy",
    "spec_bench.policies",
    _declare_policy,
    within="spec_bench.tree",
)
"""The tree policies by name; also the decorator that registers one."""

if not TYPE_CHECKING:
    __getattr__ = make_former_getattr(
        __name__,
        {"distinct": "get_distinct_siblings", "within_bounds": "refuse_too_many_nodes"},
    )
