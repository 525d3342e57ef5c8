"""Where a target's files keep its layer of multi-token prediction, and what they call its parts.

| family | prefix | norms, projection, last norm |
| DeepSeek, GLM | model.layers.N., N blocks | enorm, hnorm, eh_proj, shared_head.norm |
| MiMo | model.mtp_layers.0. | token_layernorm, hidden_layernorm, input_proj, final_layernorm |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_COPIES = ("shared_head.head.", "embed_tokens.")  # of what is the target's


@dataclass(frozen=True)
class Names:
    """What a family of targets calls the parts.

    Attributes:
        prefix: of the first layer's tensors; {} is the target's number of blocks.
        next_prefix: of a second layer's.
        parts: ours by theirs; what has another name is of the block.
        hidden_first: whether W reads the hidden state before the embedding.
    """

    prefix: str
    next_prefix: str
    parts: Mapping[str, str]
    hidden_first: bool = False


DEEPSEEK = Names(  # and GLM
    "model.layers.{}.",
    "model.layers.{}.",
    {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head.norm": "norm"},
)
MIMO = Names(
    "model.mtp_layers.0.",
    "model.mtp_layers.1.",
    {
        "token_layernorm": "enorm", "hidden_layernorm": "hnorm", "input_proj": "eh_proj",
        "final_layernorm": "norm",
    },
    hidden_first=True,
)  # fmt: skip


def names_of(config: Mapping[str, Any]) -> Names:
    """The names of a target's family."""
    return MIMO if config.get("model_type") == "mimo" else DEEPSEEK


def first_layer(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """The tensors of a target's first MTP layer, without the prefix; None where it has none.

    Raises:
        ValueError: it has several.
    """
    if "num_hidden_layers" not in config:
        return None
    names, blocks = names_of(config), int(config["num_hidden_layers"])
    prefix, files = names.prefix.format(blocks), _files(folder)
    if not any(name.startswith(f"{prefix}{next(iter(names.parts))}.") for name in files):
        return None
    if any(name.startswith(names.next_prefix.format(blocks + 1)) for name in files):
        raise ValueError(f"{folder}: several MTP layers; a target with one is supported")
    weights = {}
    for file in sorted(set(files.values())):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                short = name.removeprefix(prefix)
                if short != name and not short.startswith(_COPIES):
                    weights[short] = stored.get_tensor(name)
    return weights


def canonical(
    weights: Mapping[str, Tensor], config: Mapping[str, Any], wanted: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights under our names.

    Args:
        weights: as ``first_layer`` gives them.
        config: the target's.
        wanted: what the head has, by name.

    Raises:
        ValueError: they are quantised.
    """
    for name, weight in weights.items():
        if weight.element_size() < 2:
            raise ValueError(f"MTP head: {name} is quantised ({weight.dtype}): not supported")
    parts = names_of(config).parts
    named = {}
    for name, weight in weights.items():
        part, _, leaf = name.rpartition(".")
        named[f"{parts[part]}.{leaf}" if part in parts else f"block.{name}"] = weight
    return _with_joint_experts(named, wanted)


def written(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Our weights under the family's names."""
    names = names_of(config)
    prefix = names.prefix.format(config["num_hidden_layers"])
    theirs = {ours: name for name, ours in names.parts.items()}
    made = {}
    for name, weight in weights.items():
        part, _, rest = name.partition(".")
        made[prefix + (rest if part == "block" else f"{theirs[part]}.{rest}")] = weight
    return made


def _files(folder: Path) -> dict[str, Path]:
    """Which file holds a tensor, by its name."""
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in index.items()}
    if not (folder / FILE).is_file():
        return {}
    with safe_open(folder / FILE, framework="pt") as stored:
        return dict.fromkeys(stored.keys(), folder / FILE)


def _with_joint_experts(
    named: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The experts' tensors as transformers keeps them: all in one, gate and up side by side."""
    joint: dict[str, dict[int, Tensor]] = {}
    made = {}
    for name, weight in named.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)_proj\.weight", name)
        if expert is None or name in wanted:
            made[name] = weight
        else:
            joint.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = weight
    stacks = {key: torch.stack([of[i] for i in sorted(of)]) for key, of in joint.items()}
    for key in stacks:
        owner, _, kind = key.rpartition(".")
        if kind == "gate":
            made[f"{owner}.gate_up_proj"] = torch.cat([stacks[key], stacks[f"{owner}.up"]], dim=1)
        elif kind == "down":
            made[f"{owner}.down_proj"] = stacks[key]
    return made
