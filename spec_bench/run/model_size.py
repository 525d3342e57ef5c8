"""How large a model is, from its config or what a pair's file states; no weights are read.

Knows shapes only: parameters, layers, heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spec_bench.engine.architectures import ARCHITECTURES
from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.run.pair import PairSettings
from spec_bench.run.paths import model_path

BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelSize:
    """What memory depends on.

    Attributes:
        parameters: exact count; None where it is unknown.
        cached_numbers: keys and values of one token over all layers; None where unknown.
        positions: longest sequence; None where it is unknown or has no limit.
    """

    parameters: int | None
    cached_numbers: int | None = None
    positions: int | None = None


def model_size(name: str, stated: int | None = None) -> ModelSize:
    """The size of a model as a pair names it.

    Args:
        name: hub id, folder, ``embedded:NAME`` or ``random:NAME``.
        stated: exact parameter count that the pair's file gives, used where there is no config
            here. If it is that of a published architecture, that one's shape is taken.
    """
    path = model_path(name)
    if path.startswith(RANDOM):
        return _size(path)
    if Path(path).is_dir():
        return _size(f"{RANDOM}{path}")
    for shape in ARCHITECTURES if stated else ():
        size = _size(f"{RANDOM}{shape}")
        if size.parameters == stated:
            return size
    return ModelSize(stated)


def pair_sizes(pair: PairSettings) -> tuple[ModelSize, ...]:
    """The sizes of a pair's models, the target first."""
    stated = [pair.target_parameters, *[pair.draft_parameters] * len(pair.drafts)]
    names = (pair.target, *pair.drafts)
    return tuple(model_size(name, own) for name, own in zip(names, stated, strict=True))


@cache
def _size(path: str) -> ModelSize:
    """The size of ``random:NAME`` or ``random:FOLDER``, from a model without storage."""
    import torch

    from spec_bench.engine.random_weights import random_config, random_module

    config = random_config(path)
    module = random_module(path, torch.float16, "meta", 0)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelSize(
        sum(parameter.numel() for parameter in module.parameters()),
        2 * config.num_hidden_layers * heads * width,
        getattr(config, "max_position_embeddings", None),
    )
