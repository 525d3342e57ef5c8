"""The code of one paper: its claims, the functions of its ``claims.py``, in their order.

A function's docstring begins with the statement that it checks and the statement's place,
``“RSD-S always outperforms SD.” (Figure 4)``, or ``reported, in a summary's words: 5% (Section 2)``
where the paper's words are not at hand. Any other docstring says that the check is ours. Names that
begin with an underscore are no claims.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

CLAIMS = "claims"
_QUOTED = ("“", "reported,")
_STATED = re.compile(r"(“.+”|reported, in a summary's words: .+) \((.+)\)")


@functools.cache
def code_of(folder: Path, name: str) -> ModuleType | None:
    """A file of a paper's folder by its name without the ending; None where there is none.

    It is imported once, as a module of a package that is the folder, so that one file may import
    another: ``from .heads import best_heads``.
    """
    if not (folder / f"{name}.py").is_file():
        return None
    package = f"spec_bench_paper_{folder.name}_{crc32(str(folder).encode()):08x}"
    if package not in sys.modules:
        made = sys.modules[package] = ModuleType(package)
        made.__path__ = [str(folder)]
    return import_module(f"{package}.{name}")


@dataclass(frozen=True)
class Claim:
    """One statement, or one check of ours."""

    function: Callable[[Any], Iterable[Any]]  # yields checks of an ``Ask``
    statement: str  # the paper's words as a quotation, or what it reported; "" where it is ours
    section: str  # its place in the paper; "" where it is ours


def read_claims(folder: Path) -> tuple[Claim, ...]:
    """The claims of a paper's folder; none where it has no ``claims.py``.

    Raises:
        ValueError: a function's docstring does not say what it checks.
    """
    module = code_of(folder, CLAIMS)
    if module is None:
        return ()
    functions = [
        each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__
        if not name.startswith("_")
    ]
    return tuple(_claim(folder / f"{CLAIMS}.py", each) for each in functions)


def _claim(path: Path, function: Callable[[Any], Iterable[Any]]) -> Claim:
    said = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    stated = _STATED.fullmatch(said)
    if not said or (stated is None and said.startswith(_QUOTED)):
        raise ValueError(
            f"{path}: {function.__name__}: its docstring begins with the statement and its place, "
            "“...” (Section 5), or says what is checked beside the paper"
        )
    return Claim(function, *(stated.groups() if stated else ("", "")))
