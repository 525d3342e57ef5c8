"""Which cells a claim compares."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

import pandas as pd

from spec_bench.report.load import Group, Row

_CELL = (
    *("pair", "draft", "task", "temperature", "top_k", "top_p", "seed", "batch_size", "batching"),
    *("max_new_tokens", "tree_attention", "decoder", "spec"),
)


def of_experiment(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """The rows of these experiments, or all where none is of them; each cell once.

    Speeds of two experiments were not measured interleaved, so a claim stays within one where it
    can. A cell measured twice counts with the larger number of prompts.
    """
    if "experiment" in rows and rows.experiment.isin(names).any():
        rows = rows[rows.experiment.isin(names)]
    if "prompts" in rows:
        rows = rows.sort_values("prompts", ascending=False, kind="stable")
    return rows.drop_duplicates([name for name in _CELL if name in rows]).sort_index(kind="stable")


def with_tree_attention(rows: pd.DataFrame, wanted: bool = True) -> pd.DataFrame:
    """The rows with or without tree attention; a file without the column has it throughout."""
    if "tree_attention" not in rows:
        return rows if wanted else rows.iloc[:0]
    has = rows.tree_attention.map(lambda value: str(value).lower() != "false")
    return rows[has == wanted]


def cells(group: Group, decoder: str, specs: Iterable[str] | None = None) -> list[Row]:
    """A decoder's rows, of these trees."""
    found = group.by_decoder.get(decoder, [])
    if specs is None:
        return found
    wanted = set(specs)
    return [row for row in found if str(row["spec"]) in wanted]


def widths_of(spec: str) -> tuple[int, ...] | None:
    """``4-2-1`` as (4, 2, 1); None for another kind of tree."""
    if not re.fullmatch(r"\d+(-\d+)*", spec):
        return None
    return tuple(int(part) for part in spec.split("-"))


def size_of(decoder: str, spec: str) -> tuple[int, int]:
    """(depth, nodes) of a tree, its root not counted.

    Raises:
        ValueError: the shorthand is none of the papers'.
    """
    if decoder == "sd" and spec.isdigit():
        return int(spec), int(spec)
    if found := re.fullmatch(r"(\d+)x(\d+)", spec):
        count, depth = int(found[1]), int(found[2])
        return depth, count * depth
    widths = widths_of(spec)
    if widths is None:
        raise ValueError(f"{decoder} has no tree {spec!r}: 3, 4x3 and 2-2-1 are trees")
    return len(widths), sum(prod(widths[: level + 1]) for level in range(len(widths)))
