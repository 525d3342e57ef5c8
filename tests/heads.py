"""Small draft heads for tests: sure of something, right or wrong, so that trees are not trivial."""

from __future__ import annotations

import torch

from spec_bench.draft.medusa import MedusaHeads, MedusaShape
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape


def medusa_heads(hidden: int, vocab: int, heads: int = 4, seed: int = 0) -> MedusaHeads:
    """Random heads whose weights are large enough to prefer something."""
    torch.manual_seed(seed)
    made = MedusaHeads(MedusaShape(hidden, vocab, heads))
    return _shaken(made)


def recurrent_head(
    hidden: int, vocab: int, *, recurrent: bool = True, seed: int = 0
) -> RecurrentHead:
    """A random head whose weights are large enough to prefer something."""
    torch.manual_seed(seed)
    return _shaken(RecurrentHead(RecurrentShape(hidden, vocab, 1, recurrent)))


def _shaken(made: torch.nn.Module) -> torch.nn.Module:  # type: ignore[type-arg]
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return made.eval()
