"""Loads models and tokenizers from paths or hub ids, and checks that two tokenizers agree."""

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from spec_bench.engine.architectures import PREFIX, register_model_families
from spec_bench.engine.attention import install_grouped_attention, install_split_attention
from spec_bench.engine.checkpoint import explain_load_error, load_module, read_config_json
from spec_bench.engine.fused_linear import fuse_linear_groups
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.mapped_model import cut_output_layer
from spec_bench.engine.model import set_cuda_precision_flags
from spec_bench.engine.model_spec import DTYPES as DTYPE_NAMES
from spec_bench.engine.model_spec import ModelSpec as ModelSpec
from spec_bench.engine.model_spec import explain_old_driver, read_output_ids
from spec_bench.engine.plain import can_run_plainly
from spec_bench.engine.probe import check_cached_answers
from spec_bench.engine.products import (
    format_product_ways,
    pack_linear_layers,
    store_weights_by_column,
)
from spec_bench.engine.random_model import TokenIds, load_random_config, make_random_module
from spec_bench.settings.fields import to_one_line
from spec_bench.system.errors import UsageError
from spec_bench.system.hub import probe_hub_and_set_offline

DTYPES = {name: getattr(torch, name) for name in DTYPE_NAMES}


def load_model(spec: ModelSpec) -> HuggingFaceModel:
    """Loads a causal LM in eval mode. Its vocabulary has the size of the embedding until the
    tokenizers' number of tokens is known.

    Raises UsageError with the reason in one line: the path cannot be loaded, CUDA does not start,
    the checkpoint lacks tensors, or the model's cached answers differ from those of a plain pass.
    """
    set_cuda_precision_flags()
    if spec.device.startswith("cuda"):
        _start_cuda(spec.device)
    if spec.path.startswith(PREFIX):
        module = make_random_module(spec.path, DTYPES[spec.dtype], spec.device, spec.seed)
    else:
        device_choice: Any = spec.device_map
        device_map = dict(device_choice) if isinstance(device_choice, tuple) else device_choice
        split = {"tp_plan": "auto"} if spec.tensor_parallel else {"device_map": device_map}
        module = load_module(spec.path, spec.revision, DTYPES[spec.dtype], split)
        if device_map is None and not spec.tensor_parallel:
            module = module.to(spec.device)
        if spec.outputs is not None:
            cut_output_layer(module, read_output_ids(spec.outputs))
        module.eval()
    plain = can_run_plainly(module)
    product_ways = pack_linear_layers(module, join_groups=plain)
    if not product_ways:
        store_weights_by_column(module)
    if module.get_input_embeddings().weight.is_cuda:
        install_grouped_attention(module)
        if plain:
            fuse_linear_groups(module)
    install_split_attention(module)
    model = wrap_and_probe(module, spec.path, spec.compile)
    model.products = format_product_ways(product_ways)
    return model


def _start_cuda(device: str) -> None:
    try:
        torch.cuda.init()
    except RuntimeError as error:
        version = re.search(r"found version (\d+)|$", str(error))[1]  # type: ignore[index]
        reason = explain_old_driver(version or "") or to_one_line(error)
        raise UsageError(f"device {device!r} does not start: {reason}") from error


def is_transformers_model(value: object) -> bool:
    """Returns whether a value is a loaded transformers model."""
    return isinstance(value, PreTrainedModel)


def is_transformers_tokenizer(value: object) -> bool:
    """Returns whether a value is a loaded tokenizer of transformers."""
    return isinstance(value, PreTrainedTokenizerBase)


def wrap_loaded_model(
    module: PreTrainedModel,
    name: str,
    compile: str = "none",
) -> HuggingFaceModel:
    """Wraps a loaded model; puts it in eval mode and changes nothing else. Raises UsageError, in
    one line, if its cached answers differ from those of a plain pass.
    """
    set_cuda_precision_flags()
    return wrap_and_probe(module.eval(), name, compile)


def wrap_and_probe(module: PreTrainedModel, name: str, compile: str) -> HuggingFaceModel:
    """Wraps a module in the engine's interface and probes it once. Raises UsageError if decoding
    with it would be wrong.
    """
    try:
        embedding = module.get_input_embeddings().weight
        model = HuggingFaceModel(module, embedding.shape[0], embedding.device, compile)
        check_cached_answers(model)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module that works differently may fail in any way
        reason = explain_load_error(name, error)
        raise UsageError(
            f"cannot decode with model {name!r} ({type(module).__name__}): {reason}"
        ) from error
    return model


