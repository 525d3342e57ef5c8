"""Prompts that are longer than the models take: cut where only the row's own text is, or left out.

The template stays whole: of every text that a row fills in, what is over a number of letters is cut
out of its middle, and the largest number is taken with which the prompt fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec_bench.tasks.example import Example

CUT = " ... "
"""Stands where letters were cut out."""
TREE_LEVELS = 64
"""Positions left for draft trees, the same for all decoders, so that all have the same prompts."""


def cut(value: Any, most: int | None) -> Any:
    """A text with its middle cut out where it is longer than so many letters; else the value."""
    if most is None or not isinstance(value, str) or len(value) <= most:
        return value
    head = (most + 1) // 2
    return value[:head] + CUT + value[len(value) - (most - head) :]


def fitted(
    example: Example,
    room: int,
    shortened: Callable[[Example, int], Example],
    tokens: Callable[[Example], int],
) -> Example:
    """The example, or with its texts cut to the most letters that leave its longest prompt ``room``
    tokens.

    Raises:
        ValueError: what is not the row's own is too long already.
    """
    if tokens(example) <= room:
        return example
    fits, over = -1, max(len(text) for text in example.turns)
    while over - fits > 1:
        middle = (fits + over) // 2
        if tokens(shortened(example, middle)) <= room:
            fits = middle
        else:
            over = middle
    if fits < 0:
        raise ValueError(
            f"prompt {example.id!r}: {tokens(shortened(example, 0))} tokens without any of its "
            f"row's texts, there is room for {room}; use task.overlong=skip"
        )
    return shortened(example, fits)
