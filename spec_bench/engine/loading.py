"""From a path or hub id to a model and a tokenizer, and whether two of them fit together."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from spec_bench.engine.model import COMPILE, HuggingFaceModel

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
COMPILERS = ("c++", "g++", "clang++", "cl")


@dataclass(frozen=True)
class ModelSpec:
    """Which model, where and how precise.

    Attributes:
        path: local folder or hub id.
        dtype: one of ``DTYPES``.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...
        device_map: passed through to transformers for models larger than one GPU (``auto`` or a
            JSON-like mapping as a sorted tuple of pairs); ``device`` is ignored for loading then.
        revision: hub revision.
        compile: how the forward pass is captured, one of ``COMPILE``.

    Raises:
        ValueError: for an unknown dtype or way to compile, and for a device or compiler that is
            not there.
    """

    path: str
    dtype: str = "float32"
    device: str = "cpu"
    device_map: str | tuple[tuple[str, int | str], ...] | None = None
    revision: str | None = None
    compile: str = "none"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.compile not in COMPILE:
            raise ValueError(
                f"engine.compile must be one of {', '.join(COMPILE)}, got {self.compile!r}"
            )
        if self.compile == "inductor" and not any(map(shutil.which, COMPILERS)):
            raise ValueError(
                f"engine.compile=inductor needs a C++ compiler on PATH ({', '.join(COMPILERS)}); "
                "graph needs none"
            )
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise ValueError(
                f"device must be like cpu, cuda or cuda:0, got {self.device!r}"
            ) from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {self.device!r} was asked for but torch sees no CUDA device")


def load_model(spec: ModelSpec) -> HuggingFaceModel:
    """Loads a causal LM in eval mode.

    Args:
        spec: which one.

    Returns:
        The model behind the engine's interface; its vocabulary is the embedding's until
        ``check_vocabularies`` tells how many tokens exist.

    Raises:
        ValueError: where transformers cannot load the path, with its reason in one line.
    """
    device_map: Any = spec.device_map
    if isinstance(device_map, tuple):
        device_map = dict(device_map)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            spec.path, revision=spec.revision, dtype=DTYPES[spec.dtype], device_map=device_map
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot load model {spec.path!r}: {_first_line(error)}") from error
    if device_map is None:
        module = module.to(spec.device)
    module.eval()
    embedding = module.get_input_embeddings().weight
    return HuggingFaceModel(module, embedding.shape[0], embedding.device, spec.compile)


def load_tokenizer(path: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a local folder or hub id.

    Raises:
        ValueError: where transformers cannot load it, with its reason in one line.
    """
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot load tokenizer {path!r}: {_first_line(error)}") from error


def read_context_length(path: str, revision: str | None = None) -> int | None:
    """The longest sequence a model takes, from its config alone; None where it has no limit."""
    config = AutoConfig.from_pretrained(path, revision=revision)
    return getattr(config, "max_position_embeddings", None)


def check_vocabularies(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> int:
    """Whether both tokenizers give every token the same id.

    Args:
        target: the target's tokenizer.
        draft: the draft's.

    Returns:
        The number of tokens: one past the largest id.

    Raises:
        ValueError: naming the first token that differs.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        token = min(set(ours.items()) ^ set(theirs.items()), key=lambda item: item[::-1])[0]
        raise ValueError(
            f"target and draft vocabularies differ ({len(ours)} and {len(theirs)} tokens): "
            f"token {token!r} has id {ours.get(token)} in the target, {theirs.get(token)} in the "
            "draft; speculative decoding needs the same tokens"
        )
    return max(ours.values()) + 1


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
