"""The pairs of ``conf/pair``: which config a paper's pair is, and what stands in for what."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spec_bench.report.papers.folders import conf_dir


@dataclass(frozen=True)
class PairConfig:
    """What the report needs of a pair's config.

    Attributes:
        name: the config's; results bear it as their label.
        target: the model.
        drafts: the models that draft.
        printed: (target, draft) as papers print them; empty for a pair that no paper has. A
            target with heads alone has "" for its draft.
        stand_in: what the paper used instead of the draft, where that was never published.
        target_parameters: where the config states them.
    """

    name: str
    target: str
    drafts: tuple[str, ...]
    printed: frozenset[tuple[str, str]]
    stand_in: str | None
    target_parameters: int | None


@functools.cache
def pair_configs() -> dict[str, PairConfig]:
    """All pair configs by name."""
    return {path.stem: _config(path) for path in sorted((conf_dir() / "pair").glob("*.yaml"))}


@functools.cache
def pair_of(target: str, draft: str) -> str | None:
    """The config of a paper's pair; None where there is none."""
    for name, config in pair_configs().items():
        if (target, draft) in config.printed:
            return name
    return None


def _config(path: Path) -> PairConfig:
    data = _read(path)
    paper = data.get("paper") or {}
    printed = frozenset(
        (target, draft)
        for target in _listed(paper.get("target"))
        for draft in _listed(paper.get("draft")) or [""]
    )
    drafts = tuple(_listed(data.get("draft")))
    return PairConfig(
        path.stem,
        str(data.get("target")),
        drafts,
        printed,
        data.get("stand_in") or None,
        data.get("target_parameters"),
    )


def _read(path: Path) -> dict[str, Any]:
    """A config over those that its ``defaults`` name."""
    own: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    merged: dict[str, Any] = {}
    for entry in own.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            merged |= _read(path.parent / f"{entry.partition('@')[0]}.yaml")
    return merged | own


def _listed(value: Any) -> list[str]:
    return (
        []
        if value is None
        else [str(each) for each in value]
        if isinstance(value, list)
        else [str(value)]
    )


def wanted_pair(target: str, draft: str, asked: str | None) -> str | None:
    """Which pair's rows stand beside a paper's pair.

    Args:
        target: as the paper prints it.
        draft: as the paper prints it.
        asked: the one pair that a user asked for; None: each its own.

    Returns:
        The paper's pair, unless another one was asked for.
    """
    own = pair_of(target, draft)
    return own if asked in (None, own) else None
