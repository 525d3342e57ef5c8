"""The models of a job: their names, devices and dtypes, and their label in rows.

Knows the files of ``conf/pair`` and ``conf/engine``, and names of models; loads nothing.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.engine.model_spec import (
    AUTO,
    DEVICE,
    INTERSECTION,
    ModelSpec,
    explain_cuda_fault,
    is_cuda_usable,
    read_output_ids,
    resolve_compile_choice,
)
from spec_bench.jobs.config.model_files import (
    EMBEDDED_PREFIX,
    Digests,
    ModelSize,
    compute_file_digests,
    compute_sampled_fingerprint,
    find_hub_commit,
    read_config_dtype,
    read_content_id,
    read_model_size,
    resolve_or_convert_model,
)
from spec_bench.records.checksums import read_regular_file
from spec_bench.settings.configs import find_configs, read_composed_config
from spec_bench.settings.validation import (
    FiniteFloat,
    Ge,
    Gt,
    IntOrFloat,
    Le,
    NonEmptyStr,
    Requirement,
    StrictBool,
    StrictInt,
    StringConstraints,
    read_settings,
    settings,
)
from spec_bench.system.errors import UsageError
from spec_bench.system.files import hash_json
from spec_bench.system.hub import probe_hub_and_set_offline
from spec_bench.system.model_cache import describe_original_weights
from spec_bench.vocabulary.published import wrap_in_list

_MODELS = ("target", "draft")
_warn = cache(partial(logging.getLogger(__name__).warning, "engine.device=auto is the CPU: %s"))
MOST_THREADS = 1024  # with too many threads the system may kill the process without a message
Dtype = Literal["float32", "float64", "bfloat16", "float16", "auto"]


@settings
class EngineSettings:
    """The config group ``engine``; explained in ``conf/engine/default.yaml``."""

    device: Annotated[
        str,
        Requirement("auto, cpu, cuda or cuda:0, or alike"),
        StringConstraints(pattern=f"^({AUTO}|{DEVICE})$"),
    ]
    dtype: Dtype | None = None
    batch_size: Annotated[StrictInt, Ge(1)] = 1
    batching: Literal["static", "continuous"] = "static"
    compile: Literal["auto", "none", "static", "static_inductor", "dynamo", "inductor"] = "auto"
    threads: Annotated[StrictInt, Ge(1), Le(MOST_THREADS)] | None = None
    gpu_memory_gib: Annotated[IntOrFloat, Gt(0)] | None = None
    tensor_parallel: StrictBool = False
    kind: Literal["here", "server"] = "here"

    @property
    def is_served(self) -> bool:
        """Whether a server decodes."""
        return self.kind == "server"

    @property
    def uses_cuda(self) -> bool:
        """Whether jobs need GPUs."""
        return self.device.startswith("cuda")

    @property
    def default_dtype(self) -> str:
        """The dtype of weights if neither the engine nor the pair names one."""
        return "bfloat16" if self.uses_cuda else "float32"


def resolve_device_and_compile(engine: EngineSettings, target: str) -> EngineSettings:
    """Resolves a device and compilation that are ``auto``, but no dtype; the embedded models then
    use the CPU.
    """
    device = engine.device
    if device == AUTO:
        small = target.startswith(EMBEDDED_PREFIX)
        device = "cuda" if not small and is_cuda_usable() else "cpu"
        if device == "cpu" and not small and (fault := explain_cuda_fault()):
            _warn(fault)
    compile: Any = resolve_compile_choice(engine.compile, device)
    return replace(engine, device=device, compile=compile)


def refuse_unseen_non_cuda_device(device: str) -> None:
    """Raises UsageError if torch does not see a device; CUDA is checked with each model."""
    kind = device.partition(":")[0]
    if kind in ("cpu", "cuda"):
        return
    import torch

    backend = torch.backends.mps if kind == "mps" else torch.get_device_module(kind)
    if not backend.is_available():
        raise UsageError(
            f"engine.device {device!r} was asked for but torch sees no such device; "
            "engine.device=auto takes what there is"
        )


@settings
class PrintedModelNames:
    """Spellings of a pair's models in a paper, one or several per model."""

    target: NonEmptyStr | tuple[NonEmptyStr, ...]
    draft: NonEmptyStr | tuple[NonEmptyStr, ...] | None = None


