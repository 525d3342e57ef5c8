"""Attention that reads a cache once, however many query heads share a key head, and in two parts
where it is long.

transformers' own way over torch's fused attention packs the query heads of a key head for a single
token, and repeats all keys and values for several; so a tree would pay for the cache as many times
as a key head has queries, and decoding token by token once. Here both are packed alike. A pass
whose mask has a ``span`` goes over the slots that all tokens see without a mask.

Letters: R rows, H query heads, K key heads, G = H / K, T tokens of one pass, S slots, D head width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from spec_bench.core.host_device import cached_constant
from spec_bench.engine.architectures import get_max_sequence_length
from spec_bench.system.errors import UsageError

NAME = "sdpa_grouped"
SPLIT = "sdpa_split"
ALIGNED = 8  # a mask's rows start at multiples of so many elements on a GPU


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    pack: bool = True,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention with the signature that transformers expects.

    Takes query [R, H, T, D], the heads of one key head adjacent, key and value [R, K, S, D], and a
    mask [R, 1, T, S] that is added to the scores times ``scaling`` (None: 1 / sqrt(D)). If it needs
    what else is given, or the mask has no span and ``pack`` is off, transformers' own function
    runs. Returns [R, T, H, D], and None for the weights.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    span = getattr(attention_mask, "span", None)
    packs = pack and groups > 1 and attention_mask is not None and attention_mask.shape[1] == 1
    if span is None and not (packs and kwargs.get("position_bias") is None):
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            **kwargs,
        )
    assert attention_mask is not None
    rows, heads, count, width = query.shape
    packed = query.reshape(rows, heads // groups, groups * count, width)
    mask = attention_mask if groups == 1 else _repeat_mask_per_group(attention_mask, groups)
    if span is not None:
        scale = width**-0.5 if scaling is None else scaling
        output = attend_split_by_span(packed, key, value, mask, span, scale)
    else:
        output = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(rows, heads, count, -1).transpose(1, 2).contiguous(), None


def _repeat_mask_per_group(mask: Tensor, groups: int) -> Tensor:
    """[R, 1, T, S] -> [R, 1, G T, S]; made once for all layers of a pass."""
    packed = getattr(mask, "packed", None)
    if packed is None:
        rows, _, count, slots = mask.shape
        # Rows start at multiples of 8 elements, or a GPU's kernel would copy it in every layer.
        room = mask.new_zeros((rows, groups, count, slots + -slots % ALIGNED))
        room[..., :slots].copy_(mask.expand(-1, groups, -1, -1))
        packed = room.view(rows, 1, groups * count, -1)[..., :slots]
        cast(Any, mask).packed = packed
    return cast(Tensor, packed)


def install_grouped_attention(module: PreTrainedModel) -> bool:
    """Makes a model with fewer key heads use ``grouped_attention``; returns whether it does."""
    return _has_grouped_heads(module) and install_attention(module, NAME, grouped_attention)


def install_split_attention(module: PreTrainedModel) -> bool:
    """Makes a model split its attention over long prefixes, where that is quicker; returns whether
    it does. A CPU gains by it where query heads share key heads (0.3 to 1.0 of a pass's time).
    """
    longest = get_max_sequence_length(module.config.get_text_config())
    if longest is not None and longest <= FROM:
        return False
    if module.device.type != "cuda" and not _has_grouped_heads(module):
        return False
    return supports_spans(module) or install_attention(
        module, SPLIT, partial(grouped_attention, pack=False)
    )


def _has_grouped_heads(module: PreTrainedModel) -> bool:
    config = module.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1)
    return (getattr(config, "num_key_value_heads", None) or heads) != heads


def supports_spans(module: PreTrainedModel) -> bool:
    """Returns whether a model's attention takes masks with a span."""
    return _get_attention_name(module) in (NAME, SPLIT)


def _get_attention_name(module: PreTrainedModel) -> str:
    return getattr(module.config.get_text_config(), "_attn_implementation", "")


def install_attention(module: PreTrainedModel, name: str, attention: Callable[..., Any]) -> bool:
    """Replaces torch's fused attention by ours; returns whether the model had it."""
    is_supported = getattr(module, "_supports_attention_backend", False)
    if _get_attention_name(module) != "sdpa" or not is_supported:
        return False
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    module.set_attn_implementation(name)
    return True


# Attention in two parts: over the slots that all tokens see, without a mask, and over the others.
#
# A mask rules out a GPU's kernels that divide long keys among its processors, and is itself as
# long as the keys. The tokens of a tree differ in some slots at the end and, in a layer with a
# window, in some at its edge; only those are masked. Each part is normalised by itself, and both
# are weighted with what each summed to.
#
# Letters: R rows, K heads, N tokens of a head, S slots, D head width.


FROM = 2048  # slots that all tokens see; below, a mask costs less than a second kernel
_WIDEST = 256  # D that the kernels take, a multiple of 8
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class VisibleSpan:
    """The slots ``first`` to ``last`` that all tokens of a pass see, and none before ``begin``."""

    begin: int
    first: int
    last: int

    def select_partly_masked(self, values: Tensor, dim: int) -> Tensor:
        """Selects the slots that need a mask: [begin, first), and from ``last`` on."""
        tail = values.narrow(dim, self.last, values.shape[dim] - self.last)
        if self.begin == self.first:
            return tail
        edge = values.narrow(dim, self.begin, self.first - self.begin)
        return torch.cat([edge, tail], dim=dim)


def compute_span(
    shared: int,
    slots: int,
    reach: int | None = None,
    *,
    chunked: bool = False,
) -> VisibleSpan:
    """Computes the slots that all tokens of a pass see in a layer whose window or chunk holds
    ``reach`` tokens (None: all). ``shared`` leading slots lie on every token's path, and positions
    are from ``shared`` to ``slots`` - 1.
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
    """Computes attention over all slots from ``span.begin`` on: of query [R, K, N, D], key and
    value [R, K, S, D], and a mask [R, 1, N, M] added to the scores of the M slots outside of the
    span. Returns [R, K, N, D].
    """
    masked_part = attend_with_log_sums(
        query,
        span.select_partly_masked(key, 2),
        span.select_partly_masked(value, 2),
        scale,
        mask,
    )
    if span.first == span.last:
        return masked_part[0]
    count = span.last - span.first
    unmasked = key.narrow(2, span.first, count), value.narrow(2, span.first, count)
    return merge_attention(*attend_with_log_sums(query, *unmasked, scale), *masked_part)


def merge_attention(left: Tensor, left_sum: Tensor, right: Tensor, right_sum: Tensor) -> Tensor:
    """Merges attention over two sets of slots, from each one's output [..., N, D] and the
    log-sum-exp of its scores [..., N].
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
    """Returns attention [R, K, N, D], and the log of its scores' summed exponentials [R, K, N];
    arguments as ``attend_split_by_span``'s.
    """
    aten = torch.ops.aten
    if query.device.type == "cpu":
        output, total = aten._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            attn_mask=mask,
            scale=scale,
        )
        return output, total
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
    return outputs[0], outputs[1][..., : query.shape[2]]  # sums are filled up


