"""The models of a job: which, how they are loaded, and under what name their rows appear.

Knows the files of ``conf/pair`` and names of models; loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.engine.model_spec import INTERSECTION, ModelSpec, kept_tokens
from spec_bench.jobs.config.engine_settings import EngineSettings, check_there, placed
from spec_bench.jobs.config.model_files import (
    EMBEDDED,
    ModelSize,
    fingerprint,
    hub_commit,
    model_path,
    model_size,
)
from spec_bench.records.seals import bytes_of
from spec_bench.settings.configs import read_config
from spec_bench.settings.validation import Flag, Ge, Number, Text, Whole, check, settings
from spec_bench.system.files import digest
from spec_bench.vocabulary.published import listed

_MODELS = ("target", "draft")


@settings
class Printed:
    """How a paper prints a pair: one spelling of each model, or several."""

    target: Text | tuple[Text, ...]
    draft: Text | tuple[Text, ...] | None = None


@settings
class PairSettings:
    """The config group ``pair``; explained in ``conf/pair/shared/base.yaml``."""

    target: Text
    draft: Text | tuple[Text, ...] | None
    name: Text | None = None
    dtype: Literal["float32", "float64", "bfloat16", "float16"] | None = None
    heads: dict[str, Text | None] | None = None
    target_device_map: Text | dict[str, Whole | Text] | None = None
    target_revision: Text | None = None
    draft_revision: Text | None = None
    tokenizer: Text | None = None
    draft_vocabulary: Text | Whole | None = None
    chat_template: Text | None = None
    gated: Flag = False
    target_parameters: Annotated[Whole, Ge(1)] | None = None
    draft_parameters: Annotated[Whole, Ge(1)] | None = None
    stand_in: Text | None = None
    paper_draft_parameters: Annotated[Whole, Ge(1)] | None = None
    chat_tuned: Flag = False
    seen_in_training: dict[Text, Number] | None = None
    paper: Printed | tuple[Printed, ...] | None = None

    @property
    def drafts(self) -> tuple[str, ...]:
        """The draft models, in order."""
        return tuple(listed(self.draft))


@dataclass(frozen=True)
class Pair:
    """The models of a job."""

    name: str  # label of the pair
    target: str  # as the user wrote it
    drafts: tuple[str, ...]  # as the user wrote them, in order
    specs: tuple[ModelSpec, ...]  # what to load, the target first
    revisions: tuple[str | None, ...]  # hub revision or content hash of each, the target's first
    chat_template: str | None = None  # Jinja, in place of the tokenizer's; None keeps that
    heads: Mapping[str, str] = field(default_factory=dict)  # by kind, as the user wrote them
    head_commits: Mapping[str, str | None] = field(default_factory=dict)  # the hub's, once known
    tokenizer: str | None = None  # of all models; None: in the target's folder
    draft_vocabulary: str | int | None = None  # `intersection`, a file of ids, a number; None: all

    def settings(self) -> dict[str, Any]:
        """The parts of the pair that change a number; part of a cell's run id."""
        settings = {
            "target": self.target,
            "drafts": list(self.drafts),
            "revisions": list(self.revisions),
            "dtype": self.specs[0].dtype,
            "target_device_map": _plain(self.specs[0].device_map),
        }
        if self.tokenizer is not None:
            revision = fingerprint(self.tokenizer)
            settings["tokenizer"] = {"source": self.tokenizer, "revision": revision}
        if self.draft_vocabulary is not None:
            settings["draft_vocabulary"] = _tokens(self.draft_vocabulary)
        if self.chat_template is not None:
            settings["chat_template"] = self.chat_template
        return settings

    def heads_settings(self, kind: str) -> dict[str, Any]:
        """The parts of the draft heads that change a number."""
        return {"kind": kind, "source": self.heads[kind], "revision": self.heads_revision(kind)}

    def heads_revision(self, kind: str) -> str | None:
        """The fingerprint of a folder of heads, or the commit; None if unknown."""
        return fingerprint(self.heads[kind]) or self.head_commits.get(kind)


def pinned(pair: Pair, kinds: Iterable[str] = (), fetch: bool = True) -> Pair:
    """The pair at its hub models' current commits, so that what is loaded is what is recorded.

    An unknown revision stays as it is: loading the model says what is wrong. ``kinds`` are those
    heads that are used; without ``fetch`` only the hub's cache is asked.
    """
    names = (pair.target, *pair.drafts)
    asked = [spec.revision for spec in pair.specs]
    commits = [hub_commit(*each, fetch) for each in zip(names, asked, strict=True)]
    return replace(
        pair,
        specs=tuple(
            replace(spec, revision=commit or spec.revision)
            for spec, commit in zip(pair.specs, commits, strict=True)
        ),
        revisions=tuple(
            commit or known for commit, known in zip(commits, pair.revisions, strict=True)
        ),
        head_commits={kind: hub_commit(pair.heads[kind], None, fetch) for kind in kinds},
    )


