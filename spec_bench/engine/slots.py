"""Which slots of a cache a pass writes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spec_bench.core.transfer import Known, places


def index_of(starts: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor] | None:
    """A plan's ``index`` for tokens [R, T] whose first slots only the device knows; else None."""
    if getattr(starts, "exact", True):
        return None
    return places(len(starts), tokens.device).unsqueeze(1), slots_of(starts, tokens)


def slots_of(starts: Sequence[int], tokens: Tensor) -> Tensor:
    """[R, T] the adjacent slots of tokens [R, T], from their row's first slot on."""
    first = Known.of(starts).on(tokens.device).unsqueeze(1)
    return first + places(tokens.shape[1], tokens.device)
