"""Where models that were fetched or converted are kept: outside of any checkout, for all of them.

``SPEC_BENCH_CACHE`` names another folder. Knows files only.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

GGUF = ".gguf"


def cache_folder() -> Path:
    """The folder that ``make clean`` removes."""
    given = os.environ.get("SPEC_BENCH_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "spec_bench"


def fetched_folder(name: str) -> Path:
    """Where a model that a command fetches by name lies, once it is there."""
    return cache_folder() / "models" / name


def is_model(folder: Path) -> bool:
    """Whether a model was fetched or converted to there; an empty folder is none."""
    return (folder / "config.json").is_file()


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one in a folder; None if neither."""
    if path.is_file():
        return path if path.suffix == GGUF else None
    files = list(path.glob(f"*{GGUF}")) if path.is_dir() else []
    return files[0] if len(files) == 1 else None


def converted_folder(file: Path) -> Path:
    """Where a GGUF file's weights lie as a model folder, once they were converted."""
    facts = file.stat()
    known = _digest(file.resolve(), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return fetched_folder(f"{file.stem}-{known[:12]}")


@cache
def _digest(file: Path, *state: int) -> str:
    """SHA-256 of all of a file, which this process reads once in each state."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
