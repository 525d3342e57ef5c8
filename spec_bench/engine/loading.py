"""From a path or hub id to a model and a tokenizer, and whether two of them fit together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from spec_bench.engine.architectures import (
    ARCHITECTURES,
    PREFIX,
    architecture,
    longest_sequence,
    register_families,
)
from spec_bench.engine.attention import pack_shared_heads, split_long_prefixes
from spec_bench.engine.checkpoint import read_module, reason_of
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.mapped_model import keep_outputs
from spec_bench.engine.model import set_switches
from spec_bench.engine.model_spec import DTYPES as DTYPE_NAMES
from spec_bench.engine.model_spec import ModelSpec as ModelSpec
from spec_bench.engine.model_spec import kept_tokens, too_old
from spec_bench.engine.probe import check_model
from spec_bench.engine.products import call_directly, fuse_products, lay_by_columns, pack_products
from spec_bench.settings.fields import one_line

# Published architectures without their weights (``random:llama2_7b``, ``random:FOLDER``) are filled
# with seeded noise. Such a model has the speed, the memory and the energy of the real one; its
# output means nothing. It has no tokenizer, only token ids.


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
    """Returns the config of ``random:NAME`` or ``random:FOLDER``; see ``architecture``."""
    register_families()
    known, name = architecture(path), path.removeprefix(PREFIX)
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


DTYPES = {name: getattr(torch, name) for name in DTYPE_NAMES}


def load_model(spec: ModelSpec) -> HuggingFaceModel:
    """Loads a causal LM in eval mode; its vocabulary is the embedding's until
    ``check_vocabularies`` tells how many tokens exist.

    A ValueError says in one line why the path cannot be loaded or CUDA not started, or what is
    wrong with its model: what its checkpoint lacks, or where its answers differ from one plain
    pass.
    """
    set_switches()
    if spec.device.startswith("cuda"):
        _start_cuda(spec.device)
    if spec.path.startswith(PREFIX):
        module = random_module(spec.path, DTYPES[spec.dtype], spec.device, spec.seed)
    else:
        device_map: Any = spec.device_map
        if isinstance(device_map, tuple):
            device_map = dict(device_map)
        split = {"tp_plan": "auto"} if spec.tensor_parallel else {"device_map": device_map}
        module = read_module(spec.path, spec.revision, DTYPES[spec.dtype], split)
        if device_map is None and not spec.tensor_parallel:
            module = module.to(spec.device)
        if spec.outputs is not None:
            keep_outputs(module, kept_tokens(spec.outputs))
        module.eval()
    eager = spec.compile in ("none", "static")  # the others trace the modules' own calls
    if not (eager and pack_products(module)):
        lay_by_columns(module)
    if cast(Any, module.get_input_embeddings()).weight.is_cuda:
        pack_shared_heads(module)
        fuse_products(module)
    split_long_prefixes(module)
    model = tried(module, spec.path, spec.compile)
    if eager:
        call_directly(module)
    return model


def _start_cuda(device: str) -> None:
    try:
        torch.cuda.init()
    except RuntimeError as error:
        version = re.search(r"found version (\d+)|$", str(error))[1]  # type: ignore[index]
        reason = too_old(version or "") or one_line(error)
        raise ValueError(f"device {device!r} does not start: {reason}") from error


def is_model(value: object) -> bool:
    """Returns whether a value is a loaded transformers model."""
    return isinstance(value, PreTrainedModel)


def is_tokenizer(value: object) -> bool:
    """Returns whether a value is a loaded tokenizer of transformers."""
    return isinstance(value, PreTrainedTokenizerBase)


def adopt_model(module: PreTrainedModel, name: str, compile: str = "none") -> HuggingFaceModel:
    """Returns a model that somebody else has loaded, in eval mode and otherwise left as it is; a
    ValueError says in one line where its answers differ from one plain pass.
    """
    set_switches()
    return tried(module.eval(), name, compile)


def tried(module: PreTrainedModel, name: str, compile: str) -> HuggingFaceModel:
    """Returns a module behind the engine's interface, tried once; a ValueError if it cannot be
    decoded with.
    """
    try:
        embedding = cast(Any, module.get_input_embeddings()).weight
        model = HuggingFaceModel(module, embedding.shape[0], embedding.device, compile)
        check_model(model)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module that works differently may fail in any way
        raise ValueError(
            f"cannot decode with model {name!r} ({type(module).__name__}): {reason_of(name, error)}"
        ) from error
    return model


def load_tokenizer(path: str, revision: str | None = None) -> PreTrainedTokenizerBase | TokenIds:
    """Loads the tokenizer of a local folder or hub id; random weights have token ids only. A
    ValueError has transformers' reason in one line.
    """
    if path.startswith(PREFIX):
        return TokenIds(random_config(path).vocab_size)
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
    except Exception as error:  # a damaged file makes its reader raise anything
        raise ValueError(f"cannot load tokenizer {path!r}: {reason_of(path, error)}") from error


def read_context_length(path: str, revision: str | None = None) -> int | None:
    """The longest sequence a model takes, from its config alone; None if it has no limit."""
    if path.startswith(PREFIX):
        config = random_config(path)
    else:
        register_families()
        config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
    return longest_sequence(config.get_text_config())


def check_vocabularies(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> int:
    """Returns the number of tokens, one past the largest id, where both tokenizers give every token
    the same id; else a ValueError names the first token that differs.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        token = min(set(ours.items()) ^ set(theirs.items()), key=lambda item: item[::-1])[0]
        raise ValueError(
            f"target and draft vocabularies differ ({len(ours)} and {len(theirs)} tokens): token "
            f"{token!r} has id {ours.get(token)} in the target, {theirs.get(token)} in the draft; "
            "speculative decoding needs the same tokens"
        )
    return max(ours.values()) + 1


def common_tokenizer(
    tokenizers: Sequence[PreTrainedTokenizerBase | TokenIds],
) -> tuple[PreTrainedTokenizerBase | TokenIds, int]:
    """Returns the tokenizer that a pair's prompts are read with, the first real one if there is
    one, and the number of tokens.

    The target's comes first. ``TokenIds``, of random weights, agree with any real tokenizer
    (whether they embed its tokens is checked elsewhere). A ValueError names the first token on
    which two vocabularies differ, or the two sizes.
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
