"""Where the papers' data and the pairs' configs lie."""

from __future__ import annotations

from pathlib import Path

from spec_bench.files import package_folder


def conf_dir() -> Path:
    """The folder of configs.

    Raises:
        ValueError: the installation carries none.
    """
    return package_folder("conf")


def experiments_dir() -> Path:
    """The folder of the papers' recipes and reference numbers.

    Raises:
        ValueError: the installation carries none.
    """
    return package_folder("experiments")
