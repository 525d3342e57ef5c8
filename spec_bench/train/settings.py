"""Settings of a training, checked before any model is loaded; imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from spec_bench.jobs.config.config import require_creatable_folder
from spec_bench.jobs.config.pair import EngineSettings, Pair, PairSettings, build_pair
from spec_bench.settings.validation import (
    FiniteFloat,
    Ge,
    Le,
    MinLen,
    NonEmptyStr,
    Requirement,
    StrictBool,
    StrictInt,
    read_settings,
    refuse_unless,
    settings,
)
from spec_bench.sinks.sink import SinkSettings
from spec_bench.system.errors import UsageError
from spec_bench.tasks import RandomPromptTask, Task, build_task, build_task_from_files

Temperatures = Annotated[
    tuple[Annotated[FiniteFloat, Ge(0)], ...],
    MinLen(1),
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
    Requirement("a number >= 0 or a list of one or more"),
]


@settings
class TargetAnswerSettings:
    """Settings for the target's answers to prompts."""

    # prompt i is answered at temperatures[i % len(temperatures)]; 0 is greedy
    temperatures: Temperatures = (0.0, 1.0)
    max_new_tokens: Annotated[StrictInt, Ge(1)] = 128
    batch_size: Annotated[StrictInt, Ge(1)] = 32
    seed: Annotated[StrictInt, Ge(0)] = 0  # of the first batch; each later batch adds 1


Count = Annotated[StrictInt, Ge(1)]
Openings = Annotated[tuple[str, ...], MinLen(1), Requirement("a list of one or more texts")]
DRAFT_MODEL = "draft_model"  # trains a separate draft model instead of heads
HEAD_WIDTH = 64
RANDOM = "random"
ALL_TOKENS = ("medusa", "eagle", "mtp")  # kinds of heads with an output for every token
Share = Annotated[FiniteFloat, Ge(0), Le(1)]


@settings
class HeadSettings:
    """Kind and sizes of the heads; documented in ``conf/head``."""

    name: NonEmptyStr
    kind: NonEmptyStr
    guesses: Count
    blocks: Annotated[StrictInt, Ge(0)]
    decay: Share
    measured: str = ""  # command line of a job that measures the heads; HEADS is their folder
    recurrent: StrictBool = True
    inner: Count | None = None
    init: NonEmptyStr = RANDOM
    steps: Count | None = None
    noise: Annotated[FiniteFloat, Ge(0)] = 0.0
    draft_vocab: Count | None = None
    fc_norm: StrictBool = False
    masks: StrictBool = False
    width: Count | None = None
    window: Count | None = None

    def __post_init__(self) -> None:
        from spec_bench.draft.base import get_heads_class, list_head_kinds  # imports torch

        kinds = (*list_head_kinds(), DRAFT_MODEL)
        if self.kind not in kinds:
            choices = ", ".join(sorted(kinds))
            raise UsageError(f"head.kind must be one of {choices}, got {self.kind!r}")
        if self.kind != DRAFT_MODEL:
            if self.init not in (RANDOM, "target"):
                raise UsageError(f"head.init must be random or target, got {self.init!r}")
            if self.init == "target" and not get_heads_class(self.kind).starts_as_target:
                raise UsageError(
                    f"head.init=target: the last layer of {self.kind} has another width than the "
                    "target's"
                )
            if self.draft_vocab and self.kind in ALL_TOKENS:
                raise UsageError(
                    f"head.draft_vocab must be null for {self.kind}, which guesses all of the "
                    f"target's tokens, got {self.draft_vocab}"
                )
            return
        has_folder = self.init != RANDOM  # the folder of a trained draft, which fixes its sizes
        for name in ("width", "inner", "draft_vocab", "blocks", *["window"][:has_folder]):
            if bool(getattr(self, name)) == has_folder:
                has = (
                    f"head.init={self.init} has its own"
                    if has_folder
                    else f"head.kind={self.kind} needs"
                )
                raise UsageError(f"{has} head.{name}")
        if self.width is not None and self.width % HEAD_WIDTH:
            requirement = f"a multiple of {HEAD_WIDTH}, an attention head's"
            raise UsageError(f"head.width must be {requirement}, got {self.width}")


