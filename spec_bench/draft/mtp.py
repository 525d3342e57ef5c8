"""Drafts with a target's layer of multi-token prediction (MTP), and reads it from the target's
files.

| family | prefix | norms, projection, last norm | | DeepSeek, GLM | model.layers.N., N blocks |
enorm, hnorm, eh_proj, shared_head.norm | | MiMo | model.mtp_layers.0. | token_layernorm,
hidden_layernorm, input_proj, final_layernorm |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn

from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.cached_head import FeatureHead, TensorFunction
from spec_bench.draft.eagle import EagleDraftState
from spec_bench.draft.layers import AttentionFunction, LayerCacheSizes
from spec_bench.draft.network import HeadPlan, PublicCheckpoint, load_weights
from spec_bench.engine.target_blocks import LastBlockFactory, make_transformers_config
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


def get_family_tensor_names(config: Mapping[str, Any]) -> MtpTensorNames:
    """Returns the tensor names of a target's family."""
    return MIMO if config.get("model_type") == "mimo" else DEEPSEEK


def read_first_mtp_layer(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor] | None:
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
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    head_weights: Mapping[str, Tensor],
) -> dict[str, Tensor]:
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


def rename_to_family_weights(
    weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> dict[str, Tensor]:
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


def _join_experts(
    weights: Mapping[str, Tensor], head_weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
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


# Multi-token prediction (MTP): an extra block, trained with the target and stored in its files.
#
# DeepSeek-V3 (arXiv 2412.19437, section 2.2). With h_t the target's last hidden state after its
# final norm and E x the embedding of the next token, z = W [norm_e(E x) ; norm_h(h_t)], y =
# block(z), o = norm(y), and the target's last layer computes logits from o. For further levels o
# takes the place of h (FastMTP, arXiv 2509.18362). The block has the target's own class, with its
# experts, latent attention and so on. Files with several MTP layers are not supported.


@dataclass(frozen=True)
class MtpShape:
    """Sizes of the layer, which are the target's."""

    config: Mapping[str, Any] = field(repr=False)  # the target's `config.json`

    @property
    def hidden(self) -> int:
        """D, width of the hidden states."""
        return int(self.config["hidden_size"])

    @property
    def vocab(self) -> int:
        """V, number of tokens."""
        return int(self.config["vocab_size"])

    @cached_property
    def transformers_config(self) -> Any:
        """transformers' config object. Raises UsageError if transformers lacks the family."""
        return make_transformers_config(self.config)


class MtpHead(FeatureHead):
    """An MTP layer: a block with projection and norms. It is made on ``meta`` if weights are
    assigned later.
    """

    reads_target = True
    shape: MtpShape

    def __init__(self, shape: MtpShape, device: str = "cpu") -> None:
        super().__init__(shape)
        self.hidden_first = get_family_tensor_names(shape.config).hidden_first
        parts = LastBlockFactory(shape.transformers_config)
        self.rotary = parts.make_rotary()
        with torch.device(device):
            self.enorm, self.hnorm, self.norm = (parts.make_norm() for _ in range(3))
            self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
            self.block = parts.make_block()

    @property
    def _first_parameter(self) -> Tensor:
        return self.eh_proj.weight

    @cached_property
    def layer_cache_sizes(self) -> Sequence[LayerCacheSizes]:
        """Sizes of the block's cache entry for a token, from a trace of its attention on the meta
        device.
        """
        layers: list[LayerCacheSizes] = []

        def attend(
            layer: int,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            scale: float | None = None,
        ) -> Tensor:
            layers.append(LayerCacheSizes(k.shape[1], k.shape[3], v.shape[3]))
            return q.new_empty((*q.shape[:3], v.shape[3]))

        LastBlockFactory(self.shape.transformers_config).trace_attention_shapes(attend)
        return layers

    def compute_outputs(
        self,
        feature: Tensor,
        embeddings: Tensor,
        positions: Tensor,
        attend: AttentionFunction,
    ) -> Tensor:
        parts = [self.enorm(embeddings), self.hnorm(feature)]
        z = self.eh_proj(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        output = self.block(
            z,
            attention_mask=None,
            position_ids=positions,
            position_embeddings=self.rotary(z, positions),
            attend=attend,
        )
        return cast(Tensor, output[0] if isinstance(output, tuple) else output)

    def to_next_feature(self, output: Tensor) -> Tensor:
        return cast(Tensor, self.norm(output))

    def compute_own_logits(self, output: Tensor, project: TensorFunction) -> Tensor:
        return super().compute_own_logits(self.norm(output), project)

    @classmethod
    def make_untrained(
        cls,
        plan: HeadPlan,
        hidden: int,
        vocab: int,
        get_output_weight: Callable[[], Tensor],
    ) -> MtpHead:
        """Makes a block of the target's class and sizes."""
        return cls(MtpShape(dict(plan.target)))

    @classmethod
    def make_smallest(cls, hidden: int, vocab: int) -> MtpHead:
        config = {
            "model_type": "llama", "hidden_size": hidden, "vocab_size": vocab, "head_dim": 2,
            "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2,
        }  # fmt: skip
        return cls(MtpShape(config))

    @classmethod
    def load_weights_of_kind(
        cls,
        folder: Path,
        config: Mapping[str, Any],
    ) -> dict[str, Tensor] | None:
        """Reads the first MTP layer's tensors from a target's files, under their short names."""
        return read_first_mtp_layer(folder, config)

    @classmethod
    def from_weights(cls, weights: dict[str, Tensor], config: Mapping[str, Any]) -> MtpHead:
        head = cls(MtpShape(config), "meta")
        return load_weights(
            head, rename_to_head_weights(weights, config, head.state_dict()), assign=True
        )

    def to_public_checkpoint(self) -> PublicCheckpoint:
        settings = {
            key: value for key, value in self.shape.config.items() if not key.startswith("_")
        }
        config = {**settings, "num_nextn_predict_layers": 1}
        weights = rename_to_family_weights(self.state_dict(), config)
        return PublicCheckpoint(FILE, weights, config)


@drafter("mtp")
@dataclass(frozen=True)
class Mtp(Drafter):
    """An MTP layer, again and again."""

    # whether the embedding that goes with the first hidden state is zeros, as in vLLM for DeepSeek,
    # GLM and MiMo
    zero_first: bool = False

    heads = MtpHead

    def make_state(self, resources: DraftResources) -> DraftState:
        return EagleDraftState(resources, self.zero_first)
