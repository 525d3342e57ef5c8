"""Multi-token prediction (MTP): one block more of the target, trained with it and in its own files.

DeepSeek-V3 (arXiv 2412.19437, section 2.2). With h_t the target's last hidden state after its final
norm and E x the embedding of the next token, z = W [norm_e(E x) ; norm_h(h_t)], y = block(z),
o = norm(y), and the target's last layer reads o. Used again and again (FastMTP, arXiv 2509.18362),
it goes on from o, after the norm. The block is one of the target's own class, with experts, latent
attention or whatever else it has. One layer is drafted with; files with several are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from spec_bench.draft.base import Drafter, Drafting, Equipment, drafter
from spec_bench.draft.cached_head import Attend, Embed, Kept
from spec_bench.draft.eagle import EagleDrafting
from spec_bench.draft.feature_head import FeatureHead
from spec_bench.draft.mtp_files import FILE, canonical, first_layer, names_of, written
from spec_bench.draft.network import HeadPlan
from spec_bench.engine.own_block import OwnBlock, body_config


@dataclass(frozen=True)
class MtpShape:
    """Sizes: all are the target's.

    Attributes:
        config: the target's ``config.json``.
    """

    config: Mapping[str, Any] = field(repr=False)

    @property
    def hidden(self) -> int:
        """D."""
        return int(self.config["hidden_size"])

    @property
    def vocab(self) -> int:
        """V."""
        return int(self.config["vocab_size"])

    @cached_property
    def transformers(self) -> Any:
        """The config as transformers knows it.

        Raises:
            ValueError: transformers does not know the family.
        """
        return body_config(self.config)


class MtpHead(FeatureHead):
    """One block with its projection and norms.

    Args:
        shape: the target's.
        device: where parameters are made; ``meta`` where weights are assigned.
    """

    reads_target = True
    shape: MtpShape

    def __init__(self, shape: MtpShape, device: str = "cpu") -> None:
        super().__init__()
        self.shape, self.hidden_first = shape, names_of(shape.config).hidden_first
        self.register_buffer("ids", None)
        parts = OwnBlock.of(shape.transformers)
        self.rotary = parts.made_rotary()
        with torch.device(device):
            self.enorm, self.hnorm, self.norm = (parts.made_norm() for _ in range(3))
            self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
            self.block = parts.made_block()

    @property
    def _like(self) -> Tensor:
        return self.eh_proj.weight

    @cached_property
    def kept(self) -> Sequence[Kept]:
        """Found by a token that runs through the attention on no device."""
        found: list[Kept] = []

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
        ) -> Tensor:
            found.append(Kept(k.shape[1], k.shape[3], v.shape[3]))
            return q.new_empty((*q.shape[:3], v.shape[3]))

        OwnBlock.of(self.shape.transformers).try_attention(attend)
        return found

    def step(self, feature: Tensor, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        parts = [self.enorm(embedded), self.hnorm(feature)]
        z = self.eh_proj(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        output = self.block(
            z,
            attention_mask=None,
            position_ids=positions,
            position_embeddings=self.rotary(z, positions),
            attend=attend,
        )
        return cast(Tensor, output[0] if isinstance(output, tuple) else output)

    def fed_back(self, output: Tensor) -> Tensor:
        return cast(Tensor, self.norm(output))

    def own_logits(self, output: Tensor, project: Embed) -> Tensor:
        last = project if self.cut_down is None else self.cut_down
        return cast(Tensor, last(self.norm(output)))

    @classmethod
    def fresh(
        cls, plan: HeadPlan, hidden: int, vocab: int, output: Callable[[], Tensor]
    ) -> MtpHead:
        """A block of the target's class and sizes."""
        return cls(MtpShape(dict(plan.target)))

    @classmethod
    def smallest(cls, hidden: int, vocab: int) -> MtpHead:
        config = {
            "model_type": "llama", "hidden_size": hidden, "vocab_size": vocab, "head_dim": 2,
            "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2,
        }  # fmt: skip
        return cls(MtpShape(config))

    @classmethod
    def stored(cls, folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """Of a target's files the tensors of its first MTP layer, under their short names."""
        return first_layer(folder, config)

    @classmethod
    def of_weights(cls, weights: dict[str, Tensor], config: Mapping[str, Any]) -> MtpHead:
        head = cls(MtpShape(config), "meta")
        try:
            head.load_state_dict(canonical(weights, config, head.state_dict()), assign=True)
        except RuntimeError as error:
            lines = " ".join(line.strip() for line in str(error).splitlines()[1:3])
            raise ValueError(f"MTP head and its target's config do not fit: {lines}") from None
        return head

    def to_files(self) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
        known = {key: value for key, value in self.shape.config.items() if not key.startswith("_")}
        config = {**known, "num_nextn_predict_layers": 1}
        return FILE, written(self.state_dict(), config), config


@drafter("mtp")
@dataclass(frozen=True)
class Mtp(Drafter):
    """An MTP layer, again and again.

    Attributes:
        zero_first: whether the embedding beside the first hidden state is zeros, as vLLM has it for
            DeepSeek, GLM and MiMo.
    """

    zero_first: bool = False

    heads = MtpHead

    def drafting(self, equipment: Equipment) -> Drafting:
        return EagleDrafting(
            equipment.heads,
            equipment.target,
            equipment.heads_cache,
            equipment.rows,
            self.zero_first,
        )
