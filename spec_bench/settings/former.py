"""Former names of what plug-ins and notebooks use: they work for one version more, with a warning.

A plug-in's class that defines a member under its former name is given the present one, so that a
package written for the last version goes on working.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar


def _warn_of_former_name(former: str, name: str) -> None:
    message = f"{former} is called {name} now; the former name goes with the next version"
    warnings.warn(message, FutureWarning, stacklevel=3)


class FormerMembers:
    """Base of classes with renamed members: subclasses may define them, and callers read them, by
    the names in ``former_members``.
    """

    former_members: ClassVar[Mapping[str, str]] = {}  # former name -> present name

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for former, name in cls.former_members.items():
            if former in vars(cls):
                _warn_of_former_name(f"{cls.__name__}.{former}", name)
                setattr(cls, name, vars(cls)[former])

    if not TYPE_CHECKING:  # mypy would take any attribute for one

        def __getattr__(self, former: str) -> Any:
            name = self.former_members.get(former)
            if name is None:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {former!r}")
            _warn_of_former_name(f"{type(self).__name__}.{former}", name)
            return getattr(self, name)


def make_former_getattr(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes a module's ``__getattr__``, which finds its objects by their former ``names`` too."""

    def find_name(former: str) -> Any:
        if former not in names:
            raise AttributeError(f"module {module!r} has no attribute {former!r}")
        _warn_of_former_name(f"{module}.{former}", names[former])
        return getattr(import_module(module), names[former])

    return find_name
