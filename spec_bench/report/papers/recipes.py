"""Where papers lie, and the recipes beside them: ``experiments/PAPER``, ours or another package's.

Knows the files; nothing about what a paper says.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spec_bench.settings.configs import experiments_dir, experiments_dirs
from spec_bench.vocabulary.names import combined

PAPER = "paper.yaml"


def paper_folders() -> dict[str, Path]:
    """Paper -> folder; other packages' are found through the entry points ``spec_bench.configs``.

    Raises:
        ValueError: two folders have one paper's name.
    """
    found: dict[str, Path] = {}
    for path in (path for top in experiments_dirs() for path in sorted(top.glob(f"*/{PAPER}"))):
        folder = path.parent
        if folder.name in found:
            raise ValueError(f"two papers are called {folder.name}: {found[folder.name]}, {folder}")
        found[folder.name] = folder
    return found


@functools.cache
def read_recipe(name: str) -> Mapping[str, Any]:
    """What a recipe such as ``rsd=exp1`` says, as its file has it; not to be written to.

    Raises:
        ValueError: the recipe's file is not there.
    """
    paper, _, stem = name.partition("=")
    path = paper_folders().get(paper, experiments_dir() / paper) / f"{stem}.yaml"
    if not path.is_file():
        raise ValueError(f"recipe {name} has no file {path}")
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def recipe_name(name: str) -> str:
    """The results folder that a recipe names, ``rsd=exp1`` -> ``rsd-exp1``."""
    return str(read_recipe(name)["name"])


def recipe_cells(name: str) -> tuple[str, ...]:
    """The cells that a recipe lists, as ``decoder:tree``; none where it has no list."""
    entries = read_recipe(name).get("cells") or ()
    return tuple(cell for cell in map(_cell, entries) if cell)


def _cell(entry: str | Mapping[str, Any]) -> str:
    """A cell of a recipe as ``decoder:tree``, what else it sets left out; "" for a grid."""
    if isinstance(entry, str):
        return entry
    if "decoder" not in entry:
        return ""
    spec = str(entry.get("spec", ""))  # one that each pair has another of is left open
    name = combined(entry["decoder"], entry.get("drafter"), entry.get("verifier"))
    return f"{name}:{'' if '${' in spec else spec}"
