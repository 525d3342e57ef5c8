"""A benchmark and experiment-reproduction harness for speculative decoding.

``spec_bench.load_pair`` loads models that decode a prompt, ``spec_bench.run`` runs a job and gives
its rows; ``spec_bench.api`` describes both. Nothing heavy is imported before they are called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_bench.api import load_pair as load_pair
    from spec_bench.api import run as run

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for."""
    if name in ("load_pair", "run"):
        return getattr(import_module("spec_bench.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
