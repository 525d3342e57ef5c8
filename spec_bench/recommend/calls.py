"""From chances of passing positions to the target calls that a whole text takes.

A call at position t of a text of T tokens delivers what it accepts and one token more. With P(m|t)
the chance that it accepts m given the text, the rest takes n(t) = 1 + sum_m P(m|t) n(t + m + 1)
calls. Every exact decoder writes the same text with the same probability, so the mean over texts of
plain decoding is the decoder's too.
"""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_by_level(passes: Tensor) -> Tensor:
    """P(accepted >= i | text) of trees with equal widths on each level.

    Args:
        passes: [L, T] chance to pass position t on level i.

    Returns:
        [L, T]: entry (i, t) that at least i + 1 tokens are accepted from position t on; 0 where the
        text ends before.
    """
    depth, length = passes.shape
    chances, going = [], torch.ones(length, dtype=passes.dtype)
    for level in range(depth):
        shifted = torch.zeros(length, dtype=passes.dtype)
        if level < length:
            shifted[: length - level] = passes[level, level:]
        going = going * shifted
        chances.append(going)
    return torch.stack(chances) if chances else passes


def at_least_by_block(ratio: Tensor, depth: int) -> Tensor:
    """P(accepted >= i | text) of block verification: min(1, min over j <= i of prod q/p).

    Args:
        ratio: [T] q/p of the text's token at each position.
        depth: L.

    Returns:
        [L, T] as ``at_least_by_level``'s.
    """
    length = len(ratio)
    chances, product, least = [], torch.ones_like(ratio), torch.ones_like(ratio)
    for level in range(depth):
        shifted = torch.zeros_like(ratio)
        if level < length:
            shifted[: length - level] = ratio[level:]
        product = product * shifted
        least = torch.minimum(least, product)
        chances.append(least)
    return torch.stack(chances) if chances else ratio.new_zeros((0, length))


def drafted_on(sure: Tensor, depth: int, confidence: float, path: float | None) -> Tensor:
    """Whether a chain that stops behind a doubtful token still drafts on each level.

    Levels above are passed, so that what was drafted there is the text.

    Args:
        sure: [T] the draft's probability of the text's token, at temperature 1.
        depth: L.
        confidence: a token with less stops the chain behind it.
        path: so does a token with which the product since the root is less; None: never.

    Returns:
        [L, T]: entry (i, t) 1 where a chain from position t on drafts token i, else 0.
    """
    length = len(sure)
    chances, going, product = [], torch.ones_like(sure), torch.ones_like(sure)
    for level in range(depth):
        chances.append(going)
        shifted = torch.zeros_like(sure)
        if level < length:
            shifted[: length - level] = sure[level:]
        product = product * shifted
        going = going * (shifted >= confidence)
        if path is not None:
            going = going * (product >= path)
    return torch.stack(chances) if chances else sure.new_zeros((0, length))


def expected_calls(at_least: Tensor) -> float:
    """Target calls for the whole text.

    Args:
        at_least: [L, T] P(accepted >= i + 1 from position t on).
    """
    depth, length = at_least.shape
    bounds = torch.cat(
        [torch.ones((1, length)), at_least, torch.zeros((1, length))], dim=0
    ).tolist()
    calls = [0.0] * (length + depth + 2)
    for start in reversed(range(length)):
        calls[start] = 1.0 + sum(
            (bounds[m][start] - bounds[m + 1][start]) * calls[start + m + 1]
            for m in range(depth + 1)
        )
    return calls[0]