@settings
class TrainingDataSettings:
    """Training data; documented in ``conf/train.yaml``."""

    kind: Literal["chats", "prompts", "sampled", "task"]
    path: NonEmptyStr | tuple[NonEmptyStr, ...] | None
    answered_by: Literal["file", "target"]
    answers: TargetAnswerSettings
    limit: Annotated[StrictInt, Ge(2)] | None
    max_length: Annotated[StrictInt, Ge(3)]
    longest_turn: Count
    openings: Openings
    validation: Annotated[FiniteFloat, Ge(0), Le(0.9)]
    hidden_batch: Count
    kept_gib: Annotated[FiniteFloat, Ge(0)]

    def __post_init__(self) -> None:
        if self.kind != "chats" and self.answered_by != "target":
            requirement = "data.answered_by must be target"
            raise UsageError(f"data.kind={self.kind} has no answers: {requirement}")
        if self.kind == "sampled" and self.limit is None:
            raise UsageError("data.kind=sampled needs data.limit, the number of prompts sampled")
        if self.kind in ("chats", "prompts") and self.path is None:
            raise UsageError(f"data.kind={self.kind} needs data.path, the file")
        if self.kind in ("task", "sampled") and self.path is not None:
            raise UsageError(f"data.kind={self.kind} reads no file, got data.path={self.path}")


@settings
class OptimiserSettings:
    """Optimiser and schedule; documented in ``conf/train.yaml``."""

    epochs: Count
    steps: Count | None
    batch: Count
    accumulate: Count
    learning_rate: Annotated[FiniteFloat, Ge(0)]
    warmup: Share
    weight_decay: Annotated[FiniteFloat, Ge(0)]
    betas: Annotated[tuple[Share, Share], Requirement("two numbers from 0 to 1")]
    clip: Annotated[FiniteFloat, Ge(0)]
    precision: Literal["float32", "bfloat16"]

    def __post_init__(self) -> None:
        if self.accumulate > self.batch:
            raise UsageError(
                f"optimiser.accumulate ({self.accumulate}) splits a batch of {self.batch} "
                "dialogues into more parts than it has"
            )


def _require_folder_name(name: str) -> str:
    refuse_unless(bool(name.strip("/.")) and ".." not in name.split("/") and "\0" not in name)
    if name.split("/")[0] == "cache":
        raise UsageError("name 'cache' is taken: answers of targets lie there")
    return name


@settings
class TrainConfig:
    """The composed and checked ``conf/train.yaml``, which documents the keys."""

    name: Annotated[
        NonEmptyStr, AfterValidator(_require_folder_name), Requirement("a folder below results")
    ]
    results: NonEmptyStr
    out: NonEmptyStr | None
    out_dtype: Literal["float32", "float16", "bfloat16"]
    seed: Annotated[StrictInt, Ge(0), Le(2**63 - 1)]
    data: TrainingDataSettings
    optimiser: OptimiserSettings
    log_every: Count
    validate_every: Count
    save_every: Count
    ranks: Count
    head: HeadSettings
    pair: PairSettings
    task: dict[str, Any]
    engine: EngineSettings
    sink: SinkSettings

    def __post_init__(self) -> None:
        if self.validate_every % self.log_every:
            requirement = f"a multiple of log_every ({self.log_every})"
            raise UsageError(f"validate_every must be {requirement}, got {self.validate_every}")


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training with the pair and the task built from them."""

    config: TrainConfig
    pair: Pair
    task: Task | RandomPromptTask | None
    heads_folder: Path  # where the heads are written
    identity: Mapping[str, Any]  # settings that affect the results; a checkpoint is bound to them

    @property
    def checkpoint_folder(self) -> Path:
        """Folder of the checkpoint and the log."""
        return Path(self.config.results) / self.config.name


def build_train_settings(config: Mapping[str, Any]) -> TrainSettings:
    """Builds the settings from a composed and resolved ``conf/train.yaml``. Raises UsageError with
    one line that names a key, its value and the choices.
    """
    request = read_settings(TrainConfig, config)
    results = Path(request.results)
    on_task = request.data.kind == "task"
    heads_folder = Path(request.out) if request.out else results / request.name / "heads"
    require_creatable_folder("results", results)
    require_creatable_folder("out", heads_folder)
    task = build_task(request.task) if on_task else None
    if request.data.path is not None:
        # As ``run --data`` does; with data.kind=prompts texts get no chat template.
        task = build_task_from_files(
            request.data.path, **({"chat": False} if request.data.kind == "prompts" else {})
        )
    pair = build_pair(replace(request.pair, draft=None, heads=None), request.engine)
    keys = ("seed", "head", "data", "optimiser", *(["task"] if on_task else []))
    identity = {"pair": pair.get_run_id_settings(), **{key: config[key] for key in keys}}
    return TrainSettings(request, pair, task, heads_folder, identity)
