"""What policies of one form share: their size, its shorthand and the shape of their trees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from spec_bench.core.tree import TreeShape
from spec_bench.settings.fields import Count
from spec_bench.tree.base import GrownTree, within_bounds
from spec_bench.vocabulary.spec import Spec


@dataclass(frozen=True)
class Rectangle(GrownTree):
    """W nodes on each of L levels, ``WxL``.

    Attributes:
        width: W.
        depth: L.
    """

    width: Count
    depth: Count

    def __post_init__(self) -> None:
        within_bounds("width", self.width * self.depth)

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"width": spec.width, "depth": spec.depth}

    @property
    def spec(self) -> str:
        return f"{self.width}x{self.depth}"

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((self.width,) * self.depth, (self.width,) * self.depth)


@dataclass(frozen=True)
class Branching(GrownTree):
    """``widths[l]`` children for every node of level l, ``2-2-1``.

    Attributes:
        widths: children per node at each level.
    """

    widths: tuple[Count, ...]

    fixed_parents = True

    def __post_init__(self) -> None:
        within_bounds("widths", sum(accumulate(self.widths, mul)))

    @classmethod
    def of_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"widths": list(spec.numbers)}

    @property
    def spec(self) -> str:
        return "-".join(map(str, self.widths))

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape(tuple(accumulate(self.widths, mul)), self.widths)
