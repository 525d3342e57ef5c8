"""Base classes of drafters: a decoder's ``drafter`` block, and its state while rows decode.

Each drafter has a file of its own with the block and its facts (``Drafter``), its state while rows
decode (``DraftState``) and, if the drafter is a small network on the target's hidden states, the
network with its files and its training (``network.DraftHeads``). ``@drafter("name")`` registers the
block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Tree
from spec_bench.draft.network import DraftHeads
from spec_bench.engine.model import LAST, LanguageModel, Layers
from spec_bench.settings.former import FormerMembers, make_former_getattr
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError


class GuessedNode(NamedTuple):
    """A node of a guessed tree."""

    token: int
    parent: int  # index of its parent in the level above; 0 below the root


class DraftState(FormerMembers):
    """A drafter's state for the rows of a batch. The base class drafts nothing.

    Letters: R rows, N nodes, F of them on the frontier, L levels, D drafts, V tokens. ``committed``
    holds each row's tokens so far; the last one is the root of its tree.
    """

    former_members: ClassVar = {
        "needs": "device_inputs",
        "at_root": "root_logits",
        "at_frontier": "frontier_logits",
        "see_prompt": "observe_prompt",
        "see_path": "observe_path",
        "see_scores": "observe_scores",
        "start": "start_row",
        "guesses": "guess_trees",
        "beams": "search_beams",
        "count": "update_cached_counts",
    }
    # whether an iteration does the same work at the same addresses every time, once the host has
    # copied its numbers, so that it can be recorded
    recordable: bool = False
    # whether its passes keep neither the tree that they run over nor the logits that they return
    is_forgetful: bool = False
    _timer: Any = None  # the `ForwardTimer` of a network's passes

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        """Prefills a row with all prompt tokens but the last, before the target's prefill."""

    def observe_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        """Receives hidden states [T, W] of a started row's prompt, from token ``start`` on."""

    def observe_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        """Receives the hidden states [R, N, W] of verified trees before the commit. The first
        ``accepted`` [R] + 1 nodes of ``path`` [R, L + 1], root first, are accepted.
        """

    def observe_scores(self, tree: Tree, logits: Tensor) -> None:
        """Receives the target's logits [R, N, V] after every node of verified trees."""

    def device_inputs(
        self,
        committed: CommittedTokens,
        fixed: bool = False,
    ) -> Sequence[HostDeviceInts]:
        """Returns the numbers that drafting needs on the device, for a single transfer. With
        ``fixed`` they are padded to the shape that every iteration after the first has.
        """
        return ()

    def root_logits(self, committed: CommittedTokens) -> Tensor:
        """Returns logits [R, 1, D, V] below the root."""
        raise NotImplementedError

    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        """Returns logits [R, F, D, V] below the frontier's F nodes."""
        raise NotImplementedError

    def guess_trees(
        self,
        committed: Sequence[Sequence[int]],
        width: int,
        depth: int,
    ) -> list[list[list[GuessedNode]]]:
        """Guesses whole trees, for drafters without distributions. Returns the nodes by row and
        level, best first, at most ``width`` on each of ``depth`` levels.
        """
        raise NotImplementedError

    def search_beams(self, roots: Sequence[int], width: int, length: int) -> Tensor:
        """Searches for whole beams; returns their tokens [R, W, L], best first."""
        raise NotImplementedError

    def commit(
        self,
        lengths: Sequence[int],
        nodes: Sequence[Sequence[int]],
        path: Tensor,
        cached_levels: int,
    ) -> None:
        """Moves each row's accepted path behind its ``lengths`` cached tokens. On a CPU the path is
        in ``nodes``, root first; on a GPU in ``path``, as in ``observe_path``. The nodes of
        ``cached_levels`` levels, the root's included, lie where the drafter ran them; it never ran
        the deepest level.
        """

    def update_cached_counts(
        self, lengths: Sequence[int], kept_counts: Sequence[int], cached_levels: int
    ) -> None:
        """Updates the host's counts of cached tokens after ``commit`` kept ``kept_counts`` nodes of
        each row, the root included.
        """

    def move_row(self, source: int, target: int) -> None:
        """Moves a row to the place of another row."""

    def take_forward_s(self) -> float:
        """Returns seconds of drafting since the last call, prompts excluded."""
        return float(self._timer.take_s()) if self._timer else 0.0


class DraftMemory:
    """State that a drafter keeps from row to row."""

    def remember(self, answers: Sequence[Sequence[int]]) -> None:
        """Receives the answers to all earlier prompts, in the prompts' order; the list grows from
        call to call.
        """


