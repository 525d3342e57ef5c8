"""The code of one paper: ``claims.py`` and ``figures.py`` next to its ``paper.yaml``.

Each is imported once, as a module of a package that is the paper's folder, so that one file may
import another: ``from .heads import best_heads``. Knows nothing about what is in a file.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zlib import crc32


@functools.cache
def code_of(folder: Path, name: str) -> ModuleType | None:
    """A file of a paper by its name without the ending; None where there is none."""
    if not (folder / f"{name}.py").is_file():
        return None
    package = f"spec_bench_paper_{folder.name}_{crc32(str(folder).encode()):08x}"
    if package not in sys.modules:
        made = sys.modules[package] = ModuleType(package)
        made.__path__ = [str(folder)]
    return import_module(f"{package}.{name}")
