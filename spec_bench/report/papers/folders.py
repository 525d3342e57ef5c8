"""Where the papers' data and the pairs' configs lie: in a wheel inside the package, else beside it.

Knows the file system only. The runner has functions of its own: the report never imports it.
"""

from __future__ import annotations

from pathlib import Path

import spec_bench


def conf_dir() -> Path:
    """The folder of configs.

    Raises:
        ValueError: the installation carries none.
    """
    return _folder("conf")


def experiments_dir() -> Path:
    """The folder of the papers' recipes and reference numbers.

    Raises:
        ValueError: the installation carries none.
    """
    return _folder("experiments")


def _folder(name: str) -> Path:
    package = Path(spec_bench.__file__).resolve().parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise ValueError(f"no folder {name!r} in {package} or beside it")
