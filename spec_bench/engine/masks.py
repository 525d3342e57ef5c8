"""Which slots each layer of a model attends to: by the layer's kind, by position and not by slot.

A pass says which slots every token may see: its own path and nothing else. A layer with a sliding
window or with chunks sees less of it. A token's distance on the path follows from the path alone,
as the number of visible slots between the two; so a tree's siblings, which have different slots but
one position, are cut alike.

Letters: R rows, T tokens of one pass, S cache slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PretrainedConfig

from spec_bench.engine.attention import ALIGNED, span_of

Mask = Tensor | dict[str, Tensor]

# What transformers calls the kinds of layer that keep keys and values of single tokens, and the
# setting that says how far such a layer looks.
REACH = {
    "full_attention": None,
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}


# Families that make masks of their own by slot, which for a tree's nodes is not the position.
_BY_SLOT = {"gpt_neo": "windows", "mpt": "alibi", "bloom": "alibi", "falcon": "alibi"}


def kinds_of_layers(config: PretrainedConfig) -> tuple[str, ...]:
    """Returns the kinds of layer that a model has, by the rule of transformers' own mask making:
    ``layer_types`` names one per layer; without it one window, or one chunk size, holds for all.

    A ValueError for a kind that keeps anything but keys and values of single tokens, and for a
    family that makes masks of its own.
    """
    family = config.model_type
    if family in _BY_SLOT and getattr(config, "alibi", True):  # of Falcons only some have it
        raise ValueError(
            f"models of the kind {family!r} make masks of their own ({_BY_SLOT[family]}), which "
            "cannot be run over trees of tokens"
        )
    named = getattr(config, "layer_types", None)
    if named is None:
        named = [k for k, name in REACH.items() if name and getattr(config, name, None) is not None]
        named = named[:1] or ["full_attention"]
    for kind in named:
        if kind not in REACH:
            raise ValueError(
                f"it has layers of the kind {kind!r}; only {', '.join(REACH)} can be run over "
                "trees of tokens"
            )
    return tuple(dict.fromkeys(named))


class LayerMasks:
    """Makes a pass's attention masks in the form that the module takes: a dict by kind if its
    layers differ, else a single mask for all. Windows are read from the config at every pass, as
    transformers does.
    """

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self.kinds = kinds_of_layers(config)

    @property
    def longest_reach(self) -> int | None:
        """How far the longest window or chunk reaches; None if there is none."""
        settings = [setting for kind in self.kinds if (setting := REACH[kind])]
        reaches = [getattr(self._config, setting) for setting in settings]
        return max((reach for reach in reaches if reach is not None), default=None)

    def by_kind(self, visible: Tensor, shared: int = 0) -> Mask:
        """Makes masks [R, 1, T, S] to add, from each token's whole path, ``visible`` [R, T, S]
        bool: one, or a dict if kinds differ. Where ``shared`` leading slots lie on every path they
        are split, and have a ``span``.
        """
        made: dict[str | None, Tensor] = {}  # kinds that see all slots share a mask
        masks = {}
        for kind in self.kinds:
            setting, chunked = REACH[kind], kind == "chunked_attention"
            reach = None if setting is None else getattr(self._config, setting)
            # No path is longer than the slots that are read: a reach of that many cuts nothing.
            if reach is not None and reach >= visible.shape[-1]:
                reach = None
            key = None if reach is None else kind
            if key not in made:
                seen = visible if reach is None else cut(visible, reach, chunked=chunked)
                span = span_of(shared, seen.shape[-1], reach, chunked=chunked) if shared else None
                made[key] = self.additive(seen if span is None else span.beside(seen, 2))
                if span is not None:
                    cast(Any, made[key]).span = span
            masks[kind] = made[key]
        return masks if len(masks) > 1 else masks[self.kinds[0]]

    def additive(self, seen: Tensor) -> Tensor:
        """[R, 1, T, S]: 0 where a slot is seen, the lowest number elsewhere.

        On a GPU the rows start at multiples of 8 elements; otherwise attention would copy the mask
        in every layer.
        """
        count, lowest = seen.shape[-1], torch.finfo(self._dtype).min
        if not seen.is_cuda:
            zero = torch.zeros((), dtype=self._dtype, device=seen.device)
            return zero.masked_fill(~seen, lowest).unsqueeze(1)
        room = (*seen.shape[:-1], count + -count % ALIGNED)
        mask = torch.zeros(room, dtype=self._dtype, device=seen.device)[..., :count]
        return mask.masked_fill_(~seen, lowest).unsqueeze(1)


def cut(visible: Tensor, reach: int, *, chunked: bool = False) -> Tensor:
    """Cuts paths [R, T, S] bool to a sliding window of ``reach`` tokens, including the token
    itself, or, if chunked, to the token's own chunk of ``reach`` positions.
    """
    count = visible.cumsum(dim=-1, dtype=torch.int32)  # one more than the position, along the path
    total = count[..., -1:]
    if chunked:
        own, last = ((each - 1).div(reach, rounding_mode="floor") for each in (count, total))
        return visible & (own == last)
    return visible & (count > total - reach)


@contextmanager
def shortened(config: PretrainedConfig, reach: int) -> Iterator[None]:
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
