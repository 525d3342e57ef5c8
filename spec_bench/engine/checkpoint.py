"""Loads checkpoints completely or not at all, and describes a fault in one line.

transformers fills missing tensors with random values and drops tensors that the config has no place
for, and reports both in a table. Here either is an error that names the tensor or the file.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import GatedRepoError
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import cached_file, logging

from spec_bench.engine.architectures import register_model_families
from spec_bench.engine.model_spec import refuse_unreadable_weights
from spec_bench.system.errors import UsageError

# Tensors that may be dropped, besides those that transformers drops: of vision and audio, of
# scoring and drafting heads, and those that follow from the config.
_LEFT_OUT = re.compile(
    r"vis(ion|ual)|image|audio|mm_|multi_modal|(^|\.)(mtp|v_head|score|classifier)|inv_freq$"
    r"|position_ids$|att(n|ention)\.(masked_)?bias$|\.(input|output|[qkv])_(scale|zero_point)$"
)


def load_module(
    path: str,
    revision: str | None,
    dtype: torch.dtype,
    placement: dict[str, Any],
) -> PreTrainedModel:
    """Loads a causal LM; ``placement`` is transformers' ``device_map`` or ``tp_plan``.

    Raises UsageError with the reason in one line: no such model, a damaged file, a tensor that is
    missing or differs in shape from the config.
    """
    register_model_families()
    config = read_config_json(path, revision)
    if config.get("is_encoder_decoder") is True:
        raise UsageError(
            f"cannot load model {path!r}: it is an encoder with a decoder, and only models that "
            "are a decoder alone can be decoded"
        )
    refuse_unreadable_weights(path, config)
    packed = config.get("quantization_config")
    try:
        with _silence_transformers():
            if packed:
                plain = AutoQuantizationConfig.from_dict({**packed, "dequantize": True})
                placement = {**placement, "quantization_config": plain}
            module, info = AutoModelForCausalLM.from_pretrained(
                path,
                revision=revision,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
                **placement,
            )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # transformers, safetensors and torch raise many kinds
        reason = _describe_damaged_file(path, revision) or explain_load_error(path, error)
        raise UsageError(f"cannot load model {path!r}: {reason}") from error
    misfit = (
        _describe_missing_tensors(info)
        or _describe_extra_tensors(info["unexpected_keys"], config)
        or _describe_zero_parts(module)
        or ("" if packed else _describe_integer_weights(path, revision))
    )
    if misfit:
        raise UsageError(f"cannot load model {path!r}: its checkpoint {misfit}")
    # transformers 5.17 leaves some dequantised parameters in bfloat16
    for parameter in module.parameters() if packed else ():
        if parameter.dtype != torch.float32:
            parameter.data = parameter.data.to(dtype)
    return module


def read_config_json(path: str, revision: str | None) -> dict[str, Any]:
    """Reads a model's config.json; returns {} if that fails, because loading reports it."""
    try:
        return dict(PretrainedConfig.get_config_dict(path, revision=revision)[0])
    except Exception:
        return {}


def read_dtype_name(path: str, revision: str | None = None) -> str:
    """Returns the dtype that a model's config.json names; "None" if it names none."""
    config = read_config_json(path, revision)
    inside = {**config, **(config.get("text_config") or {})}
    return str(inside.get("dtype") or inside.get("torch_dtype"))


