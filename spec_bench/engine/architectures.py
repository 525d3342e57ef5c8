"""What a model's config says, and the shapes of published models, for weights made here:
``random:llama2_7b``, ``random:FOLDER``. Imports neither torch nor transformers at first.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

PREFIX = "random:"


def _llama(
    hidden: int,
    feed_forward: int,
    layers: int,
    heads: int,
    *,
    key_value_heads: int | None = None,
    positions: int = 2048,
    vocab: int = 32000,
    tied: bool = False,
) -> dict[str, Any]:
    """Llama's shape in the words of its config."""
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads or heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
    }


def _llama3(hidden: int, feed_forward: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
    """Llama 3's shape: eight key heads."""
    return _llama(
        *(hidden, feed_forward, layers, heads),
        key_value_heads=8,
        positions=131072,
        vocab=128256,
        tied=tied,
    )


def _qwen3(hidden: int, feed_forward: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
    """Qwen3's shape: heads of 128, eight key heads."""
    llama = _llama(
        *(hidden, feed_forward, layers, heads),
        key_value_heads=8,
        positions=40960,
        vocab=151936,
        tied=tied,
    )
    return llama | {"model_type": "qwen3", "head_dim": 128}


def _mimo(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    """MiMo-7B's body, which is Qwen2's, in the words of its config."""
    llama = _llama(hidden, inner, layers, heads, key_value_heads=8, positions=32768, vocab=151680)
    rope = {"rope_type": "default", "rope_theta": 640000.0}
    return llama | {"model_type": "mimo", "rope_parameters": rope}


def _opt(
    hidden: int,
    layers: int,
    heads: int,
    *,
    projected: int | None = None,
    positions: int = 2048,
    vocab: int = 50272,
) -> dict[str, Any]:
    """OPT's shape in the words of its config; OPT-350M alone projects its embeddings and
    normalises after its sublayers.
    """
    return {
        "model_type": "opt",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "word_embed_proj_dim": projected or hidden,
        "do_layer_norm_before": projected is None,
        "max_position_embeddings": positions,
        "dropout": 0.0,
    }


# Llama: Touvron et al. 2023, arXiv 2302.13971 and 2307.09288; Grattafiori et al. 2024, 2407.21783.
# Qwen3: Yang et al. 2025, 2505.09388. OPT: Zhang et al. 2022, 2205.01068.
# llama_115m is RSD's drafter, known from its size alone: four layers of 1024 give exactly the ratio
# of parameters that the paper's MBSU columns imply. The others are as their hub configs have them.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama2_7b": _llama(4096, 11008, 32, 32, positions=4096),
    "llama2_13b": _llama(5120, 13824, 40, 40, positions=4096),
    "llama2_70b": _llama(8192, 28672, 80, 64, key_value_heads=8, positions=4096),
    "llama_13b": _llama(5120, 13824, 40, 40),
    "llama_33b": _llama(6656, 17920, 60, 52),
    "vicuna_7b": _llama(4096, 11008, 32, 32),
    "vicuna_13b": _llama(5120, 13824, 40, 40),
    "vicuna_33b": _llama(6656, 17920, 60, 52),
    "llama3_8b": _llama3(4096, 14336, 32, 32, False),
    "llama3_70b": _llama3(8192, 28672, 80, 64, False),
    "llama3_1b": _llama3(2048, 8192, 16, 32, True),
    "qwen3_8b": _qwen3(4096, 12288, 36, 32, False),
    "qwen3_0.6b": _qwen3(1024, 3072, 28, 16, True),
    "mimo_7b": _mimo(4096, 11008, 36, 32),
    "llama_68m": _llama(768, 3072, 2, 12),
    "llama_115m": _llama(1024, 2816, 4, 8),
    "llama_160m": _llama(768, 3072, 12, 12),
    "opt_125m": _opt(768, 12, 12),
    "opt_350m": _opt(1024, 24, 16, projected=512),
    "opt_1.3b": _opt(2048, 24, 32),
    "opt_13b": _opt(5120, 40, 40),
    "opt_30b": _opt(7168, 48, 56),
    "opt_66b": _opt(9216, 64, 72),
    "llama_tiny": _llama(64, 128, 2, 4, positions=512, vocab=512),
    "opt_tiny": _opt(64, 2, 4, positions=512, vocab=512),
}


def architecture(path: str) -> dict[str, Any]:
    """Returns the config of ``random:NAME``, with a name in ``ARCHITECTURES``, or of
    ``random:FOLDER``, a folder with a ``config.json``; a ValueError lists the names.
    """
    name = path.removeprefix(PREFIX)
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    file = Path(name).expanduser() / "config.json"
    if not file.is_file():
        raise ValueError(
            f"unknown architecture {path!r}: {PREFIX}NAME takes one of {', '.join(ARCHITECTURES)}, "
            "or a folder with a config.json"
        )
    return json.loads(file.read_text(encoding="utf-8"))


# How long a sequence a model takes, from its config alone.


def longest_sequence(config: PretrainedConfig | Any) -> int | None:
    """The longest sequence that a model takes; None if its config names no limit.

    Beyond the length they were trained for, rotary embeddings of the kind ``longrope`` turn all
    keys by other angles, except those in a cache; so such a model is taken up to that length.
    """
    named = ("max_position_embeddings", "max_seq_len")
    limits = [getattr(config, name, None) for name in named]
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *rope.values()):
        if isinstance(one, dict) and one.get("rope_type") == "longrope":
            limits.append(one.get("original_max_position_embeddings"))
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


# Families of models that transformers has the blocks of, under another family's name.
#
# MiMo-7B (arXiv 2505.07608) is Qwen2's body with a layer of multi-token prediction beside it,
# which ``draft.mtp`` reads; its own modelling file would run code of the hub.


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


# Rotary position embeddings by a config's ``rope_parameters``, as transformers computes them.


def frequencies(rope: Mapping[str, Any], head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Returns angles per position [d / 2] float32, and the factor of cosine and sine, for heads of
    width d and ``rope_type``, ``rope_theta`` and what the type needs. A ValueError for an unknown
    type, or one that lacks a number.
    """
    # Late: the settings of draft heads are read without transformers, which takes seconds.
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    try:
        config = LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rope_parameters=dict(rope),
        )
        made = LlamaRotaryEmbedding(config)
    except (KeyError, TypeError) as error:
        raise ValueError(f"rope_scaling {dict(rope)} cannot be used: {error}") from None
    return made.inv_freq.float(), float(made.attention_scaling)
