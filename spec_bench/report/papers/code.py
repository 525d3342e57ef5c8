"""The code of one paper: ``paper.py`` next to its ``paper.yaml``.

Claim functions register themselves there; a drawing's ``source`` and ``drawer`` and a claim's
``join`` and ``compare`` name functions of it. Knows how to import such a file; nothing about its
functions.
"""

from __future__ import annotations

import functools
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

CODE = "paper.py"


@functools.cache
def code_of(folder: Path) -> ModuleType | None:
    """A paper's code, imported once; None where it has none."""
    path = folder / CODE
    if not path.is_file():
        return None
    spec = spec_from_file_location(f"spec_bench_paper_{folder.name}", path)
    assert spec is not None and spec.loader is not None, "it is a Python file"
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def form_of(folder: Path | None, name: str, where: str) -> Any:
    """A function of a paper's code, which a key names.

    Raises:
        ValueError: there is none.
    """
    function = getattr(code_of(folder), name, None) if folder is not None else None
    if not callable(function):
        file = CODE if folder is None else folder / CODE
        raise ValueError(f"{where} must be a function in {file}, got {name!r}")
    return function
