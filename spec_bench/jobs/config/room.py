"""Cache slots and positions that a decoder takes, before it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_bench.decode.config import DecoderConfig


def levels_of(config: DecoderConfig) -> int:
    """Positions that a draft tree takes behind the text, the built decoder's ``depth``."""
    from spec_bench.tree.base import GrownTree  # needs torch, which refusals do not

    tree: Any = config.tree
    return int(tree.shape.depth if isinstance(tree, GrownTree) else getattr(tree, "depth", 0))


def slots_of(config: DecoderConfig, prompt: int, new_tokens: int) -> int:
    """What the built decoder's ``slots_needed`` says; ``prompt`` is the tokens of the longest
    prompt.
    """
    from spec_bench.tree.base import GrownTree  # needs torch, which refusals do not

    tree: Any = config.tree
    if isinstance(tree, GrownTree):
        return prompt + new_tokens + tree.slots
    branches = 1 if getattr(config.verifier, "one_cache", False) else tree.width
    return prompt + branches * (new_tokens + 2) + getattr(tree, "depth", 0) * tree.width
