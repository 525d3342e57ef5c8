"""From a path or hub id to a model and a tokenizer, and whether two of them fit together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from spec_bench.engine import processes
from spec_bench.engine.checkpoint import read_module, reason_of
from spec_bench.engine.model import COMPILE, HuggingFaceModel, longest_sequence
from spec_bench.engine.probe import check_model
from spec_bench.engine.random_weights import PREFIX, TokenIds, random_config, random_module
from spec_bench.engine.weights import lay_by_columns

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
        path: local folder, hub id, or ``random:...`` for a known architecture without its weights.
        dtype: one of ``DTYPES``.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...
        device_map: passed through to transformers for models larger than one GPU (``auto`` or a
            JSON-like mapping as a sorted tuple of pairs); ``device`` is ignored for loading then.
        revision: hub revision.
        compile: how the forward pass is captured, one of ``COMPILE``.
        seed: of random weights; elsewhere without meaning.
        tensor_parallel: whether the model is split over the processes that ``torchrun`` started.

    Raises:
        ValueError: for an unknown dtype or way to compile, for a device or compiler that is not
            there, for a device map with random weights, and for a model to be split that has a
            device map, has no weights or has no processes to be split over.
    """

    path: str
    dtype: str = "float32"
    device: str = "cpu"
    device_map: str | tuple[tuple[str, int | str], ...] | None = None
    revision: str | None = None
    compile: str = "none"
    seed: int = 0
    tensor_parallel: bool = False

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
        if self.tensor_parallel:
            self._check_split()
        if self.path.startswith(PREFIX) and self.device_map is not None:
            raise ValueError(
                f"{self.path!r} is made on one device: pair.target_device_map must be null, got "
                f"{self.device_map!r}"
            )

    def _check_split(self) -> None:
        if processes.count() < 2:
            raise ValueError(
                "engine.tensor_parallel: true needs several processes: start with "
                "torchrun --nproc-per-node N -m spec_bench ..."
            )
        if self.device_map is not None or self.path.startswith(PREFIX):
            raise ValueError(
                f"engine.tensor_parallel: true splits a model with weights over processes; "
                f"{self.path!r} has "
                + ("a device map" if self.device_map is not None else "no weights")
            )


def load_model(spec: ModelSpec) -> HuggingFaceModel:
    """Loads a causal LM in eval mode.

    Args:
        spec: which one.

    Returns:
        The model behind the engine's interface; its vocabulary is the embedding's until
        ``check_vocabularies`` tells how many tokens exist.

    Raises:
        ValueError: in one line, why the path cannot be loaded, or what is wrong with its model:
            what its checkpoint lacks, or where it answers otherwise than one plain pass does.
    """
    if spec.path.startswith(PREFIX):
        module = random_module(spec.path, DTYPES[spec.dtype], spec.device, spec.seed)
        return _wrapped(module, spec)
    device_map: Any = spec.device_map
    if isinstance(device_map, tuple):
        device_map = dict(device_map)
    split = {"tp_plan": "auto"} if spec.tensor_parallel else {"device_map": device_map}
    module = read_module(spec.path, spec.revision, DTYPES[spec.dtype], split)
    if device_map is None and not spec.tensor_parallel:
        module = module.to(spec.device)
    return _wrapped(module.eval(), spec)


def _wrapped(module: PreTrainedModel, spec: ModelSpec) -> HuggingFaceModel:
    """A transformers model behind the engine's interface, tried once."""
    lay_by_columns(module)
    embedding = cast(Any, module.get_input_embeddings()).weight
    try:
        model = HuggingFaceModel(module, embedding.shape[0], embedding.device, spec.compile)
        check_model(model)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module that works otherwise fails in any way
        raise ValueError(
            f"cannot decode with model {spec.path!r} ({type(module).__name__}): "
            f"{reason_of(spec.path, error)}"
        ) from error
    return model


def load_tokenizer(path: str, revision: str | None = None) -> PreTrainedTokenizerBase | TokenIds:
    """Loads the tokenizer of a local folder or hub id; random weights have token ids only.

    Raises:
        ValueError: where transformers cannot load it, with its reason in one line.
    """
    if path.startswith(PREFIX):
        return TokenIds(random_config(path).vocab_size)
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot load tokenizer {path!r}: {reason_of(path, error)}") from error


def read_context_length(path: str, revision: str | None = None) -> int | None:
    """The longest sequence a model takes, from its config alone; None where it has no limit."""
    if path.startswith(PREFIX):
        config = random_config(path)
    else:
        config = AutoConfig.from_pretrained(path, revision=revision)
    return longest_sequence(config.get_text_config())


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


def common_tokenizer(
    tokenizers: Sequence[PreTrainedTokenizerBase | TokenIds],
) -> tuple[PreTrainedTokenizerBase | TokenIds, int]:
    """The tokenizer that a pair's prompts are read with, after checking that all agree.

    Args:
        tokenizers: the target's first; ``TokenIds`` for random weights, which agree with any real
            tokenizer (whether they embed its tokens is the model's matter).

    Returns:
        The first real one, else the first; and the number of tokens.

    Raises:
        ValueError: naming the first token on which two vocabularies differ, or the two sizes.
    """
    real = [one for one in tokenizers if not isinstance(one, TokenIds)]
    if real:
        return real[0], max(check_vocabularies(real[0], other) for other in real)
    sizes = [len(one) for one in tokenizers]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"target and draft vocabularies differ: {' and '.join(map(str, sizes))} tokens; "
            "speculative decoding needs the same tokens"
        )
    return tokenizers[0], sizes[0]
