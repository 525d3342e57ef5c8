"""Former names of the plug-ins' and notebooks' interface: they work for one version more, with a
warning.

If a plug-in's class defines a member under its former name, the member is added under its present
name, so that a package written for the last version still works.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar


def _warn_of_former_name(former: str, name: str) -> None:
    message = f"{former} is called {name} now; the former name goes with the next version"
    level = 2  # of the user's code, which may call by way of a metaclass
    while sys._getframe(level - 1).f_code.co_filename in (__file__, "<frozen abc>"):
        level += 1
    warnings.warn(message, FutureWarning, stacklevel=level)


class FormerMembers:
    """Base of classes with renamed members; subclasses and callers may still use the names in
    ``former_members``.
    """

    former_members: ClassVar[Mapping[str, str]] = {}  # former name -> present name

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for former, name in cls.former_members.items():
            if former in vars(cls):
                _warn_of_former_name(f"{cls.__name__}.{former}", name)
                setattr(cls, name, vars(cls)[former])

    if not TYPE_CHECKING:  # mypy would accept any attribute

        def __getattr__(self, former: str) -> Any:
            name = self.former_members.get(former)
            if name is None:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {former!r}")
            _warn_of_former_name(f"{type(self).__name__}.{former}", name)
            return getattr(self, name)


def make_former_getattr(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes a ``__getattr__`` for a module that also finds its objects by their
    former ``names``.
    """

    def find_name(former: str) -> Any:
        if former not in names:
            raise AttributeError(f"module {module!r} has no attribute {former!r}")
        _warn_of_former_name(f"{module}.{former}", names[former])
        return getattr(import_module(module), names[former])

    return find_name
