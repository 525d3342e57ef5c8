"""Families of models that transformers has the blocks of, under another family's name.

MiMo-7B (arXiv 2505.07608) is Qwen2's body with a layer of multi-token prediction beside it, which
``draft.mtp`` reads; its own modelling file would run code of the hub.
"""

from __future__ import annotations

import functools


@functools.cache
def register_families() -> None:
    """Makes transformers' Auto classes load them."""
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen2Model,
    )

    class MiMoConfig(Qwen2Config):
        model_type = "mimo"

    class MiMoModel(Qwen2Model):
        config_class = MiMoConfig

    class MiMoForCausalLM(Qwen2ForCausalLM):
        config_class = MiMoConfig
        _keys_to_ignore_on_load_unexpected = (r"model\.mtp_layers\.",)

    AutoConfig.register(MiMoConfig.model_type, MiMoConfig)
    AutoModel.register(MiMoConfig, MiMoModel)
    AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM)