@dataclass(frozen=True)
class DraftResources:
    """The models, caches and heads that a drafter may use."""

    target: LanguageModel
    models: Sequence[LanguageModel]  # the draft models
    caches: Sequence[Any]  # a cache per draft model
    heads: Any  # the draft heads, if any
    rows: int  # rows of the caches
    heads_cache: Any = None  # the heads' cache, if they have one
    memory: DraftMemory | None = None  # None if the drafter remembers nothing


class Drafter(FormerMembers, ABC):
    """A decoder's ``drafter`` block: a frozen dataclass whose fields are the block's keys."""

    former_members: ClassVar = {
        "drafting": "make_state",
        "remembering": "make_memory",
        "more_slots": "extra_slots",
        "own_model": "has_own_model",
        "models": "model_count",
        "model": "make_own_model",
        "calls": "count_draft_calls",
        "reach": "find_max_depth",
        "layers": "get_target_layers",
        "revision": "file_digest",
    }
    kind: ClassVar[str]  # name in the registry
    # the tree policies that it works with; None: all that grow level by level
    policies: ClassVar[tuple[str, ...] | None] = None
    # the class of the heads that it needs on the target, else None
    heads: ClassVar[type[DraftHeads] | None] = None
    # whether it proposes a single chain, so that trees must have no siblings
    single: ClassVar[bool] = False
    passes: ClassVar[int | None] = None  # sequential passes for a tree; None: as many as levels

    @property
    def model_count(self) -> int:
        """Number of the pair's draft models that it uses."""
        return 0

    @property
    def has_own_model(self) -> bool:
        """Whether it drafts with a model that ``make_own_model`` makes from the target."""
        return False

    @property
    def file_digest(self) -> str:
        """Digest of the user's file that the drafter reads; "" if it reads none."""
        return ""

    def make_own_model(self, target: LanguageModel) -> LanguageModel:
        """Makes the draft model from the target. Raises UsageError if that is impossible."""
        raise NotImplementedError

    def count_draft_calls(self, depth: int) -> int:
        """Counts the sequential draft calls for a tree of that depth, which is L in MBSU."""
        return depth if self.passes is None else self.passes

    def find_max_depth(self, heads: DraftHeads | None) -> int | None:
        """Returns the largest number of levels that it can draft; None if unlimited. Raises
        UsageError if the heads were not trained for its settings.
        """
        return None

    def extra_slots(self, heads: DraftHeads | None) -> int:
        """Returns the number of extra cache slots per row, for drafters that guess several tokens
        at once.
        """
        return 0

    def get_target_layers(self, heads: DraftHeads | None, blocks: int) -> Layers:
        """Returns the indices of the hidden states that it reads, for a target of ``blocks``
        blocks.
        """
        return LAST if heads is not None else ()

    @classmethod
    def audit_cases(cls, model_count: int) -> tuple[Drafter, ...]:
        """Returns the drafters to audit with ``model_count`` draft models to a tree."""
        return (cls(),) if model_count == 1 else ()

    def make_memory(self) -> DraftMemory | None:
        """Makes an empty memory; None if it remembers nothing."""
        return None

    @abstractmethod
    def make_state(self, resources: DraftResources) -> DraftState:
        """Makes the state with which a batch's rows are drafted."""


def _declare_drafter(name: str, kind: type[Drafter]) -> type[Drafter]:
    kind.kind = name
    if kind.heads is not None:
        kind.heads.kind = name
    return kind


drafter: Registry[type[Drafter]] = Registry(
    "drafter",
    "spec_bench.drafters",
    _declare_drafter,
    within="spec_bench.draft",
)
"""The drafters by kind; also the decorator that registers one."""


def list_head_kinds() -> tuple[str, ...]:
    """Lists the kinds of drafters that need heads on the target."""
    return tuple(kind for kind, registered in drafter.items() if registered.heads is not None)


def get_heads_class(kind: str) -> type[DraftHeads]:
    """Returns the class of a kind of heads. Raises UsageError if there is no such kind."""
    if kind not in list_head_kinds():
        raise UsageError(f"heads must be one of {', '.join(list_head_kinds())}, got {kind!r}")
    heads = drafter[kind].heads
    assert heads is not None
    return heads


if not TYPE_CHECKING:
    __getattr__ = make_former_getattr(
        __name__, {"Drafting": "DraftState", "Equipment": "DraftResources"}
    )


class NoDraftState(DraftState):
    """State that drafts nothing, for autoregressive decoding and for beams without a draft."""

    recordable = is_forgetful = True


@drafter("none")
@dataclass(frozen=True)
class NoDrafter(Drafter):
    """Proposes nothing."""

    policies = ("root", "beam_root")

    def make_state(self, resources: DraftResources) -> DraftState:
        return NoDraftState()
