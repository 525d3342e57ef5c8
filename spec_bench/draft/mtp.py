"""Drafts with a target's layer of multi-token prediction (MTP): an extra block, trained with the
target and stored in its files (``mtp_files``).

DeepSeek-V3 (arXiv 2412.19437, section 2.2). With h_t the target's last hidden state after its final
norm and E x the embedding of the next token, z = W [norm_e(E x) ; norm_h(h_t)], y = block(z), o =
norm(y), and the target's last layer computes logits from o. For further levels o takes the place of
h (FastMTP, arXiv 2509.18362). The block has the target's own class, with its experts, latent
attention and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.cached_head import FeatureHead, TensorFunction
from spec_bench.draft.eagle import EagleDraftState
from spec_bench.draft.layers import AttentionFunction
from spec_bench.draft.mtp_files import (
    FILE,
    get_family_tensor_names,
    read_first_mtp_layer,
    rename_to_family_weights,
    rename_to_head_weights,
)
from spec_bench.draft.network import (
    CheckpointConfig,
    HeadPlan,
    PublicCheckpoint,
    TensorsByName,
    load_weights,
)
from spec_bench.engine.cache import LayerLayout
from spec_bench.engine.target_blocks import LastBlockFactory, make_transformers_config


@dataclass(frozen=True)
class MtpShape:
    """Sizes of the layer, which are the target's."""

    config: CheckpointConfig = field(repr=False)  # the target's `config.json`

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

    @property
    def cache_layouts(self) -> Sequence[LayerLayout]:
        """Layout of the block's keys and values, from a pass over a token."""
        layouts: list[LayerLayout] = []

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
            layouts.append(self._make_layout(k.shape[1], k.shape[3], v.shape[3]))
            return q.new_empty((*q.shape[:3], v.shape[3]))

        zeros = self._first_parameter.new_zeros((1, 1, self.shape.hidden))
        with torch.no_grad():
            self.compute_outputs(zeros, zeros, zeros[..., 0].long(), attend)
        return layouts

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
        return output[0] if isinstance(output, tuple) else output

    def to_next_feature(self, output: Tensor) -> Tensor:
        return self.norm(output)

    def compute_own_logits(self, output: Tensor, project: TensorFunction) -> Tensor:
        return super().compute_own_logits(self.norm(output), project)

    @classmethod
    def make_untrained(cls, plan: HeadPlan) -> MtpHead:
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
        config: CheckpointConfig,
    ) -> TensorsByName | None:
        """Reads the first MTP layer's tensors from a target's files, under their short names."""
        return read_first_mtp_layer(folder, config)

    @classmethod
    def from_weights(cls, weights: TensorsByName, config: CheckpointConfig) -> MtpHead:
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
