"""One job's settings as plain dataclasses, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spec_bench import files
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.build_heads import heads_used
from spec_bench.engine import processes
from spec_bench.files import digest
from spec_bench.judge.settings import JudgeSettings, judge_settings
from spec_bench.measure.energy import EnergySettings, energy_settings
from spec_bench.records import CellFacts, SqlReference
from spec_bench.run.cells import Cell, DecoderLoader, build_cells
from spec_bench.run.pair import Pair, build_pair
from spec_bench.run.paths import model_path
from spec_bench.run.simulation import simulate_cells, simulated_acceptance
from spec_bench.sinks.rows import labels_of
from spec_bench.tasks import Example, RandomPrompts, Task, build_task
from spec_bench.tasks.schema import databases_digest

_SAMPLING = ("temperature", "top_k", "top_p", "draft_temperature", "probability_dtype")
_DEFAULTS = SamplingSettings()
_MAX_NEW_TOKENS = 128
# static: a batch ends with its longest answer. continuous: the next prompt takes a finished row.
BATCHING = ("static", "continuous")


@dataclass(frozen=True)
class JobSettings:
    """Everything one job needs.

    The plain fields' meanings stand in ``conf/config.yaml`` and the groups it names.

    Attributes:
        task_config: the task as its YAML has it.
        examples: what is asked, in order.
        judge: who grades the answers of a judged task; no part of a cell's settings.
    """

    name: str
    results: Path
    seed: int
    warmup: int
    batch_size: int
    batching: str
    threads: int | None
    device: str
    pair: Pair
    task: Task | RandomPrompts
    task_config: Mapping[str, Any]
    examples: tuple[Example, ...]
    sampling: SamplingSettings
    max_new_tokens: int
    energy: EnergySettings
    sink: Mapping[str, Any]
    cells: tuple[Cell, ...]
    judge: JudgeSettings = field(default_factory=JudgeSettings)

    def cell_settings(self, cell: Cell) -> dict[str, Any]:
        """The resolved settings that change a cell's numbers; their hash is its run id."""
        kind = heads_used(cell.decoder)
        heads = {} if kind is None else {"heads": self.pair.heads_settings(kind)}
        return {
            "pair": {**self.pair.settings(), **heads},
            "task": {k: v for k, v in self.task_config.items() if k != "generation"},
            "examples": asked(self.examples),
            "generation": {**asdict(self.sampling), "max_new_tokens": self.max_new_tokens},
            "engine": {
                "device": self.device,
                "batch_size": self.batch_size,
                "threads": self.threads,
                "compile": self.pair.specs[0].compile,
                **({} if self.batching == "static" else {"batching": self.batching}),
                **({"tensor_parallel": processes.count()} if self._split else {}),
            },
            "decoder": cell.decoder,
            "energy": self.energy.identity(),
            "warmup": self.warmup,
            "seed": self.seed,
        }

    @property
    def _split(self) -> bool:
        """Whether the target is split over processes."""
        return self.pair.specs[0].tensor_parallel

    def facts(self, cell: Cell) -> CellFacts:
        """What identifies a cell in the results table."""
        return CellFacts(
            pair=self.pair.name,
            target=self.pair.target,
            draft=self._drafting(cell),
            task=self.task.name,
            decoder=cell.name,
            spec=cell.spec,
            temperature=self.sampling.temperature,
            top_k=self.sampling.top_k,
            top_p=self.sampling.top_p,
            seed=self.seed,
            batch_size=self.batch_size,
            batching=self.batching,
            max_new_tokens=self.max_new_tokens,
            tree_attention=bool(cell.decoder.get("tree_attention", True)),
            simulated_acceptance=simulated_acceptance(cell.decoder),
            later_turns=self._later_turns(),
        )

    def labels(self, cell: Cell) -> dict[str, Any]:
        """The facts as the results table has them."""
        return labels_of(self.facts(cell))

    def _later_turns(self) -> str | None:
        """What later turns continue; None where no example has several turns."""
        several = any(len(example.turns) > 1 for example in self.examples)
        return self.task.later_turns if several and isinstance(self.task, Task) else None

    def _drafting(self, cell: Cell) -> tuple[str, ...]:
        """Who drafts: draft models, or the target's heads."""
        kind = heads_used(cell.decoder)
        return self.pair.drafts[: cell.drafts] if kind is None else (self.pair.heads[kind],)