@settings
class PairSettings:
    """The config group ``pair``; explained in ``conf/pair/shared/base.yaml``."""

    target: NonEmptyStr
    draft: NonEmptyStr | tuple[NonEmptyStr, ...] | None
    name: NonEmptyStr | None = None
    dtype: Dtype | None = None
    heads: dict[str, NonEmptyStr | None] | None = None
    target_device_map: NonEmptyStr | dict[str, StrictInt | NonEmptyStr] | None = None
    target_revision: NonEmptyStr | None = None
    draft_revision: NonEmptyStr | None = None
    tokenizer: NonEmptyStr | None = None
    draft_vocabulary: NonEmptyStr | StrictInt | None = None
    chat_template: NonEmptyStr | None = None
    chat_template_kwargs: dict[NonEmptyStr, Any] | None = None
    gated: StrictBool = False
    target_parameters: Annotated[StrictInt, Ge(1)] | None = None
    draft_parameters: Annotated[StrictInt, Ge(1)] | None = None
    stand_in: NonEmptyStr | None = None
    paper_draft_parameters: Annotated[StrictInt, Ge(1)] | None = None
    chat_tuned: StrictBool = False
    seen_in_training: dict[NonEmptyStr, FiniteFloat] | None = None
    paper: PrintedModelNames | tuple[PrintedModelNames, ...] | None = None

    @property
    def drafts(self) -> tuple[str, ...]:
        """The draft models, in order."""
        return tuple(wrap_in_list(self.draft))


@dataclass(frozen=True)
class Pair:
    """The models of a job."""

    name: str  # label of the pair
    target: str  # as the user wrote it
    drafts: tuple[str, ...]  # as the user wrote them, in order
    specs: tuple[ModelSpec, ...]  # models to load, the target first
    revisions: tuple[str | None, ...]  # hub revision or content hash of each, the target's first
    chat_template: str | None = None  # Jinja; None: the tokenizer's
    heads: Mapping[str, str] = field(default_factory=dict)  # by kind, as the user wrote them
    head_commits: Mapping[str, str | None] = field(default_factory=dict)  # the hub's, once known
    tokenizer: str | None = None  # of all models; None: in the target's folder
    draft_vocabulary: str | int | None = None  # `intersection`, a file of ids, a number; None: all
    template_arguments: Mapping[str, Any] = field(default_factory=dict)  # of the chat template

    def get_run_id_settings(self) -> dict[str, Any]:
        """Returns the parts of the pair that change results; they are part of a cell's run id."""
        device_map = self.specs[0].device_map
        settings: dict[str, Any] = {
            "target": self.target,
            "drafts": list(self.drafts),
            "revisions": list(self.revisions),
            "dtype": self.specs[0].dtype,
            "target_device_map": [list(e) for e in device_map]
            if isinstance(device_map, tuple)
            else device_map,
        }
        if self.tokenizer is not None:
            revision = compute_sampled_fingerprint(self.tokenizer)
            settings["tokenizer"] = {"source": self.tokenizer, "revision": revision}
        if (vocabulary := self.draft_vocabulary) is not None:
            is_named = isinstance(vocabulary, int) or vocabulary == INTERSECTION
            settings["draft_vocabulary"] = (
                vocabulary if is_named else hash_json(read_output_ids(vocabulary))
            )
        if self.chat_template is not None:
            settings["chat_template"] = self.chat_template
        if self.template_arguments:
            settings["chat_template_kwargs"] = dict(self.template_arguments)
        return settings

    def describe_gguf_weights(self, draft_count: int) -> str:
        """Describes the GGUF weights of the target and of the first ``draft_count`` drafts; "" if
        there are none.
        """
        weight_notes = [
            describe_original_weights(Path(spec.path)) for spec in self.specs[: 1 + draft_count]
        ]
        names = ("", *(f"draft {number}: " for number in range(1, len(weight_notes))))
        named_notes = zip(names, weight_notes, strict=True)
        return "; ".join(name + weights for name, weights in named_notes if weights)

    def find_heads_fingerprint_or_commit(self, head_kind: str) -> str | None:
        """Returns the fingerprint of a local folder of heads, or the hub's
        commit; None if unknown.
        """
        return compute_sampled_fingerprint(self.heads[head_kind]) or self.head_commits.get(
            head_kind
        )

    def read_content_ids(self, with_weights: bool = True) -> list[str | None]:
        """Reads the content id of each model, the target's first, see ``read_content_id``."""
        names = (self.target, *self.drafts)
        return [
            read_content_id(*model, with_weights)
            for model in zip(names, self.revisions, strict=True)
        ]

    def read_model_digests(self, draft_count: int, head_kind: str | None) -> dict[str, Digests]:
        """Reads the digests of the files of a cell's models, or the hub's commit, by part
        (``target``, ``draft 1``, ``heads``, ``tokenizer``). The cell uses the first ``draft_count``
        drafts, and heads of ``head_kind``.
        """
        models = {"target": (self.target, self.revisions[0])}
        draft_models = zip(self.drafts[:draft_count], self.revisions[1:], strict=False)
        models |= {f"draft {number}": model for number, model in enumerate(draft_models, start=1)}
        if head_kind is not None:
            commit = self.head_commits.get(head_kind)
            models["heads"] = (self.heads[head_kind], commit)
        if self.tokenizer is not None:
            models["tokenizer"] = (self.tokenizer, None)
        return {
            part: compute_file_digests(name) or {"commit": commit or ""}
            for part, (name, commit) in models.items()
        }