def load_tokenizer(path: str, revision: str | None = None) -> PreTrainedTokenizerBase | TokenIds:
    """Loads the tokenizer of a local folder or hub id; ``TokenIds`` for random weights. Raises
    UsageError with transformers' reason in one line.
    """
    if path.startswith(PREFIX):
        return TokenIds(load_random_config(path).vocab_size)
    if not Path(path).is_dir():
        probe_hub_and_set_offline()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
        if len(tokenizer) <= len(
            tokenizer.all_special_tokens
        ):  # of no files transformers makes one
            raise UsageError("it has no tokens but special ones: files such as tokenizer.json")
    except Exception as error:  # a damaged file makes its reader raise anything
        hint = "; pair.tokenizer=ID_OR_FOLDER names another" * Path(path).is_dir()
        raise UsageError(
            f"cannot load tokenizer {path!r}: {explain_load_error(path, error)}{hint}"
        ) from error
    return set_answer_ends(tokenizer, read_end_ids(path, revision))


def read_end_ids(path: str, revision: str | None = None) -> Any:
    """Reads the id or ids at which transformers' ``generate`` ends a model's answers; None if its
    files name none.
    """
    config = read_config_json(path, revision)
    ends = {**config, **(config.get("text_config") or {})}.get("eos_token_id")
    with suppress(OSError):
        generation_ends = GenerationConfig.from_pretrained(path, revision=revision).eos_token_id
        ends = ends if generation_ends is None else generation_ends
    return ends


@cache
def load_tokenizer_once(path: str, revision: str | None, folder_state: str | None) -> Any:
    """Loads a tokenizer, cached per process and state of its folder."""
    return load_tokenizer(path, revision)


def set_answer_ends(tokenizer: Any, ends: int | Sequence[int] | None) -> Any:
    """Sets a tokenizer's ``answer_ends``, the ids that end answers; see ``end_ids``."""
    end_list = [ends] if isinstance(ends, int) else ends or ()
    vocab_ids = set(tokenizer.get_vocab().values())
    tokenizer.answer_ends = tuple(int(end) for end in end_list if end in vocab_ids)
    return tokenizer


def load_config(path: str, revision: str | None = None) -> PretrainedConfig:
    """Loads a model's config, without weights."""
    if path.startswith(PREFIX):
        return load_random_config(path)
    register_model_families()
    if not Path(path).is_dir():
        probe_hub_and_set_offline()
    return AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)


def require_same_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> int:
    """Returns the number of tokens, which is the largest id plus 1, if both tokenizers give every
    token the same id. Raises UsageError with the first token that differs.
    """
    ours = target.get_vocab()
    theirs = draft.get_vocab()
    if ours != theirs:
        token = min(set(ours.items()) ^ set(theirs.items()), key=lambda item: item[::-1])[0]
        raise UsageError(
            f"target and draft vocabularies differ ({len(ours)} and {len(theirs)} tokens): token "
            f"{token!r} has id {ours.get(token)} in the target, {theirs.get(token)} in the draft; "
            "speculative decoding needs the same tokens, or a job's "
            "pair.draft_vocabulary=intersection"
        )
    return max(ours.values()) + 1


def choose_common_tokenizer(
    tokenizers: Sequence[PreTrainedTokenizerBase | TokenIds],
) -> tuple[PreTrainedTokenizerBase | TokenIds, int]:
    """Chooses the tokenizer for a pair's prompts: the first real tokenizer, if there is one. Also
    returns the number of tokens.

    The target's comes first. ``TokenIds``, of random weights, agree with any real tokenizer; that
    the model embeds its tokens is checked elsewhere. Raises UsageError with the first token on
    which two vocabularies differ, or with their two sizes.
    """
    real = [tokenizer for tokenizer in tokenizers if not isinstance(tokenizer, TokenIds)]
    if real:
        return real[0], max(
            require_same_vocabulary(real[0], real_tokenizer) for real_tokenizer in real
        )
    sizes = [len(tokenizer) for tokenizer in tokenizers]
    if len(set(sizes)) > 1:
        raise UsageError(
            f"target and draft vocabularies differ: {' and '.join(map(str, sizes))} tokens; "
            "speculative decoding needs the same tokens"
        )
    return tokenizers[0], sizes[0]
