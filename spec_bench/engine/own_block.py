"""One more block of a target's own class, whose attention is somebody else's.

A block's parts come from transformers by the target's config: experts, latent attention, a norm and
rotary angles as that family has them. What its attention mixes is given with the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spec_bench.engine.families import register_families

_ATTENTION = "spec_bench_own_block"


def body_config(config: Mapping[str, Any]) -> Any:
    """A model's ``config.json`` as transformers knows it.

    Raises:
        ValueError: transformers knows no such family.
    """
    from transformers import AutoConfig

    register_families()
    given = {key: value for key, value in config.items() if key != "model_type"}
    family = str(config.get("model_type"))
    try:
        return AutoConfig.for_model(family, **given)
    except ValueError:
        raise ValueError(f"transformers knows no models of type {family!r}") from None


@dataclass(frozen=True)
class OwnBlock:
    """The parts.

    Attributes:
        block: the last layer's class and config; called with ``attend``, a function of
            (layer, q [B, H, T, d], k, v, scale) in place of attention.
        norm: the class of the norm, with the sizes of the target's last one.
        rotary: (x, positions [B, T]) to (cosine, sine).
    """

    block: type[nn.Module]
    norm: type[nn.Module]
    rotary: type[nn.Module]
    config: Any

    @classmethod
    def of(cls, config: Any) -> OwnBlock:
        """The parts of a model's last layer.

        Args:
            config: as ``body_config`` gives it; told to attend by ``attend``.

        Raises:
            ValueError: its last layer attends to less than all tokens.
        """
        from transformers import AttentionInterface, AutoModel

        if (kinds := getattr(config, "layer_types", None)) and kinds[-1] != "full_attention":
            raise ValueError(f"a block of {kinds[-1]} is not supported")
        with torch.device("meta"):
            body = AutoModel.from_config(config, attn_implementation="eager")
        AttentionInterface.register(_ATTENTION, _attention)
        config._attn_implementation = _ATTENTION
        return cls(type(body.layers[-1]), type(body.norm), type(body.rotary_emb), config)

    def made_norm(self) -> nn.Module:
        """A norm of the hidden size."""
        return self.norm(self.config.hidden_size, eps=self.config.rms_norm_eps)

    def made_block(self) -> nn.Module:
        """A block with weights as its class makes them."""
        return self.block(self.config, self.config.num_hidden_layers - 1)

    def try_attention(self, attend: Any) -> None:
        """A token runs through the block's attention, on no device: ``attend`` sees the shapes."""
        z = torch.zeros((1, 1, self.config.hidden_size))
        turn = self.made_rotary()(z, torch.zeros((1, 1), dtype=torch.long))
        with torch.device("meta"):
            attention: Any = self.made_block().self_attn
            attention(
                hidden_states=z.to("meta"),
                position_embeddings=tuple(each.to("meta") for each in turn),
                attention_mask=None,
                attend=attend,
            )

    def made_rotary(self) -> nn.Module:
        """The angles."""
        return self.rotary(self.config)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attend: Any,
    scaling: float | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    mixed = attend(0, query, key, value, scaling)
    return mixed.transpose(1, 2).contiguous(), None
