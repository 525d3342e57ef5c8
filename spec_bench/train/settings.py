"""A training's settings, checked before any model is loaded; imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from spec_bench.jobs.config.config import check_folder
from spec_bench.jobs.config.pair import EngineSettings, Pair, PairSettings, build_pair
from spec_bench.settings.validation import (
    Allowed,
    FiniteFloat,
    Ge,
    Le,
    MinLen,
    NonEmptyStr,
    StrictBool,
    StrictInt,
    check,
    require,
    settings,
)
from spec_bench.sinks.sink import SinkSettings
from spec_bench.system.errors import UsageError
from spec_bench.tasks import RandomPrompts, Task, build_task, read_own

Temperatures = Annotated[
    tuple[Annotated[FiniteFloat, Ge(0)], ...],
    MinLen(1),
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
    Allowed("a number >= 0 or a list of one or more"),
]


@settings
class AnswerSettings:
    """How the target answers."""

    # prompt i is answered at temperature i mod their number; 0 is greedy
    temperatures: Temperatures = (0.0, 1.0)
    max_new_tokens: Annotated[StrictInt, Ge(1)] = 128  # limit
    batch_size: Annotated[StrictInt, Ge(1)] = 32  # prompts answered at a time
    seed: Annotated[StrictInt, Ge(0)] = 0  # of the first batch; the following ones count up


Count = Annotated[StrictInt, Ge(1)]
Openings = Annotated[tuple[str, ...], MinLen(1), Allowed("a list of one or more texts")]
DRAFT_MODEL = "draft_model"  # no heads: a model of its own
HEAD_WIDTH = 64
RANDOM = "random"
Share = Annotated[FiniteFloat, Ge(0), Le(1)]


@settings
class HeadSettings:
    """Which heads; meanings stand in ``conf/head``."""

    name: NonEmptyStr
    kind: NonEmptyStr
    guesses: Count
    blocks: Annotated[StrictInt, Ge(0)]
    decay: Share
    measured: str = ""  # the words of a job that measures them, HEADS their folder
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
        from spec_bench.draft.base import head_kinds, heads_class  # imports torch

        kinds = (*head_kinds(), DRAFT_MODEL)
        if self.kind not in kinds:
            known = ", ".join(sorted(kinds))
            raise UsageError(f"head.kind must be one of {known}, got {self.kind!r}")
        if self.kind != DRAFT_MODEL:
            if self.init not in (RANDOM, "target"):
                raise UsageError(f"head.init must be random or target, got {self.init!r}")
            if self.init == "target" and not heads_class(self.kind).starts_as_target:
                raise UsageError(
                    f"head.init=target: the last layer of {self.kind} has another width than the "
                    "target's"
                )
            return
        own = self.init != RANDOM  # a draft's folder, with its sizes
        for name in ("width", "inner", "draft_vocab", "blocks", *["window"][:own]):
            if bool(getattr(self, name)) == own:
                has = (
                    f"head.init={self.init} has its own" if own else f"head.kind={self.kind} needs"
                )
                raise UsageError(f"{has} head.{name}")
        if self.width is not None and self.width % HEAD_WIDTH:
            allowed = f"a multiple of {HEAD_WIDTH}, an attention head's"
            raise UsageError(f"head.width must be {allowed}, got {self.width}")


@settings
class DataSettings:
    """What is learned from; meanings stand in ``conf/train.yaml``."""

    kind: Literal["chats", "prompts", "sampled", "task"]
    path: NonEmptyStr | tuple[NonEmptyStr, ...] | None
    answered_by: Literal["file", "target"]
    answers: AnswerSettings
    limit: Annotated[StrictInt, Ge(2)] | None
    max_length: Annotated[StrictInt, Ge(3)]
    longest_turn: Count
    openings: Openings
    validation: Annotated[FiniteFloat, Ge(0), Le(0.9)]
    hidden_batch: Count
    kept_gib: Annotated[FiniteFloat, Ge(0)]

    def __post_init__(self) -> None:
        if self.kind != "chats" and self.answered_by != "target":
            needed = "data.answered_by must be target"
            raise UsageError(f"data.kind={self.kind} has no answers: {needed}")
        if self.kind == "sampled" and self.limit is None:
            raise UsageError("data.kind=sampled needs data.limit, the number of prompts sampled")
        if self.kind in ("chats", "prompts") and self.path is None:
            raise UsageError(f"data.kind={self.kind} needs data.path, the file")
        if self.kind in ("task", "sampled") and self.path is not None:
            raise UsageError(f"data.kind={self.kind} reads no file, got data.path={self.path}")


@settings
class Optimisation:
    """How it is learned; meanings stand in ``conf/train.yaml``."""

    epochs: Count
    steps: Count | None
    batch: Count
    accumulate: Count
    learning_rate: Annotated[FiniteFloat, Ge(0)]
    warmup: Share
    weight_decay: Annotated[FiniteFloat, Ge(0)]
    betas: Annotated[tuple[Share, Share], Allowed("two numbers from 0 to 1")]
    clip: Annotated[FiniteFloat, Ge(0)]
    precision: Literal["float32", "bfloat16"]

    def __post_init__(self) -> None:
        if self.accumulate > self.batch:
            raise UsageError(
                f"optimiser.accumulate ({self.accumulate}) splits a batch of {self.batch} "
                "dialogues into more parts than it has"
            )


def _folder_name(name: str) -> str:
    require(bool(name.strip("/.")) and ".." not in name.split("/") and "\0" not in name)
    if name.split("/")[0] == "cache":
        raise UsageError("name 'cache' is taken: answers of targets lie there")
    return name


@settings
class AskedTraining:
    """What ``conf/train.yaml`` composes to, checked; meanings stand there."""

    name: Annotated[NonEmptyStr, AfterValidator(_folder_name), Allowed("a folder below results")]
    results: NonEmptyStr
    out: NonEmptyStr | None
    out_dtype: Literal["float32", "float16", "bfloat16"]
    seed: Annotated[StrictInt, Ge(0), Le(2**63 - 1)]
    data: DataSettings
    optimiser: Optimisation
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
            allowed = f"a multiple of log_every ({self.log_every})"
            raise UsageError(f"validate_every must be {allowed}, got {self.validate_every}")


@dataclass(frozen=True)
class TrainSettings:
    """Everything one training needs: what was asked for, and what follows from it."""

    asked: AskedTraining
    pair: Pair
    task: Task | RandomPrompts | None
    out: Path  # folder of the heads
    config: Mapping[str, Any]  # what the numbers follow from, as composed; part of the checkpoint

    @property
    def folder(self) -> Path:
        """Where checkpoint and log lie."""
        return Path(self.asked.results) / self.asked.name


def build_train_settings(config: Any) -> TrainSettings:
    """Checks a composed ``conf/train.yaml``, interpolations resolved. Raises ValueError: one line
    that names a key, its value and what is allowed.
    """
    asked = check(AskedTraining, config)
    results = Path(asked.results)
    on_task = asked.data.kind == "task"
    out = Path(asked.out) if asked.out else results / asked.name / "heads"
    check_folder("results", results)
    check_folder("out", out)
    task = build_task(asked.task) if on_task else None
    if asked.data.path is not None:
        # As ``run --data`` asks them; prompts are texts that go on, without a chat template.
        task = read_own(
            asked.data.path, **({"chat": False} if asked.data.kind == "prompts" else {})
        )
    pair = build_pair(replace(asked.pair, draft=None, heads=None), asked.engine)
    keys = ("seed", "head", "data", "optimiser", *(["task"] if on_task else []))
    identifying = {"pair": pair.settings(), **{key: config[key] for key in keys}}
    return TrainSettings(asked, pair, task, out, identifying)