def pin_revisions(pair: Pair, head_kinds: Iterable[str] = (), fetch: bool = True) -> Pair:
    """Returns the pair with its hub models at their current commits, so that what is loaded is
    recorded. A revision that is not found stays, because loading the model will raise the error.
    ``head_kinds`` are the heads in use; without ``fetch`` only the hub's cache is searched.
    """
    specs = list[ModelSpec]()
    revisions = list[str | None]()
    models = zip((pair.target, *pair.drafts), pair.specs, pair.revisions, strict=True)
    for name, spec, revision in models:
        commit = find_hub_commit(name, spec.revision, fetch)
        specs.append(replace(spec, revision=commit or spec.revision))
        revisions.append(commit or revision)
    commits = {kind: find_hub_commit(pair.heads[kind], None, fetch) for kind in head_kinds}
    return replace(pair, specs=tuple(specs), revisions=tuple(revisions), head_commits=commits)


def require_models_exist(pair: PairSettings, is_served: bool) -> None:
    """Raises UsageError if one of a pair's models does not exist; for a server only the tokenizer's
    is needed. A hub id with an owner that the hub does not show may be gated, and is left to the
    loader.
    """
    models = [("target", pair.target), *(("draft", draft) for draft in pair.drafts)]
    for key, name in models[: pair.tokenizer is None] if is_served else models:
        is_local = name.startswith(RANDOM) or Path(resolve_or_convert_model(name)).is_dir()
        if is_local or find_hub_commit(name, fetch=False):
            continue
        if not probe_hub_and_set_offline() or ("/" not in name and find_hub_commit(name) is None):
            raise UsageError(
                f"--{key} {name!r}: no folder here, and the hub cannot be reached or has none of "
                "that name"
            )


def resolve_dtype(engine: EngineSettings, pair: PairSettings) -> str:
    """Returns the dtype of all weights: the engine's, else the pair's, else bfloat16 on a GPU and
    float32 elsewhere. ``auto`` is the dtype of the target's files.
    """
    dtype = engine.dtype or pair.dtype or engine.default_dtype
    return read_config_dtype(pair.target, pair.target_revision) if dtype == AUTO else dtype


