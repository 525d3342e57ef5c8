"""Packages that are stood in for: imported in no time, with every name in them, and of no use.

A process that only reads what modules declare (names, fields, checks of settings) needs of a slow
package only that its names exist: as annotations, base classes and decorators. Such a process must
end soon, for its modules stay bound to the stand-ins. Whatever computes with one fails.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def stand_in_for(packages: Collection[str]) -> None:
    """From now on imports of these packages, and of all in them, give stand-ins."""
    sys.meta_path.insert(0, _Finder(packages))


class _Kind(ABCMeta):
    """The class of stand-ins: each of their attributes is a stand-in."""

    def __getattr__(cls, name: str) -> Any:
        return _found(name)


class _StandIn(metaclass=_Kind):
    """A class, a decorator, a constant: all that a name may be while modules are imported."""

    def __new__(cls, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else object.__new__(cls)

    def __call__(self, decorated: Any) -> Any:
        return decorated

    def __getattr__(self, name: str) -> Any:
        return _found(name)


class _Module(ModuleType):
    """A package or module with every name in it."""

    def __getattr__(self, name: str) -> Any:
        return _found(name)


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins.

    Args:
        packages: that are stood in for.
    """

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _found(name: str) -> type[_StandIn]:
    """What stands behind a name, but for those that Python itself asks for."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandIn
