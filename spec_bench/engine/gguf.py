"""A GGUF file as a model folder, once: its weights dequantised, its tokenizer beside them.

transformers reads such a file anew in every process, the tokenizer for most of a minute. Needs the
package ``gguf``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from spec_bench.settings.arguments import Parser
from spec_bench.settings.fields import one_line, shown
from spec_bench.system.model_cache import converted_folder, gguf_of, is_model

ABOUT = "converted.json"  # what a folder was made of


def convert(file: Path, folder: Path) -> None:
    """Writes a folder of float32 weights with config and tokenizer; a whole one or none.

    Args:
        file: GGUF, of an architecture that transformers reads.
        folder: holds no model yet.

    Raises:
        ValueError: the package ``gguf`` is missing, or transformers cannot read the file, or the
            file lacks a tensor.
    """
    if find_spec("gguf") is None:
        raise ValueError("GGUF files need the package gguf: pip install gguf")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

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
