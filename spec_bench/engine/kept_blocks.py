"""A model with some of its blocks left out: a view of the same weights, with a cache of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import tried
from spec_bench.engine.model import LanguageModel


def with_blocks(model: LanguageModel, kept: Sequence[int]) -> LanguageModel:
    """The model with the blocks ``kept`` alone, in order, its norm and its last layer.

    Of the first blocks of a model the view computes bit for bit what the model does.

    Args:
        model: behind the engine's interface, of transformers.
        kept: rising places among its blocks.

    Raises:
        ValueError: a block that it does not have, or a model whose blocks cannot be told or left
            out.
    """
    if not isinstance(model, HuggingFaceModel):
        raise ValueError("only a model of transformers can draft with blocks of its own")
    if max(kept) >= model.blocks:
        raise ValueError(f"the target has blocks 0 to {model.blocks - 1}, got {max(kept)}")
    name = f"blocks {', '.join(map(str, kept))} of the target"
    view = tried(_without_others(model.module, kept), name, model.compile)
    view.vocab_size, view.max_positions = model.vocab_size, model.max_positions
    return view


def _without_others(module: Any, kept: Sequence[int]) -> Any:
    """The module over its own weights with some blocks alone.

    Raises:
        ValueError: its blocks are not one list.
    """
    config = copy.deepcopy(module.config)
    text = config.get_text_config()
    blocks = text.num_hidden_layers
    lists = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == blocks
    ]
    if len(lists) != 1 or text is not config:
        raise ValueError(f"{type(module).__name__}: its blocks are not one list")
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[place] for place in kept]
    old = module.get_submodule(lists[0])
    made: Any = nn.ModuleList(_renumbered(old[place], new) for new, place in enumerate(kept))
    names = lists[0].split(".")
    for depth in reversed(range(len(names))):
        owner = module.get_submodule(".".join(names[:depth]))
        made = _like(owner, {names[depth]: made})
        made.config = config
    return made


def _renumbered(module: Any, place: int) -> Any:
    """A block as the one at ``place``: its attention keeps keys and values there."""
    parts = {
        name: _renumbered(part, place)
        for name, part in module._modules.items()
        if part is not None and any(hasattr(each, "layer_idx") for each in part.modules())
    }
    made = _like(module, parts)
    if hasattr(module, "layer_idx"):
        made.layer_idx = place
    return made


def _like(module: Any, parts: dict[str, Any]) -> Any:
    """A module that shares all with another but some of its parts."""
    made = copy.copy(module)
    vars(made)["_modules"] = {**module._modules, **parts}
    for name, part in parts.items():
        if name in vars(module):  # where ``direct_calls`` finds it
            vars(made)[name] = part
    return made
