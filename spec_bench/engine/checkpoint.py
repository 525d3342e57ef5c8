"""Reading a checkpoint: the whole of it or nothing, and what is wrong in one line.

transformers fills what a checkpoint lacks with random values and says so in a table; here that is
an error that names the tensor or the file.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from huggingface_hub.errors import GatedRepoError
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import cached_file, logging

from spec_bench.engine.architectures import register_families
from spec_bench.engine.model_spec import parsed
from spec_bench.settings.arguments import Parser
from spec_bench.settings.fields import one_line, shown
from spec_bench.system.model_cache import converted_folder, gguf_of, is_model


def read_module(
    path: str, revision: str | None, dtype: torch.dtype, placement: dict[str, Any]
) -> PreTrainedModel:
    """Reads a causal LM; ``placement`` is transformers' ``device_map`` or ``tp_plan``.

    A ValueError says in one line why it cannot be read: no such model, a damaged file, a missing
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


# A GGUF file as a model folder, once: its weights dequantised, its tokenizer beside them.
#
# transformers reads such a file anew in every process, the tokenizer for most of a minute. Needs
# the package `gguf`.


ABOUT = "converted.json"  # what a folder was made of


def convert(file: Path, folder: Path) -> None:
    """Writes a folder of float32 weights with config and tokenizer; a whole one or none. A
    ValueError where the package ``gguf`` is missing, transformers cannot read the file, or it lacks
    a tensor.
    """
    if find_spec("gguf") is None:
        raise ValueError("GGUF files need the package gguf: pip install gguf")
    given = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    try:
        quantised, found = AutoModelForCausalLM.from_pretrained(
            **given, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(**given)
    except Exception as error:  # a damaged or unknown file makes its reader raise anything
        raise ValueError(f"cannot read {str(file)!r}: {one_line(error)}") from error
    if missing := ", ".join(sorted(found["missing_keys"])):  # they were drawn at random
        raise ValueError(f"cannot read {str(file)!r}: it lacks {shown(missing, quoted=False)}")
    # transformers saves no model that it has read from GGUF: its weights go into one of their own.
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        module = type(quantised)(config)
    module.load_state_dict(quantised.state_dict(), assign=True)
    module.tie_weights()
    module.generation_config = quantised.generation_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f"{folder.name}.{uuid4().hex}.part")
    try:
        module.save_pretrained(part)
        tokenizer.save_pretrained(part)
        about = {"made_of": file.name, "weights": "dequantised to float32"}
        (part / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        part.rename(folder)
    except OSError:
        if not is_model(folder):  # nobody else was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """``spec-bench convert FILE``: 0 once the folder is there, 2 where it cannot be."""
    parser = Parser(
        prog="spec-bench convert",
        description="Makes a model folder of a GGUF file, once; then pair.target=FILE takes it.",
    )
    parser.add_argument("file", type=Path, help="a GGUF file, or a folder with one")
    file = gguf_of(parser.parse_args(list(arguments)).file.expanduser())
    try:
        if file is None:
            raise ValueError(f"{arguments[0]!r} is no GGUF file, and no folder with one")
        folder = converted_folder(file)
        if not is_model(folder):
            convert(file, folder)
    except (OSError, ValueError) as error:
        print(f"spec_bench convert: {one_line(error)}", file=sys.stderr)
        return 2
    print(f"{file.name}, dequantised to float32: {folder}")
    return 0
