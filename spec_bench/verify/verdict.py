"""What a node rule is given and what it decides.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] where all children share one draft
distribution, [B, C, V] where each has its own, None where proposals are one-hot.
"""

from __future__ import annotations

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