def has_attention_kernels(device: torch.device, width: int, value_width: int) -> bool:
    """Returns whether ``attend_with_log_sums`` runs for heads of these widths."""
    fits = width == value_width <= _WIDEST and width % 8 == 0
    return fits and device.type in ("cpu", "cuda")


# Which slots each layer of a model attends to: by the layer's kind, by position and not by slot.
#
# A pass says which slots every token may see: its own path and nothing else. A layer with a sliding
# window or with chunks sees less of it. A token's distance on the path follows from the path alone,
# as the number of visible slots between the two; so a tree's siblings, which have different slots
# but one position, are cut alike.


Mask = Tensor | dict[str, Tensor]

# What transformers calls the kinds of layer that keep keys and values of single tokens, and the
# setting that says how far such a layer looks.
REACH = {
    "full_attention": None,
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}


# Families that make masks of their own by slot, which for a tree's nodes is not the position.
_BY_SLOT = {
    "gpt_neo": "windows",
    "mpt": "alibi",
    "bloom": "alibi",
    "falcon": "alibi",
}


def read_attention_kinds(config: PretrainedConfig) -> tuple[str, ...]:
    """Returns the kinds of layer that a model has, by the rule of transformers' own mask making:
    ``layer_types`` names one per layer; without it one window, or one chunk size, holds for all.

    Raises UsageError for a kind that caches anything but keys and values of single tokens, and
    for a family that makes its own masks.
    """
    family = config.model_type
    if family in _BY_SLOT and getattr(config, "alibi", True):  # of Falcons only some have it
        raise UsageError(
            f"models of the kind {family!r} make masks of their own ({_BY_SLOT[family]}), which "
            "cannot be run over trees of tokens"
        )
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [k for k, name in REACH.items() if name and getattr(config, name, None) is not None]
        kinds = kinds[:1] or ["full_attention"]
    for kind in kinds:
        if kind not in REACH:
            raise UsageError(
                f"it has layers of the kind {kind!r}; only {', '.join(REACH)} can be run over "
                "trees of tokens"
            )
    return tuple(dict.fromkeys(kinds))