def build_pair(pair: PairSettings, engine: EngineSettings) -> Pair:
    """Builds a pair: names, folders and revisions of its models."""
    engine = resolve_device_and_compile(engine, pair.target)
    refuse_unseen_non_cuda_device(engine.device)
    names = (pair.target, *pair.drafts)
    device_map = pair.target_device_map
    target = ModelSpec(
        resolve_or_convert_model(pair.target),
        resolve_dtype(engine, pair),
        engine.device,
        tuple(sorted(device_map.items())) if isinstance(device_map, dict) else device_map,
        pair.target_revision,
        engine.compile,
        tensor_parallel=engine.tensor_parallel,
    )
    drafts = [
        replace(
            target,
            path=resolve_or_convert_model(name),
            device_map=None,
            revision=pair.draft_revision,
            seed=index if name.startswith(RANDOM) else 0,
            tensor_parallel=False,
            outputs=None if pair.draft_vocabulary == INTERSECTION else pair.draft_vocabulary,
        )
        for index, name in enumerate(pair.drafts, start=1)
    ]
    specs = (target, *drafts)
    revisions = tuple(
        compute_sampled_fingerprint(name) or spec.revision
        for name, spec in zip(names, specs, strict=True)
    )
    label = pair.name or "+".join(_shorten_model_name(name) for name in names)
    heads = {
        kind: pair.target if name == TARGETS_OWN else name
        for kind, name in validate_heads_by_kind(pair.heads or {}).items()
    }
    return Pair(
        label,
        pair.target,
        pair.drafts,
        specs,
        revisions,
        _read_chat_template(pair.chat_template),
        heads,
        tokenizer=None if pair.tokenizer is None else resolve_or_convert_model(pair.tokenizer),
        draft_vocabulary=pair.draft_vocabulary,
        template_arguments=pair.chat_template_kwargs or {},
    )


def _read_chat_template(template: str | None) -> str | None:
    """Returns a chat template: Jinja unchanged; the content of a file (.jinja, .j2, or without
    braces).
    """
    if template is None or ("{" in template and not template.endswith((".jinja", ".j2"))):
        return template
    try:
        return read_regular_file(Path(template).expanduser()).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"pair.chat_template: cannot read {template!r}: {error}") from None


TARGETS_OWN = "target"
"""In ``pair.heads``: the heads are in the target's own files."""


def validate_heads_by_kind(heads: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the draft heads that are not null, by kind. Raises UsageError if
    a kind is unknown.
    """
    from spec_bench.draft.base import drafter

    kinds = (
        [kind for kind, drafter_class in drafter.items() if drafter_class.heads] if heads else []
    )
    for kind in heads:
        if kind not in kinds:
            raise UsageError(f"pair.heads has {', '.join(kinds)}, got {kind!r}")
    return {kind: name for kind, name in heads.items() if name is not None}


def drop_name_of_other_pair(pair: PairSettings, folders: Sequence[Path]) -> PairSettings:
    """Returns the pair without its name if the name belongs to another pair.

    A name from ``conf/pair`` belongs to that file's models. If ``pair.target=...`` replaced a
    model, the rows must not have that name; ``build_pair`` then makes a name from the models. A
    name without a file (``pair.name=mine``) is the user's and stays. Raises UsageError if the file
    is invalid.
    """
    path = find_configs("pair", folders).get(pair.name or "")
    if path is None:
        return pair
    file_pair = _read_pair_file(path)
    new_models = [model for model in _MODELS if getattr(pair, model) != getattr(file_pair, model)]
    if not new_models:
        return pair
    # Settings about a replaced model are dropped too, unless the user changed them.
    model_keys = [*(f"{model}_parameters" for model in new_models), "paper"]
    stale = [key for key in model_keys if getattr(pair, key) == getattr(file_pair, key)]
    changes: dict[str, Any] = dict.fromkeys(["name", *stale])
    return replace(pair, **changes)


@cache
def _read_pair_file(path: Path) -> PairSettings:
    return read_settings(PairSettings, read_composed_config(path), str(path))


def _shorten_model_name(model: str) -> str:
    """Shortens a model's id, folder or embedded name to its last part; keeps a
    leading ``random:``.
    """
    stem = model.rstrip("/").rsplit("/", 1)[-1].removeprefix(EMBEDDED_PREFIX).removeprefix(RANDOM)
    return RANDOM * model.startswith(RANDOM) + stem


def read_pair_sizes(pair: PairSettings) -> tuple[ModelSize, ...]:
    """Reads the sizes of a pair's models, the target first."""
    drafts = (read_model_size(name, pair.draft_parameters) for name in pair.drafts)
    return (read_model_size(pair.target, pair.target_parameters), *drafts)
