"""Shapes of published models, for random weights, and facts read from a model's config.

``random:llama2_7b`` names a shape in ``architectures.csv``, ``random:FOLDER`` a folder with a
config. Importing the module imports neither torch nor transformers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_bench.system import files
from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

PREFIX = "random:"


def _read_architectures() -> dict[str, dict[str, Any]]:
    """Reads the configs of published models from ``architectures.csv``. Apart from the model's type
    a cell is JSON; an empty one means that the config has no such key.
    """
    rows = files.read_csv(Path(__file__).with_name("architectures.csv"))
    return {
        row.pop("name"): {
            "model_type": row.pop("model_type"),
            **{key: json.loads(cell) for key, cell in row.items() if cell},
        }
        for row in rows
    }


# Llama: Touvron et al. 2023, arXiv 2302.13971 and 2307.09288; Grattafiori et al. 2024, 2407.21783.
# Qwen2.5-Coder: Hui et al. 2024, 2409.12186. Qwen3: Yang et al. 2025, 2505.09388. OPT: Zhang et al.
# 2022, 2205.01068; only OPT-350M projects its embeddings and normalises after its sublayers. MiMo's
# body is Qwen2's.
# llama_115m is RSD's drafter, known from its size alone: four layers of 1024 give exactly the ratio
# of parameters that the paper's MBSU columns imply. The others are as their hub configs have them.
ARCHITECTURES = _read_architectures()


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
