"""Reads and writes a layer of multi-token prediction (MTP) in the files of its target.

| family | prefix | norms, projection, last norm |
| DeepSeek, GLM | model.layers.N., N blocks | enorm, hnorm, eh_proj, shared_head.norm |
| MiMo | model.mtp_layers.0. | token_layernorm, hidden_layernorm, input_proj, final_layernorm |

Files with several MTP layers are not supported.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from spec_bench.draft.network import CheckpointConfig, TensorsByName
from spec_bench.system.errors import UsageError

FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_COPIES = ("shared_head.head.", "embed_tokens.")  # copies of the target's tensors


@dataclass(frozen=True)
class MtpTensorNames:
    """Names of the layer's tensors in a family of targets."""

    prefix: str  # of the first layer's tensors; {} is the target's number of blocks
    next_prefix: str  # of a second layer's tensors
    parts: Mapping[str, str]  # our names by the family's; all other tensors belong to the block
    hidden_first: bool = False  # whether W reads the hidden state before the embedding


DEEPSEEK = MtpTensorNames(  # and GLM
    "model.layers.{}.",
    "model.layers.{}.",
    {
        "enorm": "enorm",
        "hnorm": "hnorm",
        "eh_proj": "eh_proj",
        "shared_head.norm": "norm",
    },
)
MIMO = MtpTensorNames(
    "model.mtp_layers.0.",
    "model.mtp_layers.1.",
    {
        "token_layernorm": "enorm", "hidden_layernorm": "hnorm", "input_proj": "eh_proj",
        "final_layernorm": "norm",
    },
    hidden_first=True,
)  # fmt: skip


def get_family_tensor_names(config: CheckpointConfig) -> MtpTensorNames:
    """Returns the tensor names of a target's family."""
    return MIMO if config.get("model_type") == "mimo" else DEEPSEEK


def read_first_mtp_layer(folder: Path, config: CheckpointConfig) -> TensorsByName | None:
    """Reads the tensors of a target's MTP layer, under names without the prefix; None if it has no
    such layer. Raises UsageError if it has several.
    """
    if "num_hidden_layers" not in config:
        return None
    names = get_family_tensor_names(config)
    blocks = int(config["num_hidden_layers"])
    prefix = names.prefix.format(blocks)
    files = _find_tensor_files(folder)
    if not any(name.startswith(f"{prefix}{next(iter(names.parts))}.") for name in files):
        return None
    if any(name.startswith(names.next_prefix.format(blocks + 1)) for name in files):
        raise UsageError(f"{folder}: several MTP layers; a target with one is supported")
    weights = {}
    for file in sorted(set(files.values())):
        with safe_open(file, framework="pt") as checkpoint:
            for name in checkpoint.keys():  # noqa: SIM118
                short = name.removeprefix(prefix)
                if short != name and not short.startswith(_COPIES):
                    weights[short] = checkpoint.get_tensor(name)
    return weights


def rename_to_head_weights(
    weights: TensorsByName,
    config: CheckpointConfig,
    head_weights: TensorsByName,
) -> TensorsByName:
    """Renames the weights of ``read_first_mtp_layer`` to a head's names, which are those of
    ``head_weights``. Raises UsageError if they are quantised.
    """
    for name, weight in weights.items():
        if weight.element_size() < 2:
            raise UsageError(f"MTP head: {name} is quantised ({weight.dtype}): not supported")
    parts = get_family_tensor_names(config).parts
    head_weights_by_name = {}
    for name, weight in weights.items():
        part, _, leaf = name.rpartition(".")
        head_weights_by_name[f"{parts[part]}.{leaf}" if part in parts else f"block.{name}"] = weight
    return _join_experts(head_weights_by_name, head_weights)


def rename_to_family_weights(weights: TensorsByName, config: CheckpointConfig) -> TensorsByName:
    """Renames a head's weights to the names in the family's files."""
    names = get_family_tensor_names(config)
    prefix = names.prefix.format(config["num_hidden_layers"])
    family_names = {ours: name for name, ours in names.parts.items()}
    family_weights = {}
    for name, weight in weights.items():
        part, _, leaf = name.partition(".")
        family_weights[prefix + (leaf if part == "block" else f"{family_names[part]}.{leaf}")] = (
            weight
        )
    return family_weights


def _find_tensor_files(folder: Path) -> dict[str, Path]:
    """Finds the file of each tensor, by the tensor's name."""
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in index.items()}
    if not (folder / FILE).is_file():
        return {}
    with safe_open(folder / FILE, framework="pt") as checkpoint:
        return dict.fromkeys(checkpoint.keys(), folder / FILE)


def _join_experts(weights: TensorsByName, head_weights: TensorsByName) -> TensorsByName:
    """Joins the experts' tensors as transformers does: all experts stacked, gate and up
    concatenated.
    """
    joint: dict[str, dict[int, Tensor]] = {}
    joined = {}
    for name, weight in weights.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)_proj\.weight", name)
        if expert is None or name in head_weights:
            joined[name] = weight
        else:
            joint.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = weight
    stacks = {
        key: torch.stack([experts[i] for i in sorted(experts)]) for key, experts in joint.items()
    }
    for key in stacks:
        owner, _, kind = key.rpartition(".")
        if kind == "gate":
            joined[f"{owner}.gate_up_proj"] = torch.cat([stacks[key], stacks[f"{owner}.up"]], dim=1)
        elif kind == "down":
            joined[f"{owner}.down_proj"] = stacks[key]
    return joined
