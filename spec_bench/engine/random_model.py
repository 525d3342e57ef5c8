"""Models with seeded random weights of published architectures (``random:llama2_7b``,
``random:FOLDER``).

Such a model has the real model's speed, memory and energy, but its output is meaningless. It has no
tokenizer, only token ids.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from spec_bench.engine.architectures import (
    ARCHITECTURES,
    PREFIX,
    read_random_architecture,
    register_model_families,
)
from spec_bench.system.errors import UsageError


class TokenIds:
    """Stands in for a tokenizer; it knows only the number of tokens, with ids 0
    to ``count - 1``.
    """

    chat_template: str | None = None
    eos_token_id: int | None = None

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """Raises ValueError with advice, because there is no vocabulary."""
        raise UsageError(
            "models of random weights have no tokenizer for a text; use task=random, or a task's "
            "sampling with task.source.kind=random"
        )

    def decode(self, tokens: Sequence[int], **options: object) -> str:
        """Formats the ids as text."""
        return " ".join(map(str, tokens))


def load_random_config(path: str) -> PretrainedConfig:
    """Returns the config of a ``random:`` path; see ``read_random_architecture``."""
    register_model_families()
    settings = read_random_architecture(path)
    name = path.removeprefix(PREFIX)
    if name in ARCHITECTURES:
        return AutoConfig.for_model(**settings)
    return AutoConfig.from_pretrained(str(Path(name).expanduser()))


def make_random_module(path: str, dtype: torch.dtype, device: str, seed: int) -> PreTrainedModel:
    """Makes a causal LM with seeded random weights, in eval mode, directly on the device (``meta``
    makes no weights). On the same kind of device, equal architectures and seeds give equal weights.
    Raises UsageError if the architecture is unknown.
    """
    config = load_random_config(path)
    place = torch.device(device)
    with torch.random.fork_rng(devices=[place] * (place.type == "cuda")), place:
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        module.tie_weights()  # transformers 5.0 leaves that
        return module
