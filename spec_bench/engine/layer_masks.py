"""Attention masks of each kind of layer, computed from positions instead of slots.

A pass defines which slots each token may see: its own path and nothing else. A layer with a sliding
window or with chunks sees only a part of the path. The distance between two tokens of a path is the
number of visible slots between them, so windows apply equally to a tree's siblings, which have
different slots but the same position.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from spec_bench.core.host_device import cached_constant
from spec_bench.engine.split_attention import ALIGNED, compute_span
from spec_bench.system.errors import UsageError

Mask = Tensor | dict[str, Tensor]

# transformers' names of the kinds of layer that cache keys and values of single tokens, with the
# setting of such a layer's reach in tokens.
REACH = {
    "full_attention": None,
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}


# Families that make their own masks from slots, which for a tree's nodes are not positions.
_BY_SLOT = {
    "gpt_neo": "windows",
    "mpt": "alibi",
    "bloom": "alibi",
    "falcon": "alibi",
}


def read_distinct_attention_kinds(config: PretrainedConfig) -> tuple[str, ...]:
    """Returns the kinds of layer that a model has, by the rule of transformers' own mask making.

    ``layer_types`` names the kind of each layer; without it the same window, or chunk size, holds
    for all. Raises UsageError if a kind caches anything but keys and values of single tokens, or if
    the family makes its own masks.
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
    """Makes a pass's attention masks in the module's form: a dict by kind if its layers differ,
    else a single mask for all. Windows are read from the config at every pass, as transformers
    does.
    """

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._dtype = dtype
        self.kinds = read_distinct_attention_kinds(config)

    @property
    def longest_window(self) -> int | None:
        """Length of the longest window or chunk in tokens; None if there is none."""
        settings = [setting for kind in self.kinds if (setting := REACH[kind])]
        reaches = [getattr(self._config, setting) for setting in settings]
        return max((reach for reach in reaches if reach is not None), default=None)

    def make_masks(self, visible: Tensor, shared: int = 0) -> Mask:
        """Makes additive masks [R, 1, T, S] from each token's whole path, ``visible`` [R, T, S]
        bool: a single mask, or a dict by kind of layer. If ``shared`` leading slots lie on every
        path, masks may be split, with a ``span``.
        """
        masks_by_key: dict[str | None, Any] = {}  # kinds that see all slots share a mask
        masks = {}
        for kind in self.kinds:
            setting = REACH[kind]
            chunked = kind == "chunked_attention"
            reach = None if setting is None else getattr(self._config, setting)
            # No path is longer than the slots that are read, so such a reach cuts nothing.
            if reach is not None and reach >= visible.shape[-1]:
                reach = None
            key = None if reach is None else kind
            if key not in masks_by_key:
                layer_visible = (
                    visible if reach is None else apply_window(visible, reach, chunked=chunked)
                )
                if shared:
                    span = compute_span(shared, visible.shape[-1], reach, chunked=chunked)
                    layer_visible = span.select_partly_masked(layer_visible)
                masks_by_key[key] = self.make_additive_mask(layer_visible)
                if shared:
                    masks_by_key[key].span = span
            masks[kind] = masks_by_key[key]
        return masks if len(masks) > 1 else masks[self.kinds[0]]

    def make_additive_mask(self, visible: Tensor) -> Tensor:
        """Makes an additive mask [R, 1, T, S]: 0 at visible slots, the lowest number elsewhere.

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
    """Cuts paths [R, T, S] bool to a sliding window of the last ``reach`` tokens, including the
    token itself or, if chunked, to the token's own chunk of ``reach`` positions.
    """
    count = visible.cumsum(dim=-1, dtype=torch.int32)  # position along the path, plus 1
    total = count[..., -1:]
    if chunked:
        own_chunk, last_chunk = (
            (length - 1).div(reach, rounding_mode="floor") for length in (count, total)
        )
        return visible & (own_chunk == last_chunk)
    return visible & (count > total - reach)


@contextmanager
def temporarily_shorten_windows(config: PretrainedConfig, reach: int) -> Iterator[None]:
    """Shortens a model's windows and chunks to ``reach`` tokens in this block."""
    names = [name for name in REACH.values() if name and getattr(config, name, None) is not None]
    original = {name: getattr(config, name) for name in names}
    try:
        for name, value in original.items():
            setattr(config, name, min(reach, value))
        yield
    finally:
        for name, value in original.items():
            setattr(config, name, value)
