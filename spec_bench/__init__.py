"""A benchmark and experiment-reproduction harness for speculative decoding.

From Python: ``load_pair`` loads models that decode, ``run`` and ``sweep`` run jobs and give their
rows, ``recommend``, ``compare`` and ``audit`` do what the commands of these names do.
``spec_bench.api`` describes them. Nothing heavy is imported before they are called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_bench.api import compare as compare
    from spec_bench.api import load_pair as load_pair
    from spec_bench.api import run as run
    from spec_bench.api import sweep as sweep

__version__ = "0.2.0"
__all__ = ["audit", "compare", "load_pair", "recommend", "run", "sweep"]
_ROOMS = ("audit", "recommend")  # folders too: the import system binds them under these names


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for."""
    if name in _ROOMS:
        return import_module(f"spec_bench.{name}")
    if name in __all__:
        return getattr(import_module("spec_bench.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__doc__", "__name__", "__file__", "__path__"])


class _Room(ModuleType):
    """A folder of the package that is called like the function of its name."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self.__wrapped__(*args, **settings)

    @property
    def __wrapped__(self) -> Any:
        """The function, for whoever asks for its arguments."""
        return getattr(import_module("spec_bench.api"), self.__name__.rpartition(".")[2])


class _Package(ModuleType):
    """This module, which makes its rooms callable once they are bound."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ROOMS and type(value) is ModuleType:
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