def build_settings(config: Mapping[str, Any], load: DecoderLoader) -> JobSettings:
    """Checks a job's config and turns it into settings; reads the task's examples.

    Args:
        config: the composed config as plain dictionaries and lists, interpolations resolved.
        load: gives a decoder's config by name.

    Raises:
        ValueError: for a value that cannot be right, naming it and what was allowed.
    """
    engine, sink = config["engine"], config["sink"]
    whole = {
        "seed": _whole("seed", config["seed"], 0),
        "warmup": _whole("warmup", config["warmup"], 0),
        "batch_size": _whole("engine.batch_size", engine["batch_size"], 1),
        "batching": _choice("engine.batching", engine["batching"], BATCHING),
        "threads": _whole("engine.threads", engine["threads"], 1, optional=True),
    }
    prompts = _whole("prompts", config["prompts"], 1, optional=True)
    energy = energy_settings(config["energy"])
    task = build_task(config["task"])
    sampling = _sampling(config["generation"], task)
    limit = config["generation"]["max_new_tokens"]
    if limit is None:
        limit = task.generation.get("max_new_tokens", _MAX_NEW_TOKENS)
    cells = build_cells(config["decoder"], config["spec"], config["cells"], load, sampling)
    cells = simulate_cells(cells, config.get("simulate"), sampling)
    pair = build_pair(config["pair"], engine)
    for cell in cells:
        if cell.drafts > len(pair.drafts):
            raise ValueError(
                f"{cell.title} uses {cell.drafts} drafts, pair.draft names {len(pair.drafts)}"
            )
        kind = heads_used(cell.decoder)
        if kind is not None and kind not in pair.heads:
            raise ValueError(
                f"{cell.title} uses {kind} heads, pair {pair.name!r} names "
                f"{', '.join(pair.heads) or 'none'}: set pair.heads.{kind} to a folder or hub id"
            )
        if kind is not None:
            model_path(pair.heads[kind])
    return JobSettings(
        name=_name(config["name"]),
        results=Path(config["results"]),
        device=engine["device"],
        pair=pair,
        task=task,
        task_config=config["task"],
        examples=tuple(task.examples(prompts)),
        sampling=sampling,
        max_new_tokens=_whole("generation.max_new_tokens", limit, 1),
        energy=energy,
        sink=sink,
        cells=cells,
        judge=judge_settings(config.get("judge")),
        **whole,
    )


def asked(examples: tuple[Example, ...]) -> dict[str, Any]:
    """The examples as a cell's settings state them; with databases that are asked, their digest."""
    stated: dict[str, Any] = {"count": len(examples), "digest": examples_digest(examples)}
    if files := {
        gold.database
        for example in examples
        for golds in example.references
        for gold in golds
        if isinstance(gold, SqlReference)
    }:
        stated["databases"] = databases_digest(files)
    return stated


def examples_digest(examples: tuple[Example, ...]) -> str:
    """What was asked and expected: a data set that changes under its name is another cell."""
    return digest(
        [
            # Answers that later turns continue; only there where a file of them was given.
            [each.id, each.turns, each.references, *([each.answers] if each.answers else [])]
            for each in examples
        ]
    )


def _sampling(generation: Mapping[str, Any], task: Task | RandomPrompts) -> SamplingSettings:
    """The sampling settings: the run's, where they are null the task's, else the defaults."""
    values: dict[str, Any] = {
        name: next(
            value
            for value in (generation[name], task.generation.get(name), getattr(_DEFAULTS, name))
            if value is not None or name == "draft_temperature"
        )
        for name in _SAMPLING
    }
    for name in ("temperature", "top_k", "top_p", "draft_temperature"):
        value = values[name]
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"generation.{name} must be a number, got {value!r}")
    values["temperature"], values["top_p"] = float(values["temperature"]), float(values["top_p"])
    return SamplingSettings(**values)


def _name(value: Any) -> str:
    """The experiment's name, which becomes a folder."""
    if not isinstance(value, str) or not value or value in {".", ".."} or "/" in value:
        raise ValueError(f"name becomes a folder below results, got {value!r}")
    if value == files.RUNS:
        raise ValueError("name 'runs' is taken: results/runs holds what the cells measured")
    return value


def _choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """One of some words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def _whole(name: str, value: Any, least: int, optional: bool = False) -> Any:
    """A whole number of at least ``least``; None where that is allowed."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        allowed = f"a whole number >= {least}" + (" or null" if optional else "")
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return value
