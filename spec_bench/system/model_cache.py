"""Where models that were fetched or converted are kept: outside of any checkout, for all of them.

``SPEC_BENCH_CACHE`` names another folder. Knows files only.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

GGUF = ".gguf"
_SAMPLE_BYTES = 1 << 20  # of either end of a file


def cache_folder() -> Path:
    """The folder that ``make clean`` removes."""
    given = os.environ.get("SPEC_BENCH_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "spec_bench"


def fetched_folder(name: str) -> Path:
    """Where a model that a command fetches by name lies, once it is there."""
    return cache_folder() / "models" / name


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one in a folder; None if neither."""
    if path.is_file():
        return path if path.suffix == GGUF else None
    files = list(path.glob(f"*{GGUF}")) if path.is_dir() else []
    return files[0] if len(files) == 1 else None


def converted_folder(file: Path) -> Path:
    """Where a GGUF file's weights lie as a model folder, once they were converted."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{size}".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(_SAMPLE_BYTES))
        stream.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(stream.read(_SAMPLE_BYTES))
    return fetched_folder(f"{file.stem}-{digest.hexdigest()[:12]}")
