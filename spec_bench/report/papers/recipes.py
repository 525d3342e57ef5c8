"""The folders of papers, with their recipes: ``experiments/PAPER``, ours or another package's.

Knows the files; nothing about their contents.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_bench.settings.configs import experiments_dir, experiments_dirs, read_config
from spec_bench.vocabulary.names import combined

PAPER = "paper.yaml"


def paper_folders() -> dict[str, Path]:
    """Paper -> folder; other packages' come from the entry points ``spec_bench.configs``.

    Raises:
        ValueError: two folders have one paper's name.
    """
    known: dict[str, Path] = {}
    for path in (path for top in experiments_dirs() for path in sorted(top.glob(f"*/{PAPER}"))):
        folder = path.parent
        if folder.name in known:
            raise ValueError(f"two papers are called {folder.name}: {known[folder.name]}, {folder}")
        known[folder.name] = folder
    return known


@functools.cache
def read_recipe(name: str) -> Mapping[str, Any]:
    """The contents of a recipe such as ``rsd=exp1``, over the one beside it that it begins with;
    not to be written to.

    Raises:
        ValueError: the recipe's file is not there.
    """
    paper, _, stem = name.partition("=")
    path = paper_folders().get(paper, experiments_dir() / paper) / f"{stem}.yaml"
    if not path.is_file():
        raise ValueError(f"recipe {name} has no file {path}")
    return read_config(path)


def recipe_name(name: str) -> str:
    """The results folder that a recipe names, ``rsd=exp1`` -> ``rsd-exp1``."""
    return str(read_recipe(name)["name"])


def recipe_cells(name: str) -> tuple[str, ...]:
    """The cells that a recipe lists, as ``decoder:tree``; none where it has no list."""
    entries = read_recipe(name).get("cells") or ()
    return tuple(cell for cell in map(_cell, entries) if cell)


def _cell(entry: str | Mapping[str, Any]) -> str:
    """A cell of a recipe as ``decoder:tree``, without its other settings; "" for a grid."""
    if isinstance(entry, str):
        return entry
    if "decoder" not in entry:
        return ""
    spec = str(entry.get("spec", ""))  # one that each pair has another of is left open
    name = combined(entry["decoder"], entry.get("drafter"), entry.get("verifier"))
    return f"{name}:{'' if '${' in spec else spec}"
