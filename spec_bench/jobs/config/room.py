"""Cache slots and positions that a decoder takes, from its settings alone; builds no decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def levels_of(decoder: Mapping[str, Any]) -> int:
    """Positions that a draft tree takes behind the text: what the built decoder's ``depth`` says.

    Args:
        decoder: its resolved settings.
    """
    from spec_bench.decode.config import read_decoder  # needs torch, which refusals do not
    from spec_bench.tree.base import GrownTree

    tree: Any = read_decoder(decoder).tree
    return int(tree.shape.depth if isinstance(tree, GrownTree) else getattr(tree, "depth", 0))


def slots_of(decoder: Mapping[str, Any], prompt: int, new_tokens: int) -> int:
    """What the built decoder's ``slots_needed`` says.

    Args:
        decoder: its resolved settings.
        prompt: tokens of the longest prompt.
        new_tokens: limit on an answer.
    """
    from spec_bench.decode.config import read_decoder  # needs torch, which refusals do not
    from spec_bench.tree.base import GrownTree

    config = read_decoder(decoder)
    tree: Any = config.tree
    if isinstance(tree, GrownTree):
        return prompt + new_tokens + tree.slots
    branches = 1 if getattr(config.verifier, "one_cache", False) else tree.width
    return prompt + branches * (new_tokens + 2) + getattr(tree, "depth", 0) * tree.width
