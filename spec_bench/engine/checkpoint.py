"""Reading a checkpoint: the whole of it or nothing, and what is wrong in one line.

transformers fills what a checkpoint lacks with random values and says so in a table; here that is
an error that names the tensor or the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import GatedRepoError
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import cached_file, logging

from spec_bench.engine.families import register_families
from spec_bench.engine.vocabularies import parsed


def read_module(
    path: str, revision: str | None, dtype: torch.dtype, placement: dict[str, Any]
) -> PreTrainedModel:
    """Reads a causal LM; ``placement`` is transformers' ``device_map`` or ``tp_plan``.

    Raises:
        ValueError: in one line, why it cannot be read: no such model, a damaged file, a missing
            tensor or one of another shape than the config's.
    """
    register_families()
    if parsed(Path(path).expanduser() / "config.json").get("is_encoder_decoder") is True:
        raise ValueError(
            f"cannot load model {path!r}: it is an encoder with a decoder, and only models that "
            "are a decoder alone can be decoded"
        )
    try:
        with _without_report():
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
    except Exception as error:  # transformers, safetensors and torch raise a dozen kinds of them
        reason = _damaged_file(path, revision) or reason_of(path, error)
        raise ValueError(f"cannot load model {path!r}: {reason}") from error
    scaled = getattr(module.config, "quantization_config", None)
    lacking = _lacking(info) or ("" if scaled else _whole_numbers(path, revision))
    if lacking:
        raise ValueError(f"cannot load model {path!r}: its checkpoint {lacking}")
    return module


def reason_of(path: str, error: BaseException) -> str:
    """Why transformers could not load a path, in one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return (
                "the repository is gated; request access on its model page on the Hugging Face hub "
                f"({path}) and put a token of that account into HF_TOKEN"
            )
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, OSError) or type(error) is ValueError:
        return lines[0] if lines else type(error).__name__
    return f"{type(error).__name__}: {' '.join(lines[:2])}"


def _lacking(info: dict[str, Any]) -> str:
    """What a checkpoint lacks of the model that its config describes; empty if nothing."""
    missing, other = sorted(info["missing_keys"]), sorted(info["mismatched_keys"])
    if other:
        name, *shapes = other[0]
        stored, wanted = (list(shape) for shape in shapes)
        rest = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
        return (
            f"has a tensor of another shape than its config says: {name!r} is {stored}, not "
            f"{wanted}{rest}"
        )
    if missing:
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"lacks tensors: {missing[0]!r}{rest}"
    return ""


def _whole_numbers(path: str, revision: str | None) -> str:
    """Which weight is stored as whole numbers, of which nothing tells the scale; empty if none."""
    for file in _weight_files(path, revision):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                    kind = opened.get_slice(name).get_dtype()
                    if name.endswith(".weight") and kind.startswith(("I", "U", "BOOL")):
                        return f"stores {name!r} as whole numbers ({kind}) and no scale of theirs"
    return ""


def _damaged_file(path: str, revision: str | None) -> str:
    """Which weight file cannot be read, and why; empty if all can."""
    for file in _weight_files(path, revision):
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as opened:
                    opened.keys()
            else:
                torch.load(file, map_location="meta", weights_only=True)
        except Exception as error:  # whatever a damaged file makes its reader raise
            if file.suffix == ".safetensors":
                return f"{file.name} is damaged or cut off ({reason_of(path, error)})"
            return (
                f"{file.name} holds no plain weights, is damaged or cut off; it was not run "
                f"({type(error).__name__})"
            )
    return ""


def _weight_files(path: str, revision: str | None) -> list[Path]:
    """The weight files on this machine: of a folder, or of a hub id's copy."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        try:
            config = cached_file(path, "config.json", revision=revision, local_files_only=True)
        except OSError:
            return []
        folder = Path(str(config)).parent
    return [file for kind in ("*.safetensors", "*.bin") for file in sorted(folder.glob(kind))]


@contextmanager
def _without_report() -> Iterator[None]:
    """Keeps transformers from printing its table of what was found; ours is one line."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