def explain_load_error(path: str, error: BaseException) -> str:
    """Explains in one line why transformers could not load a path."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return (
                "the repository is gated; request access on its model page on the Hugging Face hub "
                f"({path}) and put a token of that account into HF_TOKEN"
            )
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, OSError) or type(error) in (ValueError, UsageError):
        first_line = lines[0] if lines else type(error).__name__
        return " ".join(lines) if first_line[-1] == ":" else first_line  # what follows says it
    return f"{type(error).__name__}: {' '.join(lines[:2])}"


def _name_first(names: Sequence[str]) -> str:
    """Names the first of several tensors or parts, and says how many more there are."""
    return f"{names[0]!r} and {len(names) - 1} more" if len(names) > 1 else repr(names[0])


def _describe_missing_tensors(info: dict[str, Any]) -> str:
    """Describes the first tensor that a checkpoint lacks or has in another shape; "" if there is
    none.
    """
    missing = sorted(info["missing_keys"])
    mismatched = sorted(info["mismatched_keys"])
    if mismatched:
        name, *shapes = mismatched[0]
        stored_shape, config_shape = (list(shape) for shape in shapes)
        suffix = f" (and {len(mismatched) - 1} more)" if len(mismatched) > 1 else ""
        return (
            f"has a tensor of another shape than its config says: {name!r} is {stored_shape}, not "
            f"{config_shape}{suffix}"
        )
    if missing:
        return f"lacks tensors: {_name_first(missing)}"
    return ""


def _describe_extra_tensors(names: Iterable[str], config: Mapping[str, Any]) -> str:
    """Describes the first tensor of a checkpoint that has no place in the model; "" if all may be
    dropped.
    """
    layers = int(config.get("num_hidden_layers") or 0)
    drafting = range(layers, layers + int(config.get("num_nextn_predict_layers") or 0))
    draft_prefixes = tuple(f"model.layers.{layer}." for layer in drafting)
    extra = sorted(
        name for name in names if not (_LEFT_OUT.search(name) or name.startswith(draft_prefixes))
    )
    return f"holds tensors that its config has no place for: {_name_first(extra)}" if extra else ""


def _describe_zero_parts(module: torch.nn.Module) -> str:
    """Describes the first part of a model whose matrices are all zeros; "" if there is none."""
    parts: dict[str, list[bool]] = {}
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1 and not parameter.is_meta:
            part = re.sub(r"(\.\d+)\..*", r"\1", name)  # a layer, or a tensor of its own
            has_values = bool(parameter.view(-1)[:1024].any() or parameter.any())
            parts.setdefault(part, []).append(has_values)
    zeros = [part for part, has_values in parts.items() if not any(has_values)]
    return f"holds nothing but zeros in {_name_first(zeros)}" if zeros else ""


def _describe_integer_weights(path: str, revision: str | None) -> str:
    """Describes a weight that is stored as integers, in a checkpoint without scales; "" if there is
    none.
    """
    for file in _list_weight_files(path, revision):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as checkpoint:
                for name in checkpoint.keys():  # noqa: SIM118 - it is no dictionary
                    kind = checkpoint.get_slice(name).get_dtype()
                    if name.endswith(".weight") and kind.startswith(("I", "U", "BOOL")):
                        return f"stores {name!r} as whole numbers ({kind}) and no scale of theirs"
    return ""


def _describe_damaged_file(path: str, revision: str | None) -> str:
    """Describes the first weight file that cannot be read, and the reason; ""
    if all can be read.
    """
    for file in _list_weight_files(path, revision):
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as checkpoint:
                    checkpoint.keys()
            else:
                torch.load(file, map_location="meta", weights_only=True)
        except Exception as error:  # a damaged file can make its reader raise anything
            if file.suffix == ".safetensors":
                return f"{file.name} is damaged or cut off ({explain_load_error(path, error)})"
            return (
                f"{file.name} holds no plain weights, is damaged or cut off; it was not run "
                f"({type(error).__name__})"
            )
    return ""


def _list_weight_files(path: str, revision: str | None) -> list[Path]:
    """Lists the local weight files of a folder, or of a hub id's downloaded copy."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        try:
            config = cached_file(path, "config.json", revision=revision, local_files_only=True)
        except OSError:
            return []
        folder = Path(str(config)).parent
    return [file for kind in ("*.safetensors", "*.bin") for file in sorted(folder.glob(kind))]


@contextmanager
def _silence_transformers() -> Iterator[None]:
    """Silences transformers' log and progress bars in this block."""
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
