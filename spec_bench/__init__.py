"""A benchmark and experiment-reproduction harness for speculative decoding.

From Python: ``load_pair`` loads models that decode, ``run`` and ``sweep`` run jobs and give their
rows, ``plot`` draws them, ``compare`` sets two results against each other. ``spec_bench.api``
describes them and has the two whose names are folders here: ``api.recommend`` and ``api.audit``.
Nothing heavy is imported before one is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_bench import api as api
    from spec_bench.api import SamplingSettings as SamplingSettings
    from spec_bench.api import compare as compare
    from spec_bench.api import load_pair as load_pair
    from spec_bench.api import run as run
    from spec_bench.api import sweep as sweep
    from spec_bench.report.figures.frame import plot as plot

__version__ = "0.2.0"
__all__ = ["SamplingSettings", "api", "compare", "load_pair", "plot", "run", "sweep"]


def __getattr__(name: str) -> Any:
    """Returns the public names, imported when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "plot":
        return import_module("spec_bench.report.figures.frame").plot
    api = import_module("spec_bench.api")
    return api if name == "api" else getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__doc__", "__name__", "__file__", "__path__"])
