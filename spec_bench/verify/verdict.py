"""What a node rule is given and what it decides.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] where all children share one draft
distribution, [B, C, V] where each has its own, None where proposals are one-hot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class Verdict(NamedTuple):
    """What a node rule decides.

    Attributes:
        acceptance: [B, C] P(accept child j | children before j rejected); 0 for absent children.
        residual: [B, V] law of the token if every child is rejected.
    """

    acceptance: Tensor
    residual: Tensor


class NodeRule(Protocol):
    """p [B, V], q [B, 1 or C, V] or None, tokens [B, C], valid [B, C] -> Verdict."""

    def __call__(self, p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict: ...


class Steps(NamedTuple):
    """A node rule child by child, for one node on a host: the numbers of its verdict, no others.

    Attributes:
        accepts: p [1, V] after the children rejected so far, q [1, V] that this one was drawn
            from (None: one-hot), its token -> P(it is accepted).
        leaves: the same -> p [1, V] after its rejection too.
    """

    accepts: Callable[[Tensor, Tensor | None, int], float]
    leaves: Callable[[Tensor, Tensor | None, int], Tensor]


@dataclass(frozen=True)
class OneByOne:
    """A node rule that can also be asked child by child.

    Attributes:
        whole: the rule.
        steps: the same, child by child.
    """

    whole: NodeRule
    steps: Steps

    def __call__(self, p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
        return self.whole(p, q, tokens, valid)
