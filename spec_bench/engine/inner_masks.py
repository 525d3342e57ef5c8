"""Models that make part of their attention masks inside: GPT-Neo's windows, alibi's biases.

Both go by slot there, which for a tree's nodes is not the position. During our passes, what such a
module hands to its blocks is replaced on the way; its own passes stay as they are.

Letters: R rows, T tokens of one pass, S cache slots, H heads.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spec_bench.engine.masks import LayerMasks, Mask, cut, positions_of_slots

Keywords = dict[str, Any]


def attention_masks(module: PreTrainedModel) -> LayerMasks:
    """What makes the masks of a model.

    Raises:
        ValueError: a kind of layer that cannot be run over trees.
    """
    config = module.config.get_text_config()
    kind = config.model_type
    if kind == "gpt_neo":
        return GPTNeoMasks(module)
    if kind in ("mpt", "bloom") or (kind == "falcon" and config.alibi):
        return AlibiMasks(module)
    return LayerMasks(config, module.dtype)


class BlockMasks(LayerMasks):
    """Masks that reach a module's blocks through hooks."""

    def __init__(self, module: PreTrainedModel) -> None:
        super().__init__(module.config.get_text_config(), module.dtype)
        self.base = cast(Any, module.base_model)
        self.blocks: list[nn.Module] = list(getattr(self.base, "h", None) or self.base.blocks)
        self._running = False
        for index, block in enumerate(self.blocks):
            block.register_forward_pre_hook(self._hook(index), with_kwargs=True)

    def _hook(self, index: int) -> Any:
        def replace(block: nn.Module, args: Any, given: Keywords) -> tuple[Any, Keywords] | None:
            return (args, given | self.for_block(index)) if self._running else None

        return replace

    def for_block(self, index: int) -> Keywords:
        """What a block gets in place of what its model gives it."""
        raise NotImplementedError


class GPTNeoMasks(BlockMasks):
    """GPT-Neo: every second layer sees a window, which its attention cuts by slot from a table.

    While a pass runs the tables hide nothing, and each block's mask is cut by position.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        super().__init__(module)
        config = self._config
        self.window: int = config.window_size
        self._local = [kind == "local" for kind in config.attention_layers]
        self._open = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=module.device)
        self._masks: tuple[Tensor, Tensor] | None = None

    @property
    def fixed_reach(self) -> int:
        return self.window

    @contextmanager
    def over(self, visible: Tensor, shared: int = 0) -> Iterator[Mask]:
        whole = self.additive(visible)
        near = whole
        if self.window < visible.shape[-1]:
            near = self.additive(cut(visible, self.window))
        self._masks = whole, near
        holders = [cast(Any, block).attn.attention for block in self.blocks]
        tables = [holder.bias for holder in holders]
        slots = visible.shape[-1]
        self._running = True
        try:
            for holder in holders:
                holder.bias = self._open.to(holder.bias.device).expand(1, 1, slots, slots)
            yield whole
        finally:
            self._running = False
            for holder, table in zip(holders, tables, strict=True):
                holder.bias = table

    def for_block(self, index: int) -> Keywords:
        assert self._masks is not None
        return {"attention_mask": self._masks[self._local[index]]}


class AlibiMasks(BlockMasks):
    """MPT, Bloom, Falcon: a bias by the distance to each key, which the model makes by slot.

    The model's own function makes it for positions 0, 1, ...; each slot gets its position's.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        super().__init__(module)
        self._kind = self._config.model_type
        # MPT takes one bias [H, 1, S] for all rows.
        self.rows_apart = self._kind == "mpt"
        self._given: Keywords = {}

    @contextmanager
    def over(self, visible: Tensor, shared: int = 0) -> Iterator[Mask]:
        self._given = self._made(visible)
        self._running = True
        try:
            # A mask by tokens: the model makes a bias and a mask of it, which no block gets to see.
            yield torch.ones(
                (visible.shape[0], visible.shape[-1]), dtype=torch.long, device=visible.device
            )
        finally:
            self._running = False

    def for_block(self, index: int) -> Keywords:
        return self._given

    def _made(self, visible: Tensor) -> Keywords:
        """What each block is given: its mask and its bias under its model's names."""
        positions = positions_of_slots(visible)
        if self._kind == "mpt":
            bias = self.base.build_mpt_alibi_tensor(
                self.base.num_heads, self._config.max_seq_len, device=visible.device
            )  # [H, 1, M], 0 at the last
            newest = visible.sum(dim=-1).amax(dim=-1, keepdim=True) - 1  # [R, 1]
            place = bias.shape[-1] - 1 - (newest - positions)
            return {
                "position_bias": bias[:, :, place[0].clamp(min=0)],
                "attention_mask": ~visible.unsqueeze(1),
            }
        make = cast(Any, inspect.getmodule(type(self.base))).build_alibi_tensor
        ones = torch.ones((1, visible.shape[-1]), dtype=torch.long, device=visible.device)
        by_position = make(ones, self.base.num_heads, dtype=self._dtype)  # [H, 1, S]
        bias = by_position[:, :, positions].permute(2, 0, 1, 3)  # [R, H, 1, S]
        if self._kind == "bloom":
            return {"alibi": bias.flatten(0, 1), "attention_mask": self.additive(visible)}
        # Falcon's fused attention takes the bias within the mask, its plain one adds it itself.
        scaled = bias / math.sqrt(self._config.hidden_size // self.base.num_heads)
        lowest = torch.finfo(self._dtype).min
        fused = scaled.masked_fill(~visible.unsqueeze(1), lowest)
        eager = self._config._attn_implementation != "sdpa"
        return {"alibi": bias, "attention_mask": self.additive(visible) if eager else fused}
