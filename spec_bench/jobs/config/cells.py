"""Parses a job's decoders into a list of cells, the baseline first.

Reads a decoder's file and mapping into its types, once. Knows nothing about models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import yaml

from spec_bench.records.sampling import SamplingSettings
from spec_bench.settings.configs import find_configs
from spec_bench.settings.fields import MOST_NODES, format_value
from spec_bench.settings.validation import (
    Ge,
    MinLen,
    NonEmptyStr,
    Requirement,
    StrictBool,
    StrictInt,
    read_settings,
    settings,
)
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.decoders import load_decoder_settings
from spec_bench.vocabulary.names import compose_decoder_name
from spec_bench.vocabulary.spec import parse_tree_spec

if TYPE_CHECKING:  # imports torch, which is not needed to refuse a wrong setting
    from spec_bench.decode.config import DecoderConfig

BASELINE = "ar"
PARTS = ("drafter", "tree", "verifier")
_MAX_TREES = 1_000_000
_MAX_COUNTED_DEPTH = 64  # with two factors there are more trees of this depth than can be run
Count = Annotated[StrictInt, Ge(1)]
Counts = Annotated[tuple[Count, ...], MinLen(1), Requirement("a list of whole numbers >= 1")]


@settings
class TreeGrid:
    """An entry ``{grid: {...}}`` of a list of cells, see ``list_trees``."""

    decoder: NonEmptyStr
    factors: Counts
    most: Count
    depths: Counts
    order: Literal["any", "non_increasing"]


def list_trees(
    factors: Sequence[int], max_paths: int, depths: Sequence[int], order: str
) -> list[tuple[int, ...]]:
    """Lists all trees of ``depths`` levels, shallow trees first; all nodes of a level have the same
    number of children, one of ``factors``, and a tree has at most ``max_paths`` leaf paths. With
    ``order`` ``non_increasing`` no level has a larger factor than the level above (MCSD's monotone
    rule, arXiv 2401.06706, section 4), which prunes the grid; with ``any`` it may.
    """
    return [
        widths
        for depth in depths
        for widths in product(sorted(set(factors)), repeat=depth)
        if prod(widths) <= max_paths
        and (order == "any" or all(a >= b for a, b in pairwise(widths)))
    ]


def expand_grid(entry: Any) -> list[Any]:
    """Expands ``{grid: {...}}`` to its cells; returns any other entry as the only item."""
    if not isinstance(entry, Mapping) or "grid" not in entry:
        return [entry]
    if len(entry) > 1:
        raise UsageError(f"a grid of cells stands alone, got {', '.join(map(str, entry))}")
    grid = read_settings(TreeGrid, entry["grid"], "grid")
    if max(grid.depths) > MOST_NODES:
        raise UsageError(f"grid.depths must be at most {MOST_NODES}, got {max(grid.depths)}")
    count = sum(len(set(grid.factors)) ** min(depth, _MAX_COUNTED_DEPTH) for depth in grid.depths)
    if count > _MAX_TREES:
        raise UsageError(
            f"grid has {format_value(count)} trees to look at, at most {_MAX_TREES} can be"
        )
    trees = list_trees(grid.factors, grid.most, grid.depths, grid.order)
    return [f"{grid.decoder}:{'-'.join(map(str, widths))}" for widths in trees]


@settings
class CellOverrides:
    """A cell as a mapping: a decoder, its tree in shorthand, and overrides of its parts."""

    decoder: NonEmptyStr
    # name in its rows; null: the decoder's name and the changed settings
    name: NonEmptyStr | None = None
    spec: Annotated[
        StrictInt | NonEmptyStr | None, Requirement("a tree in shorthand such as 3, 4x3, 2-2-1")
    ] = None
    drafter: Annotated[
        dict[str, Any] | NonEmptyStr | None,
        Requirement("a drafter's settings, or the name of another drafter"),
    ] = None
    tree: dict[str, Any] | None = None
    verifier: Annotated[
        dict[str, Any] | NonEmptyStr | None,
        Requirement("a verifier's settings, or the name of another rule"),
    ] = None
    tree_attention: StrictBool | None = None


@dataclass(frozen=True)
class Cell:
    """One decoder of a job."""

    config: DecoderConfig  # the decoder, its parts typed and checked
    # the resolved mapping that it was read from, which the run id hashes
    settings: Mapping[str, Any]

    @classmethod
    def from_mapping(
        cls, settings: Mapping[str, Any], sampling: SamplingSettings | None = None
    ) -> Cell:
        """Builds a cell from a decoder's resolved mapping."""
        # Only the decoders' modules, which need torch, know what a decoder may contain.
        from spec_bench.audit.decoders import refuse_inexact_plugin_rule
        from spec_bench.decode.config import read_decoder

        config = read_decoder(settings, sampling)
        refuse_inexact_plugin_rule(config.verifier, config.tree.name)
        return cls(config, settings)

    @property
    def name(self) -> str:
        """The decoder's name, with the settings that differ from its YAML file."""
        return self.config.name

    def with_name(self, name: str) -> Cell:
        """Returns the cell under another name, which is neither in its settings
        nor in its run id.
        """
        return replace(self, config=replace(self.config, name=name))

    @property
    def title(self) -> str:
        """Name and spec, for people."""
        return f"{self.name} {self.config.spec}"


class CellRequest(NamedTuple):
    """A cell as the user wrote it."""

    decoder_settings: dict[str, Any]
    spec: Any = None  # the shorthand of its tree
    file_settings: Mapping[str, Any] = MappingProxyType({})  # of its YAML file, if any
    row_name: str | None = None  # None: the decoder's name and its changed settings