class LayerMaskMaker:
    """Makes a pass's attention masks in the form that the module takes: a dict by kind if its
    layers differ, else a single mask for all. Windows are read from the config at every pass, as
    transformers does.
    """

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._dtype = dtype
        self.kinds = read_attention_kinds(config)

    @property
    def longest_reach(self) -> int | None:
        """Tokens of the longest window or chunk; None if there is none."""
        settings = [setting for kind in self.kinds if (setting := REACH[kind])]
        reaches = [getattr(self._config, setting) for setting in settings]
        return max((reach for reach in reaches if reach is not None), default=None)

    def make_masks(self, visible: Tensor, shared: int = 0) -> Mask:
        """Makes masks [R, 1, T, S] to add, from each token's whole path, ``visible`` [R, T, S]
        bool: one, or a dict if kinds differ. Where ``shared`` leading slots lie on every path they
        are split, and have a ``span``.
        """
        masks_by_key: dict[str | None, Tensor] = {}  # kinds that see all slots share a mask
        masks = {}
        for kind in self.kinds:
            setting = REACH[kind]
            chunked = kind == "chunked_attention"
            reach = None if setting is None else getattr(self._config, setting)
            # No path is longer than the slots that are read: a reach of that many cuts nothing.
            if reach is not None and reach >= visible.shape[-1]:
                reach = None
            key = None if reach is None else kind
            if key not in masks_by_key:
                layer_visible = (
                    visible if reach is None else apply_window(visible, reach, chunked=chunked)
                )
                span = (
                    compute_span(shared, layer_visible.shape[-1], reach, chunked=chunked)
                    if shared
                    else None
                )
                masks_by_key[key] = self.make_additive_mask(
                    layer_visible if span is None else span.select_partly_masked(layer_visible, 2)
                )
                if span is not None:
                    cast(Any, masks_by_key[key]).span = span
            masks[kind] = masks_by_key[key]
        return masks if len(masks) > 1 else masks[self.kinds[0]]

    def make_additive_mask(self, visible: Tensor) -> Tensor:
        """[R, 1, T, S]: 0 where a slot is seen, the lowest number elsewhere.

        On a GPU the rows start at multiples of 8 elements; otherwise attention would copy the mask
        in every layer.
        """
        count = visible.shape[-1]
        lowest = torch.finfo(self._dtype).min
        seen, hidden = cached_constant((0.0, lowest), visible.device, self._dtype)
        if not visible.is_cuda:
            return torch.where(visible, seen, hidden).unsqueeze(1)
        room = (*visible.shape[:-1], count + -count % ALIGNED)
        mask = torch.empty(room, dtype=self._dtype, device=visible.device)[..., :count]
        return torch.where(visible, seen, hidden, out=mask).unsqueeze(1)


def apply_window(visible: Tensor, reach: int, *, chunked: bool = False) -> Tensor:
    """Cuts paths [R, T, S] bool to a sliding window of ``reach`` tokens, including the token
    itself, or, if chunked, to the token's own chunk of ``reach`` positions.
    """
    count = visible.cumsum(dim=-1, dtype=torch.int32)  # one more than the position, along the path
    total = count[..., -1:]
    if chunked:
        own_chunk, last_chunk = (
            (length - 1).div(reach, rounding_mode="floor") for length in (count, total)
        )
        return visible & (own_chunk == last_chunk)
    return visible & (count > total - reach)


@contextmanager
def temporarily_shorten_windows(config: PretrainedConfig, reach: int) -> Iterator[None]:
    """Temporarily replaces a model's windows and chunks by ones of ``reach`` tokens."""
    original: dict[str, Any] = {
        name: getattr(config, name, None) for name in REACH.values() if name
    }
    original = {name: value for name, value in original.items() if value is not None}
    try:
        for name, value in original.items():
            setattr(config, name, min(reach, value))
        yield
    finally:
        for name, value in original.items():
            setattr(config, name, value)
