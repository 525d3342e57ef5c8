"""The models of a job: which, how they are loaded, and under what name their rows appear.

Knows the files of ``conf/pair`` and names of models; loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from spec_bench.decode.build_heads import HEADS
from spec_bench.engine.loading import ModelSpec
from spec_bench.engine.random_weights import PREFIX as RANDOM
from spec_bench.run.paths import EMBEDDED, fingerprint, model_path

_MODELS = ("target", "draft")


@dataclass(frozen=True)
class Pair:
    """The models of a job.

    Attributes:
        name: label of the pair.
        target: as the user wrote it.
        drafts: as the user wrote them, in order.
        specs: what to load, the target first.
        revisions: hub revision or content hash of each, the target's first.
        chat_template: Jinja, in place of the tokenizer's own; None keeps that.
        heads: draft heads on the target by kind, as the user wrote them.
    """

    name: str
    target: str
    drafts: tuple[str, ...]
    specs: tuple[ModelSpec, ...]
    revisions: tuple[str | None, ...]
    chat_template: str | None = None
    heads: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """What of the pair changes a number; part of a cell's run id."""
        settings = {
            "target": self.target,
            "drafts": list(self.drafts),
            "revisions": list(self.revisions),
            "dtype": self.specs[0].dtype,
            "target_device_map": _plain(self.specs[0].device_map),
        }
        if self.chat_template is not None:
            settings["chat_template"] = self.chat_template
        return settings

    def heads_settings(self, kind: str) -> dict[str, Any]:
        """What of the draft heads changes a number."""
        name = self.heads[kind]
        return {"kind": kind, "source": name, "revision": fingerprint(name)}


def build_pair(pair: Mapping[str, Any], engine: Mapping[str, Any]) -> Pair:
    """Names, folders, revisions of the pair; ``pair.dtype`` wins over ``engine.dtype``.

    Args:
        pair: a composed ``conf/pair``.
        engine: a composed ``conf/engine``.

    Raises:
        ValueError: for a model that does not exist, or a dtype or device that cannot be.
    """
    target, draft = pair["target"], pair["draft"]
    drafts = tuple(draft) if isinstance(draft, list) else (draft,) if draft else ()
    names = (target, *drafts)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"pair.target and pair.draft name models, got {name!r}")
    template = pair.get("chat_template")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"pair.chat_template must be a Jinja text or null, got {template!r}")
    device_map = pair.get("target_device_map")
    if isinstance(device_map, dict):
        device_map = tuple(sorted(device_map.items()))
    asked = [pair.get("target_revision"), *[pair.get("draft_revision")] * len(drafts)]
    maps = [device_map, *[None] * len(drafts)]
    specs = tuple(
        ModelSpec(
            model_path(name),
            pair.get("dtype") or engine["dtype"],
            engine["device"],
            place,
            revision,
            engine["compile"],
            index if name.startswith(RANDOM) else 0,
            tensor_parallel=index == 0 and bool(engine.get("tensor_parallel")),
        )
        for index, (name, place, revision) in enumerate(zip(names, maps, asked, strict=True))
    )
    revisions = tuple(
        fingerprint(name) or revision for name, revision in zip(names, asked, strict=True)
    )
    label = pair.get("name") or "+".join(_short(name) for name in names)
    return Pair(label, target, drafts, specs, revisions, template, _heads(pair.get("heads")))


def _heads(heads: Any) -> dict[str, str]:
    """Draft heads by kind, those that are there.

    Raises:
        ValueError: an unknown kind, or a name that is none.
    """
    found = {}
    for kind, name in (heads or {}).items():
        if kind not in HEADS:
            raise ValueError(f"pair.heads knows {', '.join(HEADS)}, got {kind!r}")
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"pair.heads.{kind} names a folder or hub id, got {name!r}")
        if name is not None:
            found[kind] = name
    return found


def with_own_name(pair: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """The pair without its name where the name is another pair's.

    A name from ``conf/pair`` belongs to that file's models. Where ``pair.target=...`` replaced one
    of them the rows must not bear it; ``build_pair`` then makes a name from the models. A label
    that no file bears (``pair.name=mine``) is the user's and stays.

    Args:
        pair: a composed ``conf/pair``.
        folders: the config folders, in the order they are searched.
    """
    named = dict(pair)
    for folder in folders:
        path = folder / "pair" / f"{pair.get('name')}.yaml"
        if path.is_file():
            own = read_pair(path)
            replaced = [model for model in _MODELS if pair.get(model) != own.get(model)]
            for model in replaced:
                named |= _unless_own(pair, own, f"{model}_parameters")
            if replaced:
                named |= {"name": None, **_unless_own(pair, own, "paper")}
            break
    return named


def _unless_own(pair: Mapping[str, Any], own: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What a pair states about a replaced model: nothing, unless the user stated it anew."""
    return {key: None} if pair.get(key) == own.get(key) else {}


def read_pair(path: Path) -> dict[str, Any]:
    """A file of ``conf/pair`` over those that its ``defaults`` name, which lie beside it."""
    own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    merged: dict[str, Any] = {}
    for entry in own.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            merged |= read_pair(path.parent / f"{entry.partition('@')[0]}.yaml")
    return merged | own


def _short(model: str) -> str:
    """The last part of an id, folder or embedded name; random weights stay marked as such."""
    last = model.rstrip("/").rsplit("/", 1)[-1].removeprefix(EMBEDDED)
    if model.startswith(RANDOM):
        return RANDOM + last.removeprefix(RANDOM)
    return last


def _plain(device_map: Any) -> Any:
    """A device map as JSON knows it."""
    return [list(item) for item in device_map] if isinstance(device_map, tuple) else device_map
