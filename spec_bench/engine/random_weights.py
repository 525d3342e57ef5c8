"""Published architectures without their weights: ``random:llama2_7b``, ``random:FOLDER``.

Knows the shapes of the models that the papers used and how to fill them with seeded noise, right on
the device and in the precision asked for. Such a model has the speed, the memory and the energy of
the real one; its output means nothing. It has no tokenizer, only token ids (``TokenIds``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from spec_bench.engine.architectures import ARCHITECTURES as ARCHITECTURES
from spec_bench.engine.architectures import PREFIX as PREFIX
from spec_bench.engine.architectures import architecture as architecture
from spec_bench.engine.families import register_families


class TokenIds:
    """In place of a tokenizer: knows only how many tokens there are, ids 0 to ``count - 1``."""

    chat_template: str | None = None
    eos_token_id: int | None = None

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """Never: raises a ValueError that says what to ask for instead."""
        raise ValueError("models of random weights have no tokenizer for a text; use task=random")

    def decode(self, tokens: Sequence[int], **options: object) -> str:
        """The ids as text."""
        return " ".join(map(str, tokens))


def random_config(path: str) -> PretrainedConfig:
    """The config of ``random:NAME`` or ``random:FOLDER``; see ``architecture``."""
    register_families()
    name = path.removeprefix(PREFIX)
    known = architecture(path)
    if name in ARCHITECTURES:
        return AutoConfig.for_model(**known)
    return AutoConfig.from_pretrained(str(Path(name).expanduser()))


def random_module(path: str, dtype: torch.dtype, device: str, seed: int) -> PreTrainedModel:
    """Makes a causal LM of seeded noise, in eval mode, on the device (``meta`` makes none) without
    a copy elsewhere; two of one architecture and seed are equal (on one kind of device). A
    ValueError for an unknown architecture.
    """
    config, place = random_config(path), torch.device(device)
    forked = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(devices=forked), place:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