def build_pair(pair: PairSettings, engine: EngineSettings) -> Pair:
    """Names, folders, revisions of the pair; ``pair.dtype`` wins over ``engine.dtype``. Raises
    ValueError: for a model that does not exist, or a missing device.
    """
    engine = placed(engine, pair.target)
    check_there(engine.device)
    names = (pair.target, *pair.drafts)
    device_map = pair.target_device_map
    asked = [pair.target_revision, *[pair.draft_revision] * len(pair.drafts)]
    maps = [tuple(sorted(device_map.items())) if isinstance(device_map, dict) else device_map]
    kept = pair.draft_vocabulary
    specs = tuple(
        ModelSpec(
            model_path(name),
            pair.dtype or engine.dtype,
            engine.device,
            place,
            revision,
            engine.compile,
            index if name.startswith(RANDOM) else 0,
            tensor_parallel=index == 0 and engine.tensor_parallel,
            outputs=None if pair.draft_vocabulary == INTERSECTION or not index else kept,
        )
        for index, (name, place, revision) in enumerate(
            zip(names, [*maps, *[None] * len(pair.drafts)], asked, strict=True)
        )
    )
    revisions = tuple(
        fingerprint(name) or revision for name, revision in zip(names, asked, strict=True)
    )
    label = pair.name or "+".join(_short(name) for name in names)
    heads = {
        kind: pair.target if name == TARGETS_OWN else name
        for kind, name in named_heads(pair.heads or {}).items()
    }
    return Pair(
        *(label, pair.target, pair.drafts, specs, revisions, _jinja(pair.chat_template), heads),
        tokenizer=None if pair.tokenizer is None else model_path(pair.tokenizer),
        draft_vocabulary=pair.draft_vocabulary,
    )


def _jinja(template: str | None) -> str | None:
    """A chat template: Jinja as it is, and what has no braces, or a file's ending, a file of it."""
    if template is None or ("{" in template and not template.endswith((".jinja", ".j2"))):
        return template
    try:
        return bytes_of(Path(template).expanduser()).decode()
    except (OSError, ValueError) as error:
        raise ValueError(f"pair.chat_template: cannot read {template!r}: {error}") from None


TARGETS_OWN = "target"
"""In ``pair.heads``: the target's own files hold them."""


def named_heads(heads: Mapping[str, str | None]) -> dict[str, str]:
    """Draft heads by kind, those that are given. Raises ValueError: an unknown kind."""
    from spec_bench.draft.base import drafter

    kinds = [kind for kind, known in drafter.items() if known.heads] if heads else []
    for kind in heads:
        if kind not in kinds:
            raise ValueError(f"pair.heads has {', '.join(kinds)}, got {kind!r}")
    return {kind: name for kind, name in heads.items() if name is not None}


def with_own_name(pair: PairSettings, folders: Sequence[Path]) -> PairSettings:
    """The pair without its name if the name is another pair's.

    A name from ``conf/pair`` belongs to that file's models. If ``pair.target=...`` replaced one of
    them the rows must not have it; ``build_pair`` then makes a name from the models. A label that
    no file has (``pair.name=mine``) is the user's and stays. Raises ValueError: the file of that
    name cannot be right.
    """
    files = (folder / "pair" / f"{pair.name}.yaml" for folder in folders)
    path = next((path for path in files if path.is_file()), None)
    if path is None:
        return pair
    named = check(PairSettings, read_config(path), str(path))
    replaced = [model for model in _MODELS if getattr(pair, model) != getattr(named, model)]
    if not replaced:
        return pair
    # What a pair states about a replaced model is dropped, unless the user restated it.
    stated = [*(f"{model}_parameters" for model in replaced), "paper"]
    stale = [key for key in stated if getattr(pair, key) == getattr(named, key)]
    changes: dict[str, Any] = dict.fromkeys(["name", *stale])
    return replace(pair, **changes)


def _tokens(vocabulary: str | int) -> str | int:
    """A draft vocabulary as a run id knows it: a file by its ids."""
    named = isinstance(vocabulary, int) or vocabulary == INTERSECTION
    return vocabulary if named else digest(kept_tokens(vocabulary))


def _short(model: str) -> str:
    """The last part of an id, folder or embedded name; random weights stay marked as such."""
    last = model.rstrip("/").rsplit("/", 1)[-1].removeprefix(EMBEDDED)
    if model.startswith(RANDOM):
        return RANDOM + last.removeprefix(RANDOM)
    return last


def _plain(device_map: Any) -> Any:
    """A device map as JSON knows it."""
    return [list(item) for item in device_map] if isinstance(device_map, tuple) else device_map


def pair_sizes(pair: PairSettings) -> tuple[ModelSize, ...]:
    """The sizes of a pair's models, the target first."""
    stated = [pair.target_parameters, *[pair.draft_parameters] * len(pair.drafts)]
    names = (pair.target, *pair.drafts)
    return tuple(
        model_size(name, parameters) for name, parameters in zip(names, stated, strict=True)
    )
