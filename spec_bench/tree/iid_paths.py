"""K independent paths from the root: SpecTr's drafts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count
from spec_bench.tree.base import AuditTree, GrownTree, policy, within_bounds
from spec_bench.vocabulary.spec import Spec


@policy("iid_paths", forms=("product",), takes="KxL: K paths of length L, such as 4x3")
@dataclass(frozen=True)
class IidPaths(GrownTree):
    """K i.i.d. paths of length L (SpecTr, arXiv 2310.15141; RSD section 5).

    Paths are kept apart even where they agree; the walk treats equal prefixes as one node whose
    candidates are the next tokens of all paths still alive, with multiplicity. Or they are merged:
    a node for every distinct prefix, copies absent. Then a node's children are drawn without
    replacement: that one more distinct token came says nothing about which one.

    Attributes:
        paths: K.
        depth: L.
        merged: whether equal prefixes become one node.
    """

    paths: Count
    depth: Count
    merged: bool = False

    def __post_init__(self) -> None:
        within_bounds("paths", self.paths * self.depth)

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"paths": spec.width, "depth": spec.depth}

    @property
    def spec(self) -> str:
        return f"{self.paths}x{self.depth}"

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((self.paths,) * self.depth, (self.paths,) * self.depth)

    @property
    def merge_copies(self) -> bool:  # type: ignore[override]
        return not self.merged

    @property
    def fixed_parents(self) -> bool:  # type: ignore[override]
        return not self.merged

    @property
    def revision(self) -> int:
        return int(self.merged)  # 1: what follows a copy on level 2 is kept, too

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "without_replacement" if self.merged else "iid"

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        q = scores.exp()
        first = tree.grown == 0
        tokens = draws.categorical(q.squeeze(2), self.paths if first else 1).flatten(1)
        path = torch.arange(self.paths, device=q.device)
        parent = torch.zeros_like(path) if first else path
        if not self.merged:
            tree.add_level(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), q)
            return
        # Each path goes on below the first one that has its prefix: [R, K] by path.
        above = parent.expand_as(tokens) if first else tree.carried[0]
        same = (tokens.unsqueeze(2) == tokens.unsqueeze(1)) & (
            above.unsqueeze(2) == above.unsqueeze(1)
        )
        earliest = same.byte().argmax(dim=2)  # the first of equals
        tree.carried = (earliest,)
        tree.add_level(tokens, above, earliest == path, None, scores.squeeze(2))

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (
            AuditTree(cls(2, 2)),
            AuditTree(cls(2, 2, merged=True)),
            AuditTree(cls(3, 1, merged=True)),
        )
