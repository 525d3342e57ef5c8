"""The smallest trees: the root alone, and a chain of draft tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count
from spec_bench.tree.base import AuditTree, GrownTree, policy
from spec_bench.tree.widths import grow_iid
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

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        """Nothing grows."""
        raise AssertionError("a root has no levels")

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls()),)


@policy("chain", forms=("number",), takes="a draft length such as 3")
@dataclass(frozen=True)
class Chain(GrownTree):
    """One child per node: speculative decoding as first published.

    Attributes:
        depth: L.
    """

    depth: Count

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
