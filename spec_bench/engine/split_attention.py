"""Attention in two parts: over the slots that all tokens see, without a mask, and over the others.

A mask rules out a GPU's kernels that divide long keys among its processors, and is itself as long
as the keys. The tokens of a tree differ in some slots at the end and, in a layer with a window, in
some at its edge; only those are masked. Each part is normalised by itself, and both are weighted
with what each summed to.

Letters: R rows, K heads, N tokens of a head, S slots, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FROM = 2048  # slots that all tokens see; below, a mask costs less than a second kernel
_WIDEST = 256  # D that the kernels take, a multiple of 8
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Span:
    """The slots ``first`` to ``last`` that all tokens of a pass see, and none before ``begin``."""

    begin: int
    first: int
    last: int

    def beside(self, values: Tensor, dim: int) -> Tensor:
        """The slots that some token may not see: those of [begin, first) and from ``last`` on."""
        after = values.narrow(dim, self.last, values.shape[dim] - self.last)
        if self.begin == self.first:
            return after
        edge = values.narrow(dim, self.begin, self.first - self.begin)
        return torch.cat([edge, after], dim=dim)


def span_of(shared: int, slots: int, reach: int | None = None, *, chunked: bool = False) -> Span:
    """Returns the slots that all tokens of a pass see in a layer whose window or chunk holds
    ``reach`` tokens (None: all). ``shared`` leading slots lie on every token's path; positions are
    at least that, and less than S = ``slots``.
    """
    if reach is None or reach >= slots:
        return Span(0, 0, shared)
    if chunked:
        begin, first = shared // reach * reach, (slots - 1) // reach * reach
    else:
        begin, first = max(0, shared - reach + 1), max(0, slots - reach)
    return Span(min(begin, shared), min(first, shared), shared)


def split_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, span: Span, scale: float
) -> Tensor:
    """Attention over all slots from ``span.begin`` on: of query [R, K, N, D], key and value [R, K,
    S, D], and a mask [R, 1, N, M] added to the scores of the M slots ``beside`` the span. Returns
    [R, K, N, D].
    """
    beside = attend(query, span.beside(key, 2), span.beside(value, 2), scale, mask)
    if span.first == span.last:
        return beside[0]
    count = span.last - span.first
    whole = key.narrow(2, span.first, count), value.narrow(2, span.first, count)
    return merged(*attend(query, *whole, scale), *beside)


def merged(left: Tensor, left_sum: Tensor, right: Tensor, right_sum: Tensor) -> Tensor:
    """Attention over two sets of slots from that over each [..., N, D] and the log of the sum of
    the exponentials of its scores [..., N].
    """
    wide = torch.promote_types(left.dtype, torch.float32)
    weight = torch.sigmoid((left_sum - right_sum).to(wide)).unsqueeze(-1)
    return torch.lerp(right.to(wide), left.to(wide), weight).to(left.dtype)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention [R, K, N, D], and the log of the sum of the exponentials of its scores [R, K, N];
    arguments as ``split_attention``'s.
    """
    aten = torch.ops.aten
    if query.device.type == "cpu":
        output, total = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scale
        )
        return output, total
    if mask is None and query.dtype in _HALVES:
        made = aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)
    else:
        mask = None if mask is None else mask.expand(-1, query.shape[1], -1, -1)
        made = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, True, scale=scale
        )
    return made[0], made[1][..., : query.shape[2]]  # sums are filled up


def has_kernels(device: torch.device, width: int, value_width: int) -> bool:
    """Whether ``attend`` runs for heads of these widths."""
    fits = width == value_width <= _WIDEST and width % 8 == 0
    return fits and device.type in ("cpu", "cuda")
