"""A training's settings as plain dataclasses, checked before any model is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spec_bench.run.pair import Pair, build_pair
from spec_bench.tasks import RandomPrompts, Task, build_task
from spec_bench.train.answers import AnswerSettings
from spec_bench.train.hidden import CACHE_DTYPES

HEADS = ("medusa", "redrafter")
KINDS = ("chats", "prompts", "task")
ANSWERED_BY = ("file", "target")
HIDDEN = ("cached", "computed")
INITS = ("target", "random")
PRECISIONS = ("float32", "bfloat16")
SAVED = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class HeadSettings:
    """Which heads; meanings stand in ``conf/head``."""

    name: str
    kind: str
    guesses: int
    blocks: int
    decay: float
    recurrent: bool = True
    inner: int | None = None
    init: str = "random"


@dataclass(frozen=True)
class DataSettings:
    """What is learned from; meanings stand in ``conf/train.yaml``."""

    kind: str
    path: Path | None
    answered_by: str
    answers: AnswerSettings
    limit: int | None
    max_length: int
    validation: float
    hidden: str
    cache_dtype: str
    hidden_batch: int


@dataclass(frozen=True)
class Optimisation:
    """How it is learned; meanings stand in ``conf/train.yaml``."""

    epochs: int
    steps: int | None
    batch: int
    accumulate: int
    learning_rate: float
    warmup: float
    weight_decay: float
    betas: tuple[float, float]
    clip: float
    precision: str


@dataclass(frozen=True)
class TrainSettings:
    """Everything one training needs.

    Attributes:
        config: what the numbers follow from, as composed; part of the checkpoint.
    """

    name: str
    results: Path
    seed: int
    threads: int | None
    accelerate: bool
    head: HeadSettings
    data: DataSettings
    optimiser: Optimisation
    pair: Pair
    task: Task | RandomPrompts | None
    log_every: int
    validate_every: int
    save_every: int
    ranks: int
    out: Path
    out_dtype: str
    sink: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """Where checkpoint and log lie."""
        return self.results / self.name


def build_train_settings(config: Mapping[str, Any]) -> TrainSettings:
    """Checks a composed ``conf/train.yaml``.

    Args:
        config: plain dictionaries and lists, interpolations resolved.

    Raises:
        ValueError: a value that cannot be right, naming it and what was allowed.
    """
    data = _data(config["data"])
    engine, results = config["engine"], Path(config["results"])
    name = config["name"]
    if not isinstance(name, str) or not name.strip("/.") or ".." in name.split("/"):
        raise ValueError(f"name becomes a folder below results, got {name!r}")
    if name.split("/")[0] == "cache":
        raise ValueError("name 'cache' is taken: hidden states lie there")
    out = config["out"]
    pair = build_pair({**config["pair"], "draft": None, "heads": None}, engine)
    told = ("seed", "head", "data", "optimiser", *(["task"] if data.kind == "task" else []))
    settings = TrainSettings(
        name=name,
        results=results,
        seed=_whole("seed", config["seed"], 0),
        threads=_whole("engine.threads", engine["threads"], 1, optional=True),
        accelerate=bool(config["accelerate"]),
        head=_head(config["head"]),
        data=data,
        optimiser=_optimiser(config["optimiser"]),
        pair=pair,
        task=build_task(config["task"]) if data.kind == "task" else None,
        log_every=_whole("log_every", config["log_every"], 1),
        validate_every=_whole("validate_every", config["validate_every"], 1),
        save_every=_whole("save_every", config["save_every"], 1),
        ranks=_whole("ranks", config["ranks"], 1),
        out=Path(out) if out else results / name / "heads",
        out_dtype=_choice("out_dtype", config["out_dtype"], SAVED),
        sink=config["sink"],
        config={"pair": pair.settings(), **{key: config[key] for key in told}},
    )
    if settings.validate_every % settings.log_every:
        raise ValueError(
            f"validate_every must be a multiple of log_every ({settings.log_every}), got "
            f"{settings.validate_every}"
        )
    return settings


def _head(config: Mapping[str, Any]) -> HeadSettings:
    known = {field.name for field in fields(HeadSettings)}
    if unknown := sorted(set(config) - known):
        raise ValueError(f"head.{unknown[0]} is no setting; choose from {', '.join(sorted(known))}")
    head = HeadSettings(
        name=str(config["name"]),
        kind=_choice("head.kind", config["kind"], HEADS),
        guesses=_whole("head.guesses", config["guesses"], 1),
        blocks=_whole("head.blocks", config["blocks"], 0),
        decay=_number("head.decay", config["decay"], 0.0, 1.0),
        recurrent=bool(config.get("recurrent", True)),
        inner=_whole("head.inner", config.get("inner"), 1, optional=True),
        init=_choice("head.init", config.get("init", "random"), INITS),
    )
    if head.kind == "redrafter" and head.init == "target":
        raise ValueError("head.init=target is Medusa's: ReDrafter's last layer has another width")
    return head


def _data(config: Mapping[str, Any]) -> DataSettings:
    kind = _choice("data.kind", config["kind"], KINDS)
    answered_by = _choice("data.answered_by", config["answered_by"], ANSWERED_BY)
    if kind != "chats" and answered_by != "target":
        raise ValueError(f"data.kind={kind} has no answers: data.answered_by must be target")
    path = config["path"]
    if kind != "task" and not path:
        raise ValueError(f"data.kind={kind} needs data.path, the file")
    answers = config["answers"]
    temperatures = answers["temperatures"]
    if not isinstance(temperatures, list):
        temperatures = [temperatures]
    return DataSettings(
        kind=kind,
        path=Path(path).expanduser() if path and kind != "task" else None,
        answered_by=answered_by,
        answers=AnswerSettings(
            tuple(
                _number("data.answers.temperatures", value, 0.0, math.inf) for value in temperatures
            ),
            _whole("data.answers.max_new_tokens", answers["max_new_tokens"], 1),
            _whole("data.answers.batch_size", answers["batch_size"], 1),
            _whole("data.answers.seed", answers["seed"], 0),
        ),
        limit=_whole("data.limit", config["limit"], 2, optional=True),
        max_length=_whole("data.max_length", config["max_length"], 3),
        validation=_number("data.validation", config["validation"], 0.0, 0.9),
        hidden=_choice("data.hidden", config["hidden"], HIDDEN),
        cache_dtype=_choice("data.cache_dtype", config["cache_dtype"], tuple(CACHE_DTYPES)),
        hidden_batch=_whole("data.hidden_batch", config["hidden_batch"], 1),
    )


def _optimiser(config: Mapping[str, Any]) -> Optimisation:
    betas = config["betas"]
    if not isinstance(betas, list) or len(betas) != 2:
        raise ValueError(f"optimiser.betas must be two numbers, got {betas!r}")
    found = Optimisation(
        epochs=_whole("optimiser.epochs", config["epochs"], 1),
        steps=_whole("optimiser.steps", config["steps"], 1, optional=True),
        batch=_whole("optimiser.batch", config["batch"], 1),
        accumulate=_whole("optimiser.accumulate", config["accumulate"], 1),
        learning_rate=_number("optimiser.learning_rate", config["learning_rate"], 0.0, math.inf),
        warmup=_number("optimiser.warmup", config["warmup"], 0.0, 1.0),
        weight_decay=_number("optimiser.weight_decay", config["weight_decay"], 0.0, math.inf),
        betas=(
            _number("optimiser.betas", betas[0], 0.0, 1.0),
            _number("optimiser.betas", betas[1], 0.0, 1.0),
        ),
        clip=_number("optimiser.clip", config["clip"], 0.0, math.inf),
        precision=_choice("optimiser.precision", config["precision"], PRECISIONS),
    )
    if found.accumulate > found.batch:
        raise ValueError(
            f"optimiser.accumulate ({found.accumulate}) splits a batch of {found.batch} dialogues "
            "into more parts than it has"
        )
    return found


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def _number(name: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        bounds = f"from {least:g} to {most:g}" if most < math.inf else f">= {least:g}"
        raise ValueError(f"{name} must be a number {bounds}, got {value!r}")
    return float(value)


def _whole(name: str, value: Any, least: int, optional: bool = False) -> Any:
    """A whole number of at least ``least``; None where that is allowed."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        allowed = f"a whole number >= {least}" + (" or null" if optional else "")
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return value