def parse_cells(
    decoder: Mapping[str, Any], spec: Any, entries: Sequence[Any], folders: Sequence[Path]
) -> list[CellRequest]:
    """Parses the cells of a job: the baseline, then the ``entries`` (``decoder:spec``, mappings,
    grids of trees), or the chosen ``decoder`` if there are no entries. Decoders' files are read
    from ``folders``. Raises UsageError, with the decoder or entry, if a decoder does not exist or
    an entry is no cell.
    """
    cells = [cell for item in entries for cell in expand_grid(item)]
    requests = [parse_cell(item, folders) for item in cells]
    if not requests:
        name = decoder.get("name")
        file = (
            load_decoder_settings(folders, name) if name in find_configs("decoder", folders) else {}
        )
        requests = [CellRequest(dict(decoder), spec, file)]
    return [CellRequest(load_decoder_settings(folders, BASELINE)), *requests]


def build_unique_cells(
    requests: Sequence[CellRequest], sampling: SamplingSettings
) -> tuple[Cell, ...]:
    """Builds the cells of a job; of cells with equal settings only the first is kept."""
    unique: dict[str, Cell] = {}
    for cell in (build_cell(request, sampling) for request in requests):
        unique.setdefault(json.dumps(cell.settings, sort_keys=True, default=dict), cell)
    return tuple(unique.values())


def build_cell(request: CellRequest, sampling: SamplingSettings) -> Cell:
    """Builds a cell from a decoder's settings and the shorthand of its tree, and checks it as a
    whole. Raises UsageError, naming a tree, rule or combination that does not exist.

    A drafter or verifier given by name replaces the decoder's, with the settings given. The
    decoder's name then combines all of them, and lists changed settings that the tree's shorthand
    omits.
    """
    from spec_bench.decode.config import apply_tree_shorthand  # needs torch

    decoder, spec, file_settings, name = request
    drafter = decoder.get("drafter")
    rule = decoder.get("verifier")
    if isinstance(drafter, str) or isinstance(rule, str):
        decoder = {**decoder, "name": compose_decoder_name(str(decoder.get("name")), drafter, rule)}
    for part, key in (("drafter", "kind"), ("verifier", "rule")):
        if isinstance(decoder.get(part), str):
            decoder[part] = {key: decoder[part]}
            file_settings = (
                {**file_settings, part: decoder[part]} if file_settings else file_settings
            )
    cell = Cell.from_mapping(
        apply_tree_shorthand(decoder, None if spec is None else str(spec)), sampling
    )
    return cell.with_name(
        name or " ".join([cell.name, *_list_changed_settings(cell, file_settings)])
    )


def _list_changed_settings(cell: Cell, file_settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields ``key=value`` of the settings that differ from the decoder's file and are not in its
    tree's shorthand.
    """
    tree = cell.config.tree
    shorthand = parse_tree_spec(cell.config.spec)
    sizes = (shorthand.form in tree.forms and tree.parse_spec(shorthand)) or {}
    for part in PARTS if file_settings else ():
        for key, value in cell.settings[part].items():
            if (key, value) in file_settings[part].items() or (part == "tree" and key in sizes):
                continue
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            is_found = _find_decoder_part(key, file_settings) == part
            yield f"{key if is_found else f'{part}.{key}'}={text}"


def _find_decoder_part(key: str, file_settings: Mapping[str, Any]) -> str:
    """Finds the part of a decoder that has a key: ``tree`` for ``tree.gain`` or for ``gain``."""
    part, dot, _ = key.partition(".")
    return part if dot else next((name for name in PARTS if key in file_settings[name]), "verifier")


def parse_cell(entry: Any, folders: Sequence[Path]) -> CellRequest:
    """Parses an entry of a list of cells: ``decoder``, ``decoder:spec``, ``decoder key=value:spec``
    as in rows' names, or a mapping with overrides of the decoder's parts. Raises UsageError if the
    decoder is unknown or the mapping is no cell.
    """
    if isinstance(entry, str):
        name, colon, spec = entry.partition(":")
        if colon and not spec.strip():
            raise UsageError(f"{entry!r} names no tree behind its colon, such as sd:3")
        name, *words = name.split() if "=" in name else [name.strip()]
        entry = {"decoder": name, "spec": spec.strip() or None}
        for word in words:
            key, _, value = word.partition("=")
            part = _find_decoder_part(key, load_decoder_settings(folders, name))
            entry.setdefault(part, {})[key.removeprefix(f"{part}.")] = yaml.safe_load(value)
    elif len(entry) == 1 and "decoder" not in entry:
        # YAML reads `sd: 3` as a mapping of one entry.
        ((name, spec),) = entry.items()
        entry = {"decoder": str(name), "spec": spec}
    if "decoder" not in entry:
        raise UsageError(f"a cell is decoder:spec or a mapping with a decoder, got {entry!r}")
    overrides = read_settings(CellOverrides, entry, "cells")
    file_settings = load_decoder_settings(folders, overrides.decoder)
    decoder = dict(file_settings)
    for part in PARTS:
        changes = getattr(overrides, part)
        if isinstance(changes, str):
            decoder[part] = changes
        elif changes:
            decoder[part] = {**decoder.get(part, {}), **changes}
    if overrides.tree_attention is not None:
        decoder["tree_attention"] = overrides.tree_attention
    return CellRequest(decoder, overrides.spec, file_settings, overrides.name)
