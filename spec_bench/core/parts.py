"""Parts of an iteration: work of fixed shapes whose only randomness is its draws'.

Growing a level and the walk are such parts. Elsewhere they are called; on a GPU draws that record
run each as one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from torch import Tensor

from spec_bench.core.draws import Draws

Result = TypeVar("Result")


class Parts(Protocol):
    """Draws that run parts in a way of their own."""

    def run_part(
        self, name: Hashable, function: Callable[..., Any], given: tuple[Tensor, ...], of: object
    ) -> Any:
        """``function(draws, *given)``; arguments as of ``run_part``."""
        ...


def run_part(
    draws: Draws, name: Hashable, function: Callable[..., Result], *given: Tensor, of: object = None
) -> Result:
    """Runs one part of an iteration: a function called with the draws and the tensors given, which
    change from one iteration to the next. Whatever else it reads never changes, or is ``of``: what
    an earlier part of this iteration made, that this one goes on with.

    Its name is the same in every iteration; its result holds until the next.
    """
    own = getattr(draws, "run_part", None)
    result: Result = function(draws, *given) if own is None else own(name, function, given, of)
    return result
