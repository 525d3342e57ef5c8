"""Attention in two parts: without a mask over slots that all tokens see, with a mask over the
others.

A mask rules out a GPU's kernels that divide long keys among its processors, and is as long as the
keys. The tokens of a tree differ only in some slots at the end and, in a layer with a window, at
its edge; only these slots are masked. Each part is normalised separately; the parts are then
weighted by their sums of exponentials.

Letters: R rows, K heads, N tokens of a head, S slots, D head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 8  # on a GPU a mask's rows start at multiples of this number of elements
FROM = 2048  # least number of shared slots to split; below, a mask costs less than a second kernel
_WIDEST = 256  # largest D of the kernels, which must be a multiple of 8
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class VisibleSpan:
    """Range of the slots that tokens of a pass see, and the range of those that need no mask."""

    visible_start: int  # the first slot that any token sees
    unmasked_start: int  # the first slot that all tokens see
    unmasked_end: int  # the slot after the last slot that all tokens see

    def select_partly_masked(self, values: Tensor) -> Tensor:
        """Selects the slots, on the third axis, that need a mask: visible slots before and after
        the unmasked range.
        """
        tail = values.narrow(2, self.unmasked_end, values.shape[2] - self.unmasked_end)
        if self.visible_start == self.unmasked_start:
            return tail
        edge = values.narrow(2, self.visible_start, self.unmasked_start - self.visible_start)
        return torch.cat([edge, tail], dim=2)


def compute_span(
    shared: int,
    slots: int,
    reach: int | None = None,
    *,
    chunked: bool = False,
) -> VisibleSpan:
    """Computes the span of a pass in a layer whose window or chunk holds ``reach`` tokens (None:
    all). ``shared`` leading slots lie on every token's path, and positions are from ``shared`` to
    ``slots`` - 1.
    """
    if reach is None or reach >= slots:
        return VisibleSpan(0, 0, shared)
    if chunked:
        begin = shared // reach * reach
        start = (slots - 1) // reach * reach
    else:
        begin = max(0, shared - reach + 1)
        start = max(0, slots - reach)
    return VisibleSpan(min(begin, shared), min(start, shared), shared)


def attend_split_by_span(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    span: VisibleSpan,
    scale: float,
) -> Tensor:
    """Computes attention over all slots from ``span.visible_start`` on: of query [R, K, N, D],
    key and value [R, K, S, D], and a mask [R, 1, N, M] added to the scores of the M slots that
    ``select_partly_masked`` selects. Returns [R, K, N, D].
    """
    masked_part = attend_with_log_sums(
        query,
        span.select_partly_masked(key),
        span.select_partly_masked(value),
        scale,
        mask,
    )
    if span.unmasked_start == span.unmasked_end:
        return masked_part[0]
    count = span.unmasked_end - span.unmasked_start
    unmasked = (
        key.narrow(2, span.unmasked_start, count),
        value.narrow(2, span.unmasked_start, count),
    )
    return merge_attention(*attend_with_log_sums(query, *unmasked, scale), *masked_part)


def merge_attention(left: Tensor, left_sum: Tensor, right: Tensor, right_sum: Tensor) -> Tensor:
    """Merges attention over two sets of slots, given each set's output [..., N, D] and log-sum-exp
    of scores [..., N].
    """
    wide = torch.promote_types(left.dtype, torch.float32)
    weight = torch.sigmoid((left_sum - right_sum).to(wide)).unsqueeze(-1)
    return torch.lerp(right.to(wide), left.to(wide), weight).to(left.dtype)


def attend_with_log_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes attention [R, K, N, D] and the log-sum-exp of its scores [R, K, N], with the
    arguments of ``attend_split_by_span``.
    """
    aten = torch.ops.aten
    if query.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            attn_mask=mask,
            scale=scale,
        )
    if mask is None and query.dtype in _HALVES:
        outputs = aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)
    else:
        mask = None if mask is None else mask.expand(-1, query.shape[1], -1, -1)
        outputs = aten._scaled_dot_product_efficient_attention(
            query,
            key,
            value,
            mask,
            True,
            scale=scale,
        )
    return outputs[0], outputs[1][..., : query.shape[2]]  # the kernel pads the sums


def has_attention_kernels(device: torch.device, width: int, value_width: int) -> bool:
    """Returns whether ``attend_with_log_sums`` supports heads of these widths on this device."""
    fits = width == value_width <= _WIDEST and width % 8 == 0
    return fits and device.type in ("cpu", "cuda")
