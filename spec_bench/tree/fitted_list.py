"""Sequoia's tree: a listed tree that is the best one for a pair's own acceptances."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from spec_bench.core.tree import TreeShape
from spec_bench.settings.fields import Count
from spec_bench.tree.base import AuditTree, policy
from spec_bench.tree.node_list import RankPath
from spec_bench.tree.sampled_list import SampledList
from spec_bench.vocabulary.spec import Spec

_NODES = re.compile("@([0-9]{1,9})")


@policy("fitted_list", forms=("name",), takes="@N: a number of nodes such as @14")
@dataclass(frozen=True)
class FittedList(SampledList):
    """The N nodes that are worth most to a pair (arXiv 2402.12374, section 3.1).

    Which nodes they are follows from acceptances that were measured on the pair, task and sampling
    (``spec_bench fit_tree``); a job fills them in. Without them it grows nothing.
    """

    nodes: tuple[RankPath, ...] = ()  # paths of ranks; none: not filled in
    total: Count = 14  # N

    drafters = ("language_model",)

    def __post_init__(self) -> None:
        if not self.nodes:
            return
        super().__post_init__()
        if len(self.nodes) != self.total:
            raise ValueError(f"nodes must be as many as total, {self.total}, got {len(self.nodes)}")

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        match = _NODES.fullmatch(spec.name)
        return {"total": int(match[1])} if match else None

    @property
    def spec(self) -> str:
        return f"@{self.total}"

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The nodes by depth and then by rank.

        Raises:
            ValueError: they were not filled in.
        """
        if not self.nodes:
            raise ValueError(f"no tree of {self.total} nodes was fitted to these models")
        return super().paths

    @cached_property
    def shape(self) -> TreeShape:
        """The tree's; not filled in, that of as many siblings, to be checked by."""
        return super().shape if self.nodes else TreeShape((self.total,), (self.total,))

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(((0,), (1,), (0, 0)), 3)),)
