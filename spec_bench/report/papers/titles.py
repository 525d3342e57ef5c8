"""How names in files are written for people."""

from __future__ import annotations

from spec_bench import columns
from spec_bench.names import DECODERS as _DECODERS
from spec_bench.names import MARKS, MEANINGS, TASKS

__all__ = ["DECODERS", "MARKS", "MEANINGS", "METRICS", "TASKS", "titled"]

DECODERS = {name: each.title for name, each in _DECODERS.items()}
METRICS = {each.name: each.title for each in columns.COLUMNS} | {"speedup": "speedup (×)"}


def titled(names: dict[str, str], name: str) -> str:
    """The written form of a name; the name itself where there is none."""
    return names.get(name, name)
