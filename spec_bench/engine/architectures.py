"""Shapes of published models, for random weights, and facts read from a model's config.

``random:llama2_7b`` names a shape of this module, ``random:FOLDER`` a folder with a config.
Importing the module imports neither torch nor transformers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

PREFIX = "random:"


def _make_llama_config(
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    positions: int = 2048,
    vocab: int = 32000,
) -> dict[str, Any]:
    """Makes the config of a Llama of these sizes."""
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }


def _make_opt_config(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """Makes the config of an OPT of these sizes."""
    return {
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "word_embed_proj_dim": hidden,
        "do_layer_norm_before": True,
        "max_position_embeddings": 2048,
        "dropout": 0.0,
    } | more


_EIGHT = {"num_key_value_heads": 8}
_TIED = {"tie_word_embeddings": True}
_LLAMA3 = _EIGHT | {"max_position_embeddings": 131072, "vocab_size": 128256}
_QWEN3 = _EIGHT | {"model_type": "qwen3", "head_dim": 128}
_QWEN3 |= {"max_position_embeddings": 40960, "vocab_size": 151936}
_QWEN2 = _TIED | {"model_type": "qwen2", "num_key_value_heads": 2}
_QWEN2 |= {"max_position_embeddings": 32768, "vocab_size": 151936}
_ROPE = {"rope_type": "default", "rope_theta": 640000.0}
_MIMO = _EIGHT | {"model_type": "mimo", "rope_parameters": _ROPE}  # its body is Qwen2's
# Only OPT-350M projects its embeddings and normalises after its sublayers.
_PROJECTED = {"word_embed_proj_dim": 512, "do_layer_norm_before": False}

# Llama: Touvron et al. 2023, arXiv 2302.13971 and 2307.09288; Grattafiori et al. 2024, 2407.21783.
# Qwen2.5-Coder: Hui et al. 2024, 2409.12186. Qwen3: Yang et al. 2025, 2505.09388. OPT: Zhang et al.
# 2022, 2205.01068.
# llama_115m is RSD's drafter, known from its size alone: four layers of 1024 give exactly the ratio
# of parameters that the paper's MBSU columns imply. The others are as their hub configs have them.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama2_7b": _make_llama_config(4096, 11008, 32, 32, 4096),
    "llama2_13b": _make_llama_config(5120, 13824, 40, 40, 4096),
    "llama2_70b": _make_llama_config(8192, 28672, 80, 64, 4096) | _EIGHT,
    "llama_13b": _make_llama_config(5120, 13824, 40, 40),
    "llama_33b": _make_llama_config(6656, 17920, 60, 52),
    "vicuna_7b": _make_llama_config(4096, 11008, 32, 32),
    "vicuna_13b": _make_llama_config(5120, 13824, 40, 40),
    "vicuna_33b": _make_llama_config(6656, 17920, 60, 52),
    "llama3_8b": _make_llama_config(4096, 14336, 32, 32) | _LLAMA3,
    "llama3_70b": _make_llama_config(8192, 28672, 80, 64) | _LLAMA3,
    "llama3_1b": _make_llama_config(2048, 8192, 16, 32) | _LLAMA3 | _TIED,
    "qwen3_8b": _make_llama_config(4096, 12288, 36, 32) | _QWEN3,
    "qwen3_0.6b": _make_llama_config(1024, 3072, 28, 16) | _QWEN3 | _TIED,
    "qwen25_coder_1.5b": _make_llama_config(1536, 8960, 28, 12) | _QWEN2,
    "qwen25_coder_0.5b": _make_llama_config(896, 4864, 24, 14) | _QWEN2,
    "mimo_7b": _make_llama_config(4096, 11008, 36, 32, 32768, 151680) | _MIMO,
    "llama_68m": _make_llama_config(768, 3072, 2, 12),
    "llama_115m": _make_llama_config(1024, 2816, 4, 8),
    "llama_160m": _make_llama_config(768, 3072, 12, 12),
    "opt_125m": _make_opt_config(768, 12, 12),
    "opt_350m": _make_opt_config(1024, 24, 16, **_PROJECTED),
    "opt_1.3b": _make_opt_config(2048, 24, 32),
    "opt_13b": _make_opt_config(5120, 40, 40),
    "opt_30b": _make_opt_config(7168, 48, 56),
    "opt_66b": _make_opt_config(9216, 64, 72),
    "llama_tiny": _make_llama_config(64, 128, 2, 4, 512, 512),
    "opt_tiny": _make_opt_config(64, 2, 4, max_position_embeddings=512, vocab_size=512),
}


def read_random_architecture(path: str) -> dict[str, Any]:
    """Returns the config of ``random:NAME``, with a name in ``ARCHITECTURES``, or of
    ``random:FOLDER``, a folder with a ``config.json``. Raises UsageError with the names if it is
    neither.
    """
    name = path.removeprefix(PREFIX)
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    file = Path(name).expanduser() / "config.json"
    if not file.is_file():
        raise UsageError(
            f"unknown architecture {path!r}: {PREFIX}NAME takes one of {', '.join(ARCHITECTURES)}, "
            "or a folder with a config.json"
        )
    return json.loads(file.read_text(encoding="utf-8"))


def get_max_sequence_length(config: PretrainedConfig | Any) -> int | None:
    """Returns the length of the longest sequence that a model takes; None if its config sets no
    limit.

    Beyond their training length, rotary embeddings of type ``longrope`` use other angles for all
    keys, but not for those already cached; so such a model is limited to that length.
    """
    keys = ("max_position_embeddings", "max_seq_len")
    limits = [getattr(config, name, None) for name in keys]
    rope = getattr(config, "rope_parameters", None) or {}
    for rope_block in (rope, *rope.values()):
        if isinstance(rope_block, dict) and rope_block.get("rope_type") == "longrope":
            limits.append(rope_block.get("original_max_position_embeddings"))
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


@functools.cache
def register_model_families() -> None:
    """Registers families with transformers' Auto classes if their blocks exist there under another
    name.

    MiMo-7B (arXiv 2505.07608) is Qwen2's body with a layer of multi-token prediction, which
    ``draft.mtp`` reads. Its own modelling file would run code from the hub.
    """
    import transformers

    class MiMoConfig(transformers.Qwen2Config):
        model_type = "mimo"

    class MiMoModel(transformers.Qwen2Model):
        config_class = MiMoConfig

    class MiMoForCausalLM(transformers.Qwen2ForCausalLM):
        config_class = MiMoConfig
        _keys_to_ignore_on_load_unexpected = (r"model\.mtp_layers\.",)

    transformers.AutoConfig.register(MiMoConfig.model_type, MiMoConfig)
    transformers.AutoModel.register(MiMoConfig, MiMoModel)
    transformers.AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM)


def compute_rotary_frequencies(
    rope: Mapping[str, Any], head_dim: int, max_positions: int
) -> tuple[Tensor, float]:
    """Computes rotary embeddings' angles per position, [d / 2] float32, and the factor of cosine
    and sine, as transformers does for heads of width d and a config's ``rope_parameters``. Raises
    UsageError if the type is unknown or lacks a parameter.
    """
    # Imported here: draft heads' settings are read without transformers, which takes seconds.
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
        embedding = LlamaRotaryEmbedding(config)
    except (KeyError, TypeError) as error:
        raise UsageError(f"rope_scaling {dict(rope)} cannot be used: {error}") from None
    return embedding.inv_freq.float(), float(embedding.attention_scaling)
