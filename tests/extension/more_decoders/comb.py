"""A tree with teeth: every level has K nodes, all of them children of the level's first node."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import gumbel_top_k
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count
from spec_bench.tree.base import AuditTree, GrownTree, distinct, policy, within_bounds
from spec_bench.vocabulary.spec import Spec


@policy("comb", forms=("product",), takes="KxL: L levels of K nodes, such as 3x4")
@dataclass(frozen=True)
class Comb(GrownTree):
    """K distinct children of one node per level; only the first of them has children."""

    teeth: Count  # K
    depth: Count  # L

    def __post_init__(self) -> None:
        within_bounds("teeth", self.teeth * self.depth)

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"teeth": spec.width, "depth": spec.depth}

    @property
    def spec(self) -> str:
        return f"{self.teeth}x{self.depth}"

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((self.teeth,) * self.depth, (self.teeth,) * self.depth)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return distinct(settings)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        log_q = scores[:, :1, 0]  # [R, 1, V] below the level's first node
        deterministic = tree.siblings == "deterministic"
        noise = torch.zeros_like(log_q) if deterministic else draws.gumbel(log_q)
        tokens, valid = gumbel_top_k(log_q, noise, self.teeth)
        missing = (0, self.teeth - tokens.shape[-1])  # more teeth than there are tokens
        tokens, valid = pad(tokens, missing).flatten(1), pad(valid, missing).flatten(1)
        parent = torch.zeros(self.teeth, dtype=torch.long, device=tokens.device)
        tree.add_level(tokens, parent, valid, None if deterministic else scores.exp())

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2, 2)),)
